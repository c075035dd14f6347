/*
 * plan_calibrate.h - `lmtrain plan --calibrate`: one factor from one measured step
 */
#ifndef CMD_PLAN_CALIBRATE_H
#define CMD_PLAN_CALIBRATE_H

#include "base/str.h"
#include "config/cluster.h"
#include "plan/plan.h"

/*
 * Append the factor of products and attention with which a step of the plan takes so many seconds
 * on the cluster, as a line of its file; if the cluster is named by its path, the line is put into
 * that file. Returns 0, or -1 and ERR_CONFIG where no factor from 0.1 to 10 does.
 */
int plan_calibrate(const struct plan *plan, const struct cluster *cluster, double seconds,
                   struct str *out, struct err *err);

#endif
