/*
 * searched.h - the layout of a training whose job leaves it to a search
 */
#ifndef CMD_SEARCHED_H
#define CMD_SEARCHED_H

#include "base/options.h"
#include "config/job.h"

/*
 * Give the job its layout if parallel.mode leaves that to a search, or the sizes of its
 * micro-batches if they are auto: what the run in its output folder has, if there are checkpoints
 * and it is for as many ranks, so that a run goes on as it began; else the best of a search
 * (to_replan: always). With a cluster (the job's, or, for a search, this machine's) the time of a
 * step is predicted, for the log to compare. What is set is appended to sets, for the ranks.
 * *n_ranks becomes what the layout has, where search.allow_idle lets it be less. Every rank that
 * finds a layout by itself finds the same. Returns 0, or -1 and ERR_CONFIG.
 */
int searched_layout(struct job *job, int *n_ranks, bool to_replan, struct option_list *sets,
                    struct arena *arena, struct err *err);

#endif
