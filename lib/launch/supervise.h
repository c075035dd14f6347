/*
 * supervise.h - start ranks under our own PMIx server, watch them, end them together
 */
#ifndef LAUNCH_SUPERVISE_H
#define LAUNCH_SUPERVISE_H

#include "base/err.h"

struct supervise_options {
    int n_ranks;
    char *const *argv;         /* what each rank runs: argv[0] is looked up as this very binary */
    const char *log_folder;    /* rank-N.log in it; NULL: no logs */
    double hang_seconds;       /* report a rank without progress for so long; 0 never */
    double hang_abort_seconds; /* end the job after so long; 0 never */
};

/*
 * Run the ranks to their end. Rank 0's output goes to our stdout and stderr as it is (a terminal
 * stays one), that of others to their logs, and their error lines to our stderr with "rank N: " in
 * front. SIGTERM, SIGINT and SIGUSR1 are passed on; a second SIGTERM or SIGINT kills. When a rank
 * fails, the others are ended within a second and the first cause is reported: rank, host, signal
 * or status, what it was doing. Nothing is left in /dev/shm, /tmp or the process table.
 *
 * Returns the job's exit status: 0; the first failing rank's own status; 5 when it was killed by a
 * signal or made no progress, 134 when it was SIGABRT (a bug, CHECK); 1 when it exited 0 without
 * launch_leave; 75 when all saved and asked to be requeued. -1 with err set if the ranks could not
 * be started. Call it from the main thread, whose death is what ends the ranks, and once a process:
 * PMIx's server cannot be ended and begun anew.
 */
int supervise(const struct supervise_options *options, struct err *err);

#endif
