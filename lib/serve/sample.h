/*
 * sample.h - the next token from its logits
 */
#ifndef SERVE_SAMPLE_H
#define SERVE_SAMPLE_H

#include <stdint.h>

struct sampler {
    double temperature; /* 0: greedy */
    int top_k;          /* 0: all */
    double top_p;       /* 1: all; Holtzman et al. 2020 */
    uint64_t seed;
};

/*
 * Logits [n] to a token: scaled by the temperature, cut to the k most likely, then to the fewest of
 * those whose probabilities reach p; drawn with the number that (seed, sequence, position) names,
 * so that a sample is the same however sequences are batched. Ties go to the lower id. order: room
 * for n ids.
 */
int32_t sample_token(const struct sampler *sampler, const float *logits, int n, uint64_t sequence,
                     int64_t position, int32_t *order);

#endif
