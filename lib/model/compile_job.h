/*
 * compile_job.h - from a resolved job to the options of compile_train
 */
#ifndef MODEL_COMPILE_JOB_H
#define MODEL_COMPILE_JOB_H

#include "config/job.h"
#include "model/compile.h"

/* Whether the job says what is recomputed: not where that or what is away is chosen to fit a memory
 * (plan/memory_fit.h). */
bool compile_recomputes_as_said(const struct job *job);

/* memory.recompute_early; auto, where plan/early_layers.h has chosen nothing: none. */
int compile_early_layers(const struct job *job);

/* The options for the ranks with this coordinate on pp; scratch, longest and head_logits are left
 * unset. */
struct compile_train compile_job(const struct job *job, int pp_rank);

#endif
