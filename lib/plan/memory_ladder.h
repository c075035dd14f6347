/*
 * memory_ladder.h - what a job takes at budgets from the least that it fits to all that it keeps
 *
 * Budgets of a rank's device memory lie evenly, in bytes, from the floor (the least that
 * memory_fit.h finds) to where nothing leaves and nothing is computed again that takes time. Of
 * each the choice is what a run of that memory.device_bytes has, unless that of a smaller budget
 * adds less time, which then counts: more budget is never slower.
 */
#ifndef PLAN_MEMORY_LADDER_H
#define PLAN_MEMORY_LADDER_H

#include "plan/memory_fit.h"

struct memory_rung {
    int64_t limit_bytes;
    bool fits;             /* else `why` says what there is no room for */
    struct memory_fit fit; /* limit_bytes: for which it was made */
    int64_t added_ns;      /* to a step: in the simulation, if all budgets have one; else by sums */
    struct err why;
};

/*
 * Fills n_rungs, smallest first. The job's own memory.device_bytes and the request's are ignored;
 * limits of the host's memory hold. Without cells and values that may leave and `recompute: auto`
 * all budgets are the same. All in the arena. Returns 0, or -1 where a program cannot be compiled.
 */
int memory_ladder(struct memory_rung *rungs, int n_rungs, const struct memory_fit_request *request,
                  struct arena *arena, struct err *err);

#endif
