/*
 * supervise.h - the head of a job: starts ranks through one daemon per node, monitors them,
 * terminates them together
 *
 * The head decides; daemons (daemon.h) execute. On the head's machine the daemon is a forked child,
 * so that the PMIx server (one per process) exits with it, and its files are removed even if the
 * head is killed.
 */
#ifndef LAUNCH_SUPERVISE_H
#define LAUNCH_SUPERVISE_H

#include <stdint.h>

#include "base/err.h"
#include "launch/remote/hosts.h"

struct supervise_options {
    int n_ranks;
    char *const *argv;             /* command of each rank; argv[0] is replaced by this binary */
    const char *log_folder;        /* rank-N.log in it; NULL: no logs */
    double hang_seconds;           /* report a rank without progress for this time; 0: never */
    double hang_abort_seconds;     /* end the job after this time; 0: never */
    const struct host_list *hosts; /* NULL: this machine */
    const char *hosts_text;        /* read again before each restart; NULL: hosts stays */
    int n_spares;                  /* so many hosts are kept to replace others */
    const char *output;            /* run folder with excluded_hosts (excluded.h); NULL: none */
    /* Not NULL: ranks have nothing to save. The first SIGINT, SIGTERM or SIGHUP terminates them
     * immediately, with this message and the shell's exit status of that signal. */
    const char *stop_words;
    const char *const *srun_args; /* further arguments of srun (slurm_check_args) */
    int n_srun_args;
    int n_restarts; /* maximum number of restarts after the failure of a rank or node */

    /*
     * Called before each restart, and before the first attempt if hosts are excluded: fit the job
     * to at most n_possible ranks, for which the hosts in use have room (fewer than n_ranks if one
     * was lost, more if some were added). Returns the number of ranks and their command, or 0 and
     * err if impossible. NULL: unchanged, if n_possible suffices.
     */
    int (*again)(void *context, int attempt, int n_possible, char *const **argv, struct err *err);

    /*
     * Called when an attempt has ended, for what a run's record should have: "hung" (the first hang
     * that was reported) and "died" (the cause of its failure; not for a stop that was asked for).
     * step: the highest of all ranks, -1 if none has begun one; at: seconds of Unix time. NULL: not
     * recorded.
     */
    void (*on_trouble)(void *context, const char *event, int64_t step, double at, const char *text);
    void *context;
};

/*
 * Run the ranks until all have exited. Output of rank 0 goes to stdout and stderr of this process
 * (a terminal stays a terminal if rank 0 is on this machine), output of others to their logs, and
 * their error lines to stderr with the prefix "rank N: ". SIGTERM, SIGINT and SIGUSR1 are
 * forwarded, SIGHUP as SIGTERM unless it is ignored; a second signal other than SIGUSR1 kills the
 * ranks. If a rank fails, the others are terminated within a second (3 across nodes) and the first
 * cause is reported: rank, host, signal or status, current op. No file in /dev/shm or /tmp and no
 * process remains, whichever process is killed.
 *
 * The job is restarted after failures that may not recur: a signal, an abort, an exit without
 * launch_leave, no progress, ERR_PEER, a lost node; not after statuses 1, 2, 3 and 4.
 * Which hosts a restart uses is decided again (host_pool_impl.h): hosts that came back or were
 * added are taken in.
 *
 * Returns the job's exit status: 0; the first failing rank's own status; 5 when it was killed by a
 * signal or made no progress, 134 when it was SIGABRT (a bug, CHECK); 1 when it exited 0 without
 * launch_leave; 75 when all saved and asked to be requeued. -1 with err set if the ranks could not
 * be started. Call it from the main thread: ranks are terminated when that thread dies.
 */
int supervise(const struct supervise_options *options, struct err *err);

#endif
