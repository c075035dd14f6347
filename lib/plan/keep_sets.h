/*
 * keep_sets.h - all ways in which a layer may keep values for its backward, and what each takes
 *
 * A layer whose forward has n kinds of ops has 2^n sets of kinds that it can drop
 * (ops/keep_set.h), and one more: full recomputation. Each is tried by running the pass itself
 * (recompute, program/passes.h) on a program of one layer of the kind, behind as few others as
 * there can be, so what dropped values need in their turn is counted as it is made. What is left
 * are the sets that no other is better than in every respect: the front. Layers that are alike
 * share one.
 *
 * Beyond KEEP_KINDS_MAX kinds not all sets are tried: from the empty one on, the kind is added
 * that saves most bytes for its time, until all are; is_partial says so.
 *
 * Bytes are those of values as place.c aligns them, where ops work in place.
 */
#ifndef PLAN_KEEP_SETS_H
#define PLAN_KEEP_SETS_H

#include "config/cluster.h"
#include "config/job.h"
#include "kernels/kernels.h"
#include "ops/keep_set.h"
#include "ops/ops.h"

#define KEEP_KINDS_MAX 12
#define KEEP_PARTS_MAX 24

/* Kept values of one kind of op, which can rest elsewhere (keep_set.away). */
struct keep_part {
    enum op_kind kind;
    int64_t n_bytes; /* of a micro-batch */
};

struct keep_point {
    struct keep_set set; /* with nothing away */
    int64_t added_ns;    /* a micro-batch, more than where all is kept that the backward reads */
    int64_t slot_bytes;  /* from the layer's forward to its backward, for each micro-batch */
    /* From its gradient's pass to that of its weights, where a schedule has these apart. */
    int64_t handed_bytes;
    int64_t scratch_bytes; /* the most that is in scratch at one time within its backward */
    struct keep_part parts[KEEP_PARTS_MAX]; /* of slot_bytes, but for row statistics */
    int n_parts;
};

/* Of one kind of layer. */
struct keep_front {
    const struct keep_point
        *points; /* by added_ns, from 0 on; of equal ones the smaller slot first */
    int n_points;
    int64_t forward_ns, backward_ns; /* a micro-batch, where nothing is recomputed */
    int n_kinds, n_sets;             /* that can be dropped; that were tried */
    bool is_partial;
};

struct keep_sets {
    const struct keep_front *fronts;
    int n_fronts;
    const int *front_of_layer; /* [n_layers of the model] */
};

struct keep_sets_request {
    const struct job *job; /* resolved */
    struct kernels *kernels;
    const struct cluster *cluster;
    int island;    /* on whose devices */
    bool is_fixed; /* only the set that the job's `recompute` says is tried, for what it takes */
};

/* All in the arena. Takes milliseconds for each front. Returns 0, or -1 where a program of the job
 * cannot be compiled. */
int keep_sets_find(struct keep_sets *sets, const struct keep_sets_request *request,
                   struct arena *arena, struct err *err);

#endif
