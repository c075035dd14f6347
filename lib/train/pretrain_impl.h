/*
 * pretrain_impl.h - the state of a run under way, shared by pretrain.c (cadence) and resume.c
 * (where it begins)
 */
#ifndef TRAIN_PRETRAIN_IMPL_H
#define TRAIN_PRETRAIN_IMPL_H

#include "report/metrics.h"
#include "report/terminal.h"
#include "train/pretrain.h"
#include "train/trainer.h"

#define PATH_BYTES 4096

struct pretrain {
    const struct pretrain_options *options;
    const struct job *job;
    struct trainer *trainer;
    struct metrics *metrics; /* rank 0 alone, as the terminal is */
    struct terminal *terminal;
    int is_first;      /* rank 0 */
    int lock;          /* fd of the run folder's lock */
    double peak_flops; /* of all ranks */
    double best_eval;
    int n_worse; /* evaluations since the best */
    int n_skipped_in_a_row;
    int agreed;             /* the failure is known to all ranks */
    int stopped;            /* early: the run is over though steps are left */
    int64_t evaluated_step; /* of the last evaluation, -1 none */
    int64_t saved_step;     /* of the newest checkpoint, -1 none */
    double begin;
};

/* Output folder, slash, name: into path [PATH_BYTES]. ERR_CONFIG if that is too long. */
int pretrain_path(const struct pretrain *pretrain, char *path, const char *name, struct err *err);

/* "OUTPUT/checkpoints/step-00000200". */
int pretrain_checkpoint_path(const struct pretrain *pretrain, char *path, int64_t step,
                             struct err *err);

/*
 * Go on from where the options say: what changed since is listed in *notes. Refuses a run that is
 * finished or stopped early. Collective, and so is its failure: all ranks return it and p->agreed
 * is set.
 */
int pretrain_resume(struct pretrain *pretrain, struct str *notes, struct err *err);

/* What must be kept with a checkpoint besides the trainer's state, as JSON. */
void pretrain_describe(const struct pretrain *pretrain, struct str *out);

#endif
