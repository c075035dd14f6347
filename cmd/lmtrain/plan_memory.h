/*
 * plan_memory.h - the memory of a plan: its segments, and, where the job leaves it open, what was
 * chosen to be kept, computed again and away (plan/memory_fit.h)
 */
#ifndef CMD_PLAN_MEMORY_H
#define CMD_PLAN_MEMORY_H

#include <cjson/cJSON.h>

#include "config/cluster.h"
#include "plan/plan.h"

/* Of the GPU that a plan is for where none is named. */
#define ASSUMED_GPU_BYTES ((size_t)80 << 30)

/* The segments of the shown pipeline rank, and their sums by memory. */
void plan_print_memory(const struct plan *plan, struct str *out);

/* The same as "memory_bytes", "total_bytes" and others. */
void plan_add_memory(const struct plan *plan, cJSON *json);

/*
 * What each pipeline rank keeps, computes again and sends away, and the time that it adds; with a
 * cluster also that of a step in which everything is kept. Nothing where nothing was chosen.
 * Returns 0, or -1 where a step's time is not to be had.
 */
int plan_print_choice(const struct plan *plan, const struct cluster *cluster, struct str *out,
                      struct err *err);

/* The same as "memory_choice". */
int plan_add_choice(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                    struct err *err);

#endif
