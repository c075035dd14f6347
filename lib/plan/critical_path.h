/*
 * critical_path.h - what a step of a timeline waits for in the end
 *
 * Walked back from the last end: an op goes back to its begin; waiting for a transfer or collective
 * goes back to where the last of its ranks began it, and on with that rank. Each moment of the step
 * is of one rank and one class; to shorten anything else does not shorten the step.
 *
 * Promise (test/cli/support/check_timeline.py): classes and idle time add up to the step.
 */
#ifndef PLAN_CRITICAL_PATH_H
#define PLAN_CRITICAL_PATH_H

#include "plan/price.h"
#include "plan/timeline.h"

struct critical_path {
    int64_t step;
    bool is_measured;
    int64_t ns; /* of the step */
    int64_t of[N_TIME_CLASSES], idle;
    int64_t unexplained; /* of them: waiting for nothing that is in the timeline, such as for the
                            host, which issues what is to run beside compute */
    int64_t bound[N_PRICE_BOUNDS]; /* predicted: of them, by what bounds them */
    int64_t *ranks;                /* as the timeline's: of them, by rank */
    int n_changes;                 /* from a rank to another */
};

/* Of the timeline's ranks of one step and kind. Results in the arena. */
void critical_path_find(struct critical_path *path, const struct timeline *timeline, int64_t step,
                        bool is_measured, struct arena *arena);

#endif
