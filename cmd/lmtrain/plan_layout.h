/*
 * plan_layout.h - the layout of a resolved job: degrees, schedule, sharding
 */
#ifndef CMD_PLAN_LAYOUT_H
#define CMD_PLAN_LAYOUT_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "config/job.h"

/* Append "dp 2, tp 4 with sequence parallel, pp 2 interleaved of 3 chunks, zero 1". */
void plan_print_layout(const struct job *job, struct str *out);

/* Append "full", or "swiglu, rmsnorm". */
void plan_print_recompute(const struct job *job, struct str *out);

/* The same as an object whose keys are those of a job file. */
void plan_add_layout(const struct job *job, cJSON *json);

#endif
