/*
 * compile_job.h - from a resolved job to the options of compile_train
 */
#ifndef MODEL_COMPILE_JOB_H
#define MODEL_COMPILE_JOB_H

#include "config/job.h"
#include "model/compile.h"

/* The options for the ranks with this coordinate on pp; scratch, longest and head_logits are left
 * unset. */
struct compile_train compile_job(const struct job *job, int pp_rank);

#endif
