/*
 * plan_layout.h - the layout of a resolved job: degrees, schedule, sharding
 */
#ifndef CMD_PLAN_LAYOUT_H
#define CMD_PLAN_LAYOUT_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "config/job_layout.h"

/* Append "dp 2, tp 4 with sequence parallel, pp 2 interleaved of 3 chunks, zero 1". */
void plan_print_layout(const struct job *job, struct str *out);

/* Append "full", or "swiglu, rmsnorm", or "none, full in 4+2 layers". */
void plan_print_recompute(const struct job *job, struct str *out);

/* Add the layout's fields to the object, by the names that they have in a job. */
void plan_add_layout_keys(const struct layout *layout, cJSON *object);

/* The job's layout as the object "layout". */
void plan_add_layout(const struct job *job, cJSON *json);

#endif
