/*
 * fit.h - what would fit, when a job's plan does not
 *
 * Planning is pure and takes milliseconds, so that alternatives are really planned and their sizes
 * said, instead of advice in general.
 */
#ifndef TRAIN_FIT_H
#define TRAIN_FIT_H

#include "base/str.h"
#include "config/job.h"
#include "kernels/kernels.h"

/*
 * Add to out which changes of a resolved job bring its plan of `planned` bytes a rank under
 * `available`, each with the bytes that it then takes: "recompute: full takes 1.2 GiB, or
 * train.micro_batch: 2 takes 900 MiB". Where none does, what the smallest of them takes.
 */
void fit_describe(const struct job *job, struct kernels *kernels, size_t planned, size_t available,
                  struct str *out);

#endif
