/*
 * simulate.h - how long a step of compiled programs takes, if one knows how long each op takes
 *
 * A replay (program/replay.h) with clocks. A rank runs its ops one after the other; its async ops
 * run on their streams; what waits for what is stated in program/order.h alone, for this as for run
 * and verify. Transfers between stages begin when both ends have posted them. Times are whole
 * nanoseconds, so equal input gives equal output, and rounds whose times repeat are skipped without
 * an error: that they do is observed, not assumed.
 *
 * Each rank has two clocks. The host issues ops one after the other, each for its issue_ns, and is
 * at most SIMULATE_AHEAD_NS ahead of the device, which runs an op no earlier than it is issued.
 * While async ops run, those beside them take longer by the sum of their slowdowns.
 *
 * Ranks that differ only on an axis that the mesh leaves out are alike and are one rank: their
 * collectives take the time that is given for them.
 */
#ifndef PLAN_SIMULATE_H
#define PLAN_SIMULATE_H

#include <stdbool.h>

#include "plan/price.h"
#include "plan/time_class.h"
#include "program/program.h"

#define SIMULATE_AHEAD_NS ((int64_t)10000000) /* about 1,000 kernels: a GPU's queue */

struct simulated_op {
    int64_t ns, issue_ns;
    enum time_class class;
    double slowdown; /* async: ops beside it take (1 + slowdown) times as long */
    enum price_source source;
    enum price_bound bound;
};

/* An op, or a wait (op -1), of a rank. */
struct simulated_span {
    int rank, action; /* of the entry; a wait's is the action that waits */
    int op;           /* of the action's function */
    enum stream stream;
    enum time_class class;
    int64_t begin, end;
    int64_t slowed;                   /* of it, because of async ops beside it: TIME_OVERLAP */
    const struct simulated_op *price; /* of an op; NULL: a wait */
};

struct simulate_watch {
    void *context;
    /* Spans of one stream of a rank come in order and do not overlap. */
    void (*on_span)(void *context, const struct simulated_span *span);
};

struct simulate_request {
    const struct program *const *programs; /* by rank of the mesh */
    const struct mesh *mesh;
    enum entry_kind entry;
    const struct simulated_op *const *const *ops; /* [rank][function][op] */
    bool in_full;                                 /* skip no rounds */
    const struct simulate_watch *watch;           /* NULL: none; else in_full */
};

struct simulated_rank {
    int64_t end;                /* of its last op */
    int64_t of[N_TIME_CLASSES]; /* adds up to the step's ns; what it waits at its end is STAGES */
};

struct simulated_step {
    int64_t ns;
    struct simulated_rank *ranks; /* in the arena */
    int n_ranks, busiest;         /* the rank that waits least for others */
    int n_walked;                 /* actions, of all ranks, that were not skipped */
};

/* Returns 0, or -1 and ERR_FAILED for programs that verify_ranks refuses. */
int simulate(struct simulated_step *simulation, const struct simulate_request *request,
             struct arena *arena, struct err *err);

#endif
