/*
 * plan_time.h - `lmtrain plan --device` and `--cluster`: how long a step takes on GPUs that need
 * not be here
 */
#ifndef CMD_PLAN_TIME_H
#define CMD_PLAN_TIME_H

#include <cjson/cJSON.h>

#include "config/cluster.h"
#include "plan/fit.h"
#include "plan/plan.h"

/* As many as a job may have. */
#define N_RANKS_MAX 1000000

/* Whether the plan fits the device, and if not, which changes of the job make it fit, up to so many
 * ranks. */
void plan_print_fit(const struct plan *plan, const struct plan_fit *fit, const char *device,
                    int n_ranks_max, struct str *out);

/* The time of a step, what it goes into, and whether the job fits. 0, 2 if it does not fit (it says
 * what does not), or -1. */
int plan_print_time(const struct plan *plan, const struct cluster *cluster, struct str *out,
                    struct err *err);

/* The same as "predicted" of the JSON. */
int plan_add_time(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                  struct err *err);

#endif
