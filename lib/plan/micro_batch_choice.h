/*
 * micro_batch_choice.h - the sizes of a job's micro-batches where it leaves them open
 * (parallel.micro_batches: auto)
 *
 * Costs are the prices of the compiled programs' ops (price.h), for micro-batches of each size up
 * to the largest that fits the cluster's devices and takes least time a sequence; the list is
 * micro_batch_sizes.h's. Sizes are numerics: they are chosen once, before a run, and every rank
 * that chooses finds the same.
 */
#ifndef PLAN_MICRO_BATCH_CHOICE_H
#define PLAN_MICRO_BATCH_CHOICE_H

#include "config/cluster.h"
#include "config/job.h"
#include "kernels/kernels.h"
#include "plan/micro_batch_sizes.h"

/* Sizes that are tried; train.micro_batch, where it is given, is the largest. */
#define MICRO_BATCH_SIZES_MAX 16

/*
 * Give the job, which is read and not resolved, the best list for n_ranks ranks of the cluster.
 * Results in the arena. Returns 0, or -1 with err: ERR_CONFIG where global_batch is no multiple of
 * dp, or a list of the least sizes does not fit.
 */
int micro_batch_choice(struct micro_batch_sizes *found, struct job *job, int n_ranks,
                       const struct cluster *cluster, struct kernels *kernels, struct arena *arena,
                       struct err *err);

#endif
