/*
 * lr.h - the learning rate of a step
 *
 * Linear warm-up from 0 over warmup_steps (step 0 has lr / warmup_steps), then by schedule to
 * min_lr at the last step: constant; linear; cosine (half a period; Loshchilov & Hutter 2017, eq.
 * 5), both in equal cycles that begin with lr again; wsd, which is constant until the last
 * decay_steps and then falls by decay_shape (Hu et al. 2024, "MiniCPM"; Haegele et al. 2024 for
 * 1-sqrt). inverse_sqrt falls as 1 / sqrt(step) for as long as the run goes (Vaswani et al. 2017,
 * eq. 3; Raffel et al. 2020, section 3.1.2), and min_lr bounds it. Behind warm-up all are what
 * transformers' schedules of these names give for num_training_steps = steps - 1.
 */
#ifndef TRAIN_LR_H
#define TRAIN_LR_H

#include <stdbool.h>

#include "base/str.h"
#include "config/job.h"

/* For step 0 .. steps - 1. */
double lr_at(const struct job *job, int64_t step);

/*
 * Append the learning rates of at most 33 steps, evenly from the first to the last: a line with a
 * bar each, or a list of JSON. Steps count from 1 there, as in metrics. train.steps is known.
 */
void lr_print(const struct job *job, bool json, struct str *out);

#endif
