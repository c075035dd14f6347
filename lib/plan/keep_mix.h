/*
 * keep_mix.h - what the layers of a pipeline rank keep, found in microseconds
 *
 * For estimates of many layouts: each layer has one of its kind's points, as in memory_solver.h,
 * of which a search asks for its best layouts alone. From the points with least time on, the
 * layer that saves most bytes for its time is given the next point of its kind's lower hull, until
 * all fit; the last one is given the fastest point of all that is enough. So the time is above the
 * best of all assignments by less than one layer's step on its hull, where no layer has more
 * scratch than there is anyway (test/plan/keep_mix_test.c). Pure.
 */
#ifndef PLAN_KEEP_MIX_H
#define PLAN_KEEP_MIX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

struct mix_point {
    int64_t ns;           /* a micro-batch, more than with the first point */
    int64_t slot_bytes;   /* kept from a layer's forward to its backward */
    int64_t handed_bytes; /* from its gradient's pass to that of its weights, where these are two */
    int64_t scratch_bytes;
};

/* Of a kind of layer: by ns, of the first 0. */
struct mix_kind {
    const struct mix_point *points;
    int n_points;
};

/* Layers that are alike. Chunks of a rank share slots as far as they keep the same, so what a layer
 * keeps, those in its place in the other chunks keep, too. */
struct mix_group {
    int kind;
    int n_layers; /* of a chunk */
    int n_chunks; /* that have such layers */
};

struct mix_problem {
    const struct mix_kind *kinds;
    int n_kinds;
    const struct mix_group *groups;
    int n_groups;
    int64_t slot_bytes, handed_bytes; /* beside the layers */
    int n_slots, n_handed; /* micro-batches that are alive, or between their two backward passes */
    int64_t scratch_bytes; /* that there is anyway */
    int64_t available;     /* for slots, what is handed on, and scratch */
};

/* Of a group's layers in one chunk. */
struct mix_sum {
    int64_t ns, slot_bytes, handed_bytes;
};

struct mix {
    bool fits;            /* else what follows takes the fewest bytes that were found */
    struct mix_sum *sums; /* [n_groups], in the arena */
    int64_t scratch_bytes, n_bytes;
    int64_t ns; /* of all chunks */
};

void keep_mix(struct mix *mix, const struct mix_problem *problem, struct arena *arena);

/*
 * Of n points by ns those of the lower hull of ns and n_slots * slot_bytes + n_handed *
 * handed_bytes, from the least time to the fewest bytes; the ones that matter most, if there are
 * more than n_max. They are moved to the front. Returns how many.
 */
int keep_mix_hull(struct mix_point *points, int n, int n_slots, int n_handed, int n_max);

#endif
