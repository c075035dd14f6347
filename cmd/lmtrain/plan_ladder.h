/*
 * plan_ladder.h - `lmtrain plan --ladder`: what a job takes at budgets of device memory
 */
#ifndef CMD_PLAN_LADDER_H
#define CMD_PLAN_LADDER_H

#include "base/str.h"
#include "plan_subject.h"

/*
 * A table of budgets (plan/memory_ladder.h), or the same as JSON: what stays, what goes, the time
 * that it adds, and tokens a second on the subject's cluster if there is one. A job that leaves
 * nothing open is looked at with memory.offload: auto and recompute: auto. Returns 0, or -1.
 */
int plan_ladder(const struct plan_subject *subject, bool as_json, struct str *out, struct err *err);

#endif
