/*
 * supervise.h - the head of a job: starts ranks through one daemon a node, watches, ends them
 * together
 *
 * The head decides; daemons (daemon.h) act. On its own machine the daemon is a forked child, so
 * that PMIx's server, of which a process can have but one, goes with it, and what it made is
 * removed even when the head is killed.
 */
#ifndef LAUNCH_SUPERVISE_H
#define LAUNCH_SUPERVISE_H

#include "base/err.h"
#include "launch/hosts.h"

struct supervise_options {
    int n_ranks;
    char *const *argv;         /* what each rank runs: argv[0] is looked up as this very binary */
    const char *log_folder;    /* rank-N.log in it; NULL: no logs */
    double hang_seconds;       /* report a rank without progress for so long; 0 never */
    double hang_abort_seconds; /* end the job after so long; 0 never */
    const struct host_list *hosts; /* NULL: this machine */
    /* Not NULL: ranks have nothing to save. The first SIGINT, SIGTERM or SIGHUP ends them at once,
     * with these words and the status that a shell gives to that signal. */
    const char *stop_words;
    int n_restarts; /* after a rank's or a node's death, start again so often */

    /*
     * Asked before each restart: how the job can run on at most n_possible ranks (fewer than
     * n_ranks when a node is gone). Returns the number of ranks and what they run, or 0 with err:
     * it cannot. NULL: the same again, if n_possible suffices.
     */
    int (*again)(void *context, int n_possible, char *const **argv, struct err *err);
    void *context;
};

/*
 * Run the ranks to their end. Rank 0's output goes to our stdout and stderr as it is (a terminal
 * stays one, when it is a rank of this machine), that of others to their logs, and their error
 * lines to our stderr with "rank N: " in front. SIGTERM, SIGINT and SIGUSR1 are passed on, SIGHUP
 * as SIGTERM unless we were started to ignore it; a second of these but SIGUSR1 kills. When a rank
 * fails, the others are ended within a second (3 across nodes) and the first cause is reported:
 * rank, host, signal or status, what it was doing. Nothing is left in /dev/shm, /tmp or the process
 * table, whoever is killed.
 *
 * A restart follows a death that is no verdict: a signal, an abort, an exit without leaving, no
 * progress, ERR_PEER, a lost node. Statuses 1, 2, 3 and 4 would come again.
 *
 * Returns the job's exit status: 0; the first failing rank's own status; 5 when it was killed by a
 * signal or made no progress, 134 when it was SIGABRT (a bug, CHECK); 1 when it exited 0 without
 * launch_leave; 75 when all saved and asked to be requeued. -1 with err set if the ranks could not
 * be started. Call it from the main thread, whose death is what ends the ranks.
 */
int supervise(const struct supervise_options *options, struct err *err);

#endif
