/*
 * space.h - the trials of a sweep: how many, and the settings of each
 *
 * A trial's settings are a pure function of the job's sweep.* and the trial's number: random values
 * are Philox numbers keyed by sweep.seed, the key and the trial (base/rng.h), so that trial 7 is
 * the same whatever was run before it, and after sweep.trials was raised. Numbers that are no whole
 * ones have at most 6 digits: so they are the same with any C library's logarithm.
 */
#ifndef SWEEP_SPACE_H
#define SWEEP_SPACE_H

#include <stdint.h>

#include "config/job.h"

/* Of a job that was checked. */
int space_n_trials(const struct job *job);

/* The settings of a trial, in the order of sweep.parameters; values are YAML that is JSON as well.
 * In the arena. */
void space_settings(const struct job *job, int trial, struct sweep_row *out, struct arena *arena);

/*
 * The steps at which trials are compared, ascending, in the arena; the last one is train.steps (0:
 * not known before the data is read). One where nothing is stopped early. asha: min_steps * eta^k,
 * median: multiples of min_steps. Returns how many.
 */
int space_rungs(const struct job *job, const int64_t **steps, struct arena *arena);

#endif
