/*
 * plan_hidden.h - `lmtrain plan`: what of a predicted step's communication and recomputation hides
 * behind other work because the job asks for it
 */
#ifndef CMD_PLAN_HIDDEN_H
#define CMD_PLAN_HIDDEN_H

#include <cjson/cJSON.h>

#include "config/cluster.h"
#include "plan/plan.h"

/* A line for each of these that the job has. Returns 0, or -1 and ERR_FAILED. */
int plan_print_hidden(const struct plan *plan, const struct cluster *cluster, struct str *out,
                      struct err *err);

/* The same as members of the JSON's "predicted". */
int plan_add_hidden(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                    struct err *err);

#endif
