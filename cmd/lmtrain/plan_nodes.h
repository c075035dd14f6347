/*
 * plan_nodes.h - `lmtrain plan`: what sums and gathers send between nodes
 */
#ifndef CMD_PLAN_NODES_H
#define CMD_PLAN_NODES_H

#include <cjson/cJSON.h>

#include "plan/plan.h"

/* A line, and "between_nodes" of the JSON, where the ranks are on several nodes. */
void plan_print_nodes(const struct plan *plan, struct str *out);
void plan_add_nodes(const struct plan *plan, cJSON *json);

#endif
