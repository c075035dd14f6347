/*
 * changes.h - another layout of a resolved job, for comparisons: by one change, and in words
 */
#ifndef PLAN_CHANGES_H
#define PLAN_CHANGES_H

#include "base/str.h"
#include "config/job.h"

/* Changes that take more memory, and may take less time. */
enum change {
    CHANGE_SELECTIVE,   /* recomputation, instead of full */
    CHANGE_KEEP_ALL,    /* no recomputation */
    CHANGE_ZERO,        /* one stage of sharding less */
    CHANGE_MICRO_BATCH, /* twice as large: half as many */
    CHANGE_TP,          /* half as much, and twice the dp */
    CHANGE_PP,          /* the same of pp */
    N_CHANGES
};

/*
 * The job with this change, for as many ranks, resolved again in the arena. false: it has nothing
 * to change so, or no such layout is possible.
 */
bool changes_make(struct job *changed, const struct job *job, enum change change,
                  struct arena *arena);

/* Append what of the layout differs: "recompute: full with train.micro_batch: 2". */
void changes_describe(const struct job *from, const struct job *to, struct str *out);

#endif
