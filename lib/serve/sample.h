/*
 * sample.h - the next token from its logits
 *
 * What comes of logits is decided in the order that transformers has: the repetition penalty, then
 * the temperature, then the k most likely, then the fewest of those whose probabilities reach p.
 */
#ifndef SERVE_SAMPLE_H
#define SERVE_SAMPLE_H

#include <stdint.h>

struct sampling {
    double temperature; /* 0: greedy */
    int top_k;          /* 0: all */
    double top_p;       /* 1: all; Holtzman et al. 2020 */
    uint64_t seed;
};

/*
 * Logits of tokens that were seen, each once: positive ones are divided by the penalty, negative
 * ones multiplied (Keskar et al. 2019). scratch: room for n ids.
 */
void sample_penalize(float *logits, int n, double penalty, const int32_t *tokens, int64_t n_tokens,
                     int32_t *scratch);

/*
 * Logits [n] to a token: drawn with the number that (seed, sequence, position) names, so that a
 * sample is the same however sequences are batched. Ties go to the lower id. order: room for n ids.
 */
int32_t sample_token(const struct sampling *sampler, const float *logits, int n, uint64_t sequence,
                     int64_t position, int32_t *order);

/*
 * The ids that temperature (not 0), top_k and top_p leave of logits, the most likely first where
 * either cuts, in order otherwise. Returns how many; order: room for n ids. *total: the sum of
 * exp((logits - highest) / temperature) over them, with *highest the greatest logit.
 */
int sample_kept(const struct sampling *sampler, const float *logits, int n, int32_t *order,
                double *total, double *highest);

/* A standard Gumbel number of a place: the greatest of logits plus such is a draw from them. */
double sample_gumbel(const struct sampling *sampler, uint64_t sequence, int64_t position,
                     uint64_t item);

#endif
