/*
 * plan_optimizers.h - `lmtrain plan --optimizers`: what each optimizer keeps for a parameter
 */
#ifndef CMD_PLAN_OPTIMIZERS_H
#define CMD_PLAN_OPTIMIZERS_H

#include "base/str.h"
#include "config/job.h"

/*
 * A table, or the same as JSON, of the optimizers and of how their states and masters may be kept
 * beside weights of the job's train.dtype: bytes a parameter, and of all trained parameters on all
 * ranks that divide them. The job's own row is marked.
 */
void plan_optimizers(const struct job *job, bool as_json, struct str *out);

#endif
