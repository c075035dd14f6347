/*
 * pipeline_cost.h - what each rank of a planned pipeline holds and computes, and the bubble
 */
#ifndef PLAN_PIPELINE_COST_H
#define PLAN_PIPELINE_COST_H

#include "base/str.h"
#include "plan/plan.h"

/* Append the layers of a pipeline rank: "embedding, 0-3, 12-15, head". */
void plan_list_layers(const struct plan *plan, int pp_rank, struct str *out);

/*
 * The share of a step [0, 1) in which the busiest rank waits for the others, if an op takes as long
 * as its FLOPs say and transfers take no time. Returns 0, or -1 as simulate.
 */
int plan_bubble(const struct plan *plan, double *bubble, struct err *err);

#endif
