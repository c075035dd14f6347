/*
 * gradient_sums.h - how much of the sums of gradients over data-parallel ranks a step waits for,
 * chunk by chunk
 *
 * With late sums a chunk's gradients are summed when its last backward completes them, while the
 * backwards of the chunk before go on. Under breadth-first all backwards of a chunk run in a row,
 * so that is much time: Fold3D (Li et al. 2023, IEEE TPDS). With R_c the time of the sums of chunk
 * c and B_c that of all backwards of it, a step waits for
 *
 *     R_0 + sum over c > 0 of max(0, R_c - B_{c-1})
 *
 * at most: exactly that where each R_c is below B_{c-1}, or each is above. Between the two a chunk
 * whose sums are short makes up for one whose sums are long.
 */
#ifndef PLAN_GRADIENT_SUMS_H
#define PLAN_GRADIENT_SUMS_H

#include "plan/simulate.h"

/* Of one rank of a simulation. */
struct gradient_sums {
    int n_chunks;
    int64_t *sums;      /* [n_chunks] R_c: how long the chunk's sums take in all */
    int64_t *backwards; /* [n_chunks] B_c: how long its backwards compute, of all micro-batches */
    int64_t *exposed;   /* [n_chunks] of the sums, while the rank waits for them */
    int64_t all, all_exposed; /* of all chunks */
};

struct gradient_collecting; /* opaque */

/*
 * Before a simulation of these programs, in full: what watches it. programs by rank of the
 * simulation; they and the arena outlive it.
 */
struct simulate_watch gradient_sums_watch(const struct program *const *programs, int n_ranks,
                                          struct arena *arena);

/* After it: the sums of a rank, in the arena. */
struct gradient_sums gradient_sums_of(const struct simulate_watch *watch, int rank);

/* What the formula above says. */
int64_t gradient_sums_formula(const struct gradient_sums *sums);

#endif
