/*
 * memory_sums_impl.h - lists of ways of which none is worse than another in every respect
 *
 * What memory_solver.c adds up: the ways of one layer, of a chunk's first layers, of all chunks.
 */
#ifndef PLAN_MEMORY_SUMS_IMPL_H
#define PLAN_MEMORY_SUMS_IMPL_H

#include "plan/memory_solver.h"

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
 * counts_scratch, scratch; of equal ones the first. If more than the bound are left, fewer: for
 * some prices of a byte moved, and of those that move nothing, the hull by bytes and cost, and
 * others evenly. The items are sorted, and the list's are new ones in the arena.
 */
struct memory_sums memory_sums_best(struct memory_sum *items, int n, bool counts_scratch, int n_max,
                                    struct arena *arena);

/* Ways of more layers: each of these with each option. */
struct memory_sums memory_sums_add(const struct memory_sums *sums,
                                   const struct memory_sums *options, int n_max,
                                   struct arena *arena);

/* Ways of more chunks, of which the largest slot counts. */
struct memory_sums memory_sums_join(const struct memory_sums *chunks,
                                    const struct memory_sums *chunk, int n_max,
                                    struct arena *arena);

/* ---- memory_ways.c ---- */

/* A kind's point with these parts away; scratch is what a rank has with it, at least its floor. */
struct memory_sum memory_sum_of(const struct memory_problem *problem,
                                const struct memory_layer_kind *kind, int point, uint32_t away);

/* All ways of a kind, by scratch too. */
struct memory_sums memory_sums_of_kind(const struct memory_problem *problem,
                                       const struct memory_layer_kind *kind, struct arena *arena);

/* ---- memory_lists.c ---- */

/* Numbers of groups of a class that are tried at first, about. */
enum { MEMORY_COUNTS_MAX = 40 };

/* The lists of one cap. */
struct way_lists {
    struct memory_sums *options;    /* by kind */
    struct memory_sums **of_layers; /* [chunk][layers so far] */
    struct memory_sums *of_chunks;  /* [chunks so far] */
};

struct memory_lists {
    const struct memory_problem *problem; /* of no budget */
    struct memory_sums *options;          /* all, by kind */
    int64_t *caps;                        /* [n_caps] scratch of a rank, from the most on */
    int n_caps;
    struct way_lists *of_caps; /* [n_caps] zeros until asked for */
    struct arena *arena;
};

const struct way_lists *memory_lists_of(struct memory_lists *lists, int cap);

#endif
