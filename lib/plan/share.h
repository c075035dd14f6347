/*
 * share.h - micro-batches shared out to data-parallel ranks of different speed
 *
 * A rank takes ramp + m * ns for m micro-batches: ns is its slowest pipeline stage's time of one,
 * the ramp what the first takes through the other stages. All ranks wait for the slowest when
 * gradients are summed, so that one is to be as fast as possible.
 */
#ifndef PLAN_SHARE_H
#define PLAN_SHARE_H

#include <stdint.h>

struct share_pace {
    int64_t ramp, ns; /* ns at least 1 */
};

/*
 * Give each of n_ranks at least one of n micro-batches, so that the longest time is the least there
 * is: with the least T in which ranks can do all, found by halving, a rank gets the largest m with
 * ramp + m * ns <= T. Returns that longest time, or -1 if there are fewer than ranks.
 */
int64_t share_micro_batches(int *counts, const struct share_pace *paces, int n_ranks, int64_t n);

#endif
