/*
 * blend.h - which of several weighted datasets each sample comes from
 *
 * The order is a pure function of the weights and the sample number: after any k samples, every
 * dataset has given its weight's share of k, to less than one sample (the chairman assignment of R.
 * Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980). Weights are rounded
 * to parts of 2^31, so all of it is integer arithmetic and the same on every machine.
 */
#ifndef DATA_STREAM_BLEND_H
#define DATA_STREAM_BLEND_H

#include <stdint.h>

#include "base/err.h"

#define BLEND_DATASETS_MAX 1024

struct blend {
    int n;
    int64_t k;                          /* the sample that blend_next gives next */
    int64_t weight[BLEND_DATASETS_MAX]; /* parts of 2^31; their sum is exactly that */
    int64_t debt[BLEND_DATASETS_MAX];   /* 2^31 * (share owed of k samples - given) */
    int64_t given[BLEND_DATASETS_MAX];  /* samples given so far */
};

/* Weights are finite and positive; n is 1..BLEND_DATASETS_MAX. Returns 0, or -1 and ERR_CONFIG. */
int blend_init(struct blend *blend, const double *weights, int n, struct err *err);

/* The dataset of sample k, and how many samples it gave before; then goes on to k + 1. */
int blend_next(struct blend *blend, int64_t *number);

/* Go to sample k, onwards or back. Takes n / (the least share) of the simplest operations, however
 * far k is. */
void blend_seek(struct blend *blend, int64_t k);

#endif
