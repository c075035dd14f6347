/*
 * suggest.h - what would fit, when a job's plan does not
 *
 * Planning is pure and takes milliseconds, so that alternatives are really planned and their sizes
 * said, instead of advice in general.
 */
#ifndef PLAN_SUGGEST_H
#define PLAN_SUGGEST_H

#include "base/str.h"
#include "config/job.h"
#include "kernels/kernels.h"

/*
 * Refuse a plan of `planned` bytes a rank where fewer are available (0: it is not known). Returns
 * 0, or -1 and ERR_DEVICE with the changes of the resolved job that bring it under that, each with
 * the bytes that it then takes: "recompute: full takes 1.2 GiB, or train.micro_batch: 2 takes
 * 900 MiB". Where none does, with what the smallest of them takes.
 */
int suggest_check(const struct job *job, struct kernels *kernels, size_t planned, size_t available,
                  struct err *err);

/*
 * Append the changes of the resolved job that bring a plan of `planned` bytes a rank under
 * `available`: "recompute: full needs 1.2 GiB, or train.micro_batch: 2 needs 900 MiB"; or that none
 * does. Alternatives are compiled: milliseconds each.
 */
void suggest_changes(const struct job *job, struct kernels *kernels, size_t planned,
                     size_t available, struct str *out);

#endif
