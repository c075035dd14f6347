/*
 * plan_context.h - the lines about context parallelism: who has which rows, how evenly attention is
 * divided, what ranks send for it
 */
#ifndef CMD_PLAN_CONTEXT_H
#define CMD_PLAN_CONTEXT_H

#include <cjson/cJSON.h>

#include "plan/plan.h"

/* Nothing where parallel.cp is 1. */
void plan_print_context(const struct plan *plan, struct str *out);

/* The same as "context_parallel", an object; none where parallel.cp is 1. */
void plan_add_context(const struct plan *plan, cJSON *json);

#endif
