/*
 * plan_stages.h - the pipeline ranks of a plan: layers, memory and work of each, and the bubble
 */
#ifndef CMD_PLAN_STAGES_H
#define CMD_PLAN_STAGES_H

#include <cjson/cJSON.h>

#include "plan/plan.h"

void plan_print_stages(const struct plan *plan, struct str *out);

/* The same as "stages", an array by pipeline rank, and "bubble", a share of a step. */
void plan_add_stages(const struct plan *plan, cJSON *json);

#endif
