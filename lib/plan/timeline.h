/*
 * timeline.h - steps of ranks, predicted and measured, as one file for Perfetto and
 * chrome://tracing
 *
 * Chrome's JSON trace format: a process for each rank and kind (2 * rank predicted, 2 * rank + 1
 * measured), a thread for each stream, on which slices come one after the other; waiting has slices
 * of its own. A flow leads from each send to its receive, and around the members of each collective
 * that are there. A counter has the bytes of values that are kept for the backward. Slices of one
 * op of one action of one step are matched by these: args of both have the other's time.
 */
#ifndef PLAN_TIMELINE_H
#define PLAN_TIMELINE_H

#include "base/str.h"
#include "layout/mesh.h"
#include "plan/time_class.h"
#include "program/program.h"

/* An op of an action, or waiting (op -1). ns on one clock of all ranks. */
struct timeline_span {
    int action, op;
    enum stream stream;
    int64_t begin, end;
    enum time_class class;
    const char *bound, *source; /* of a price (plan/price.h); NULL: measured */
    int64_t slowed;             /* predicted: ns that the op takes longer beside others, which come
                                   after its slice as one of their own */
};

struct timeline_rank {
    int rank;      /* of the world */
    int64_t step;  /* 0: of no run */
    int64_t shift; /* ns that are added to its spans */
    const struct program *program;
    const struct timeline_span *spans; /* of a stream in order of time; [n] */
    int n;
    bool is_measured;
    int64_t clock_error_ns; /* measured: of its clock against rank 0's */
};

struct timeline {
    const struct mesh *mesh;
    const struct timeline_rank *ranks;
    int n;
    const char *title;
};

/* Most of a file: what browsers can show. */
#define TIMELINE_RANKS_MAX 64
#define TIMELINE_STEPS_MAX 2

/*
 * What cannot be, and is so by the ranks' clocks: a receive that ends before its send begins, a
 * member of a collective that ends before another begins. Clocks are known to some error only; the
 * file's metadata (otherData) say all of this.
 */
struct timeline_order {
    int n, n_beyond;           /* pairs; by more than both clocks' errors */
    int64_t most_ns, error_ns; /* the largest; the largest error of a clock */
};

/* Append the file. */
void timeline_print(const struct timeline *timeline, struct timeline_order *order, struct str *out);

#endif
