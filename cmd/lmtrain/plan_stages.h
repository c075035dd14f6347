/*
 * plan_stages.h - the table of a pipeline's ranks
 */
#ifndef CMD_PLAN_STAGES_H
#define CMD_PLAN_STAGES_H

#include "plan/plan.h"

/* Appends layers, memory and work of each rank, and the bubble. */
void plan_print_stages(const struct plan *plan, struct str *out);

#endif
