/*
 * fault.h - faults on demand, for tests and for those who want to see what happens
 *
 * LMTRAIN_FAULT is a comma-separated list of RULEs: [attemptN:]rankR:PLACE[:ACTION], where PLACE is
 * one of the places below, "stepN" standing for step:N. A rule fires once, in the given attempt of
 * a job that restarts (0 when left out). ACTION: sigkill (when left out), sigterm, segv, abort,
 * exit (status 1, without leaving), stop (SIGSTOP), stall (sleeps for ever), nan, flip.
 *
 * Places: start, joined, step:N (before it), gradients:N (before step N's update), save:begin,
 * save:before_rename, save:renamed, save:before_manifest, save:committed.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdint.h>

#include "base/err.h"

/* What the caller must do itself. */
enum fault { FAULT_NONE, FAULT_NAN, FAULT_FLIP };

/*
 * Read LMTRAIN_FAULT for this rank and attempt; ERR_CONFIG for a rule that cannot be read, listing
 * what can be. Without the variable nothing ever fires and fault_at costs one load.
 */
int fault_init(int world_rank, int attempt, struct err *err);

/* At place, number index (0 where there is none): do what the rules say. */
enum fault fault_at(const char *place, int64_t index);

#endif
