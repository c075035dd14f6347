/*
 * pretrain.h - a run from its first step to its last: when to log, evaluate, save and stop
 */
#ifndef TRAIN_PRETRAIN_H
#define TRAIN_PRETRAIN_H

#include "config/job.h"
#include "train/engine.h"

struct pretrain_options {
    const struct job *job; /* resolved */
    const char *resume;    /* "auto", "none", or a checkpoint or run */
    int accept_numerics;   /* resume although the checkpoint's arithmetic is another one */
    struct engine *engine;
    /* Save and stop after this step, as on a signal; 0: none. A run that is resumed there or later
     * stops before its first step. */
    int64_t stop_at;
    const char *build; /* version of the binary: all ranks must have the same */
    /* A run that has completed all steps returns success instead of being refused: the caller has
     * further work to do with it. */
    int may_be_done;
    /* Called on rank 0 after each committed checkpoint; may be NULL. It reports its own errors. */
    void (*on_saved)(void *context, const char *folder);
    void *context;
};

/*
 * Collective. Returns 0; or -1 with err, whose code is the exit status: ERR_REQUEUE if it saved
 * and stopped on a signal or at stop_at. *agreed says whether all ranks return this status; if
 * not, this rank failed alone, the others may be waiting for it, and the caller must end the job
 * (launch_abort) and nothing else.
 */
int pretrain(const struct pretrain_options *options, int *agreed, struct err *err);

#endif
