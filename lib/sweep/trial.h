/*
 * trial.h - the process of a trial: a training command of this binary, on a share of the machine
 */
#ifndef SWEEP_TRIAL_H
#define SWEEP_TRIAL_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

struct trial_place {
    int n_cores; /* hardware threads that its processes may use; 0: all that we may */
    const int *cores;
    const char *gpus; /* $CUDA_VISIBLE_DEVICES, or NULL: as ours */
};

/*
 * Start argv (ended by NULL) as the leader of a process group of its own, with its output behind
 * that of earlier ones in the file `log`, and no input. It gets SIGTERM when the thread that called
 * this ends, so that trials of a sweep that was killed save and end, too. Signals that the caller
 * has blocked are not blocked in it. Returns its process, or -1 and ERR_FAILED.
 */
pid_t trial_start(const char *const *argv, const struct trial_place *place, const char *log,
                  struct err *err);

/*
 * Whether it has ended: then 1 and its exit status, or 128 and the signal, in *status. What is left
 * of its process group is killed.
 */
int trial_ended(pid_t process, int *status);

/* The last line that a trial wrote, without "lmtrain: ", printable; "" if there is none. */
void trial_last_line(const char *log, char *text, size_t size);

#endif
