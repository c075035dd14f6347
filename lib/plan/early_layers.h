/*
 * early_layers.h - how many layers of a stage are recomputed while the gradient of its output is
 * under way (RiPipe), where memory.recompute_early is auto
 *
 * What that hides is the time that a stage waits for others, which depends on the schedule, the
 * links and the kernels. More layers fill more of it, and keep more until the gradient comes: so a
 * step with as many as fit a rank's device (all, half of them, a quarter, ...) is simulated and
 * held against one with none. Without prices there are none: on links and stages that hide nothing
 * it costs some per cent (bench/results/net.md).
 */
#ifndef PLAN_EARLY_LAYERS_H
#define PLAN_EARLY_LAYERS_H

#include <stdbool.h>

#include "base/arena.h"
#include "config/job.h"
#include "kernels/kernels.h"

/* Whether there is something to choose, and prices to choose it by: the job recomputes as it says
 * on several stages, and has a cluster. */
bool early_layers_are_open(const struct job *job);

/*
 * The number for this resolved job. limits: [pp] bytes of a rank's segments, which no number but 0
 * exceeds; NULL, or 0 of a rank: none. The same on all ranks that have the same job, files and
 * limits. Returns 0, or -1: a program cannot be compiled.
 */
int early_layers_find(int *n_layers, const struct job *job, struct kernels *kernels,
                      const int64_t *limits, struct err *err);

#endif
