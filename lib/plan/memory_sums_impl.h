/*
 * memory_sums_impl.h - lists of ways of which none is worse than another in every respect
 *
 * What memory_solver.c adds up: the ways of one layer, of a chunk's first layers, of all chunks.
 */
#ifndef PLAN_MEMORY_SUMS_IMPL_H
#define PLAN_MEMORY_SUMS_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

struct memory_sum {
    int64_t bytes; /* of a slot */
    int64_t ns;    /* added to a micro-batch */
    int64_t moved; /* bytes of a micro-batch over the link, in each direction */
    int64_t scratch;
    /* Of a layer: its point and parts that are away. Of several: the ways of those before, and of
     * the last one, as indices of their lists. */
    int before, last;
};

/* By bytes, then by ns. */
struct memory_sums {
    struct memory_sum *items;
    int n;
    bool is_thinned;
};

/*
 * Of n ways, in any order, those that no other is as good as in bytes, ns, moved and, if
 * counts_scratch, scratch; of equal ones the first. Of more than n_max that are left so many at
 * least: the ends, and of each range of bytes the ones with least ns, with least moved, and nearest
 * the hull. The items are sorted, and the list's are new ones in the arena.
 */
struct memory_sums memory_sums_best(struct memory_sum *items, int n, bool counts_scratch, int n_max,
                                    struct arena *arena);

/* Ways of more layers: each of these with each option that takes no more scratch than cap. */
struct memory_sums memory_sums_add(const struct memory_sums *sums,
                                   const struct memory_sums *options, int64_t cap, int n_max,
                                   struct arena *arena);

/* Ways of more chunks, of which the largest slot counts. */
struct memory_sums memory_sums_join(const struct memory_sums *chunks,
                                    const struct memory_sums *chunk, int n_max,
                                    struct arena *arena);

#endif
