/*
 * rank_process_impl.h - one rank as a child process
 *
 * It leads a process group of its own, so that what it starts ends with it, and is killed by the
 * system when the supervisor dies.
 */
#ifndef LAUNCH_NODE_RANK_PROCESS_IMPL_H
#define LAUNCH_NODE_RANK_PROCESS_IMPL_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

struct rank_process {
    pid_t pid; /* 0 before it is started */
    bool running;
    int wait_status; /* as of waitpid, once it is not running */
};

/*
 * Run this very binary with argv and environment, stdin from /dev/null, stdout and stderr on fds,
 * without core files, with no signal blocked and, but for SIGTTOU, none newly ignored.
 */
int rank_process_start(struct rank_process *process, char *const *argv, char *const *environment,
                       const int fds[2], struct err *err);

/* To the rank alone. */
void rank_process_signal(const struct rank_process *process, int signal);

/* To the rank and all that it started. */
void rank_process_signal_group(const struct rank_process *process, int signal);

/*
 * If it has ended: kill what is left of its group, take its status, return 1. Else 0; never waits.
 */
int rank_process_reap(struct rank_process *process);

/* The letter of its state in /proc (R, S, T, ...), or 0. */
char rank_process_state(const struct rank_process *process);

#endif
