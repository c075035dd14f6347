/*
 * trial.h - the process of a trial: a training command of this binary, on a share of the machine
 */
#ifndef SWEEP_TRIAL_H
#define SWEEP_TRIAL_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

/* Of the environment of its processes. */
struct trial_variable {
    const char *name, *value; /* value NULL: it is not set */
};

enum { TRIAL_VARIABLES_MAX = 4 };

struct trial_place {
    int n_cores; /* hardware threads that its processes may use; 0: all that we may */
    const int *cores;
    struct trial_variable
        variables[TRIAL_VARIABLES_MAX]; /* what differs from ours: its GPUs, ... */
    int n_variables;
};

/*
 * Start argv (ended by NULL) as the leader of a process group of its own, with its output behind
 * that of earlier ones in the file `log`, and no input. It gets SIGTERM when the thread that called
 * this ends, so that trials of a sweep that was killed save and end, too. Signals that the caller
 * has blocked are not blocked in it. `log` is locked (flock) from its first moment until the last
 * process that writes there ends, if processes of an earlier start let go of it within a second.
 * Returns its process, or -1 and ERR_FAILED.
 */
pid_t trial_start(const char *const *argv, const struct trial_place *place, const char *log,
                  struct err *err);

/*
 * Whether it has ended: then 1 and its exit status, or 128 and the signal, in *status. What is left
 * of its process group is killed.
 */
int trial_ended(pid_t process, int *status);

/*
 * Whether a trial that ended with this status died (a signal, a rank or node that was lost), so
 * that it may end otherwise if it is started again: its job, its data and its machine were not
 * refused.
 */
bool trial_died(int status);

/*
 * The last line that a trial wrote, without "lmtrain: error: ", printable; "" if there is none. Of
 * a rank that died it is the line that says how.
 */
void trial_last_line(const char *log, char *text, size_t size);

#endif
