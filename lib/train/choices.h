/*
 * choices.h - the algorithms that a vendor's library chose for a run, kept with the run
 *
 * Which algorithm a product gets decides its bits, and another version of the library may choose
 * otherwise; so what was chosen first (by its heuristics, per shape) is written to
 * OUTPUT/kernels.txt and given to the kernels before they are prepared again. The CPU's kernels
 * choose nothing: no file is made then.
 */
#ifndef TRAIN_CHOICES_H
#define TRAIN_CHOICES_H

#include "config/job.h"
#include "kernels/kernels.h"

/*
 * On every rank, before its kernels are prepared: take up what the run's folder has. Choices of
 * another version of the library are told of and made anew: the numerics differ then, and say so.
 */
void choices_recall(const struct job *job, struct kernels *kernels);

/* On one rank, once all are prepared. Returns 0, or -1 and ERR_FAILED. */
int choices_keep(const struct job *job, struct kernels *kernels, struct err *err);

#endif
