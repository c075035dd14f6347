/*
 * lr.h - the learning rate of a step
 *
 * Linear warm-up from 0 over warmup_steps (step 0 has lr / warmup_steps), then by schedule to
 * min_lr at the last step: constant; linear; cosine (half a period; Loshchilov & Hutter 2017, eq.
 * 5); wsd, which is constant until the last decay_steps and then falls linearly (Hu et al. 2024,
 * "MiniCPM").
 */
#ifndef TRAIN_LR_H
#define TRAIN_LR_H

#include "config/job.h"

/* For step 0 .. steps - 1. */
double lr_at(const struct job *job, int64_t step);

#endif
