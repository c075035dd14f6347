/*
 * timeline_summary.h - what a timeline says in numbers: where ranks' time goes, which ops differ
 * most from their prices, which rank is slower than its peers
 */
#ifndef PLAN_TIMELINE_SUMMARY_H
#define PLAN_TIMELINE_SUMMARY_H

#include "plan/critical_path.h"

/* A rank's step, of one kind. ns; of: what its compute stream does and waits for, in classes. */
struct timeline_total {
    int rank, stage;
    int64_t step;
    bool is_measured;
    int64_t ns; /* from the first begin to the last end of all ranks of the step */
    int64_t of[N_TIME_CLASSES];
    int64_t beside[N_TIME_CLASSES]; /* under way on other streams */
    int64_t compute;                /* of: ops, and what they take longer beside others */
    int64_t exposed;                /* of: collectives and copies that are not hidden */
    int64_t waits;                  /* of: other stages, transfers, the host's issue */
    int64_t idle;                   /* of ns: nothing is recorded */
};

/* An op of a function, in all of its runs in a step: means of the ranks that have both times. */
struct timeline_difference {
    int stage, function, op;
    const struct program *program;
    int n_runs;
    double predicted_ns, measured_ns;
};

/* The rank of a stage that computes longest, in a measured step. */
struct timeline_slowest {
    int stage, rank, n_peers;
    int64_t step;
    int64_t compute, peers; /* its, and the median of the others' */
    enum time_class class;  /* where most of the difference is */
    int64_t more;           /* there, than the median of the others */
};

struct timeline_summary {
    struct timeline_total *totals; /* as the timeline's ranks */
    int n_totals;
    struct timeline_difference *differences; /* largest first: |measured - predicted| */
    int n_differences;
    struct timeline_slowest *slowest; /* of stages with two measured ranks or more, by stage */
    int n_slowest;
    struct critical_path *paths; /* of each step and kind */
    int n_paths;
};

/* Of ops on the compute stream alone; those beside it wait for peers. Results in the arena. */
void timeline_summarize(struct timeline_summary *summary, const struct timeline *timeline,
                        int n_differences_max, struct arena *arena);

#endif
