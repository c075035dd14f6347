/*
 * plan_slices.h - `lmtrain plan`: into how many slices collectives of tensor parallelism are cut
 */
#ifndef CMD_PLAN_SLICES_H
#define CMD_PLAN_SLICES_H

#include <cjson/cJSON.h>

#include "plan/plan.h"

/* A table of the first pipeline rank's sites, and "slices" of plan --json; nothing where there are
 * none. */
void plan_print_slices(const struct plan *plan, struct str *out);
void plan_add_slices(const struct plan *plan, cJSON *json);

#endif
