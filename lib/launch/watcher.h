/*
 * watcher.h - who watches the ranks of a node when the launcher is not ours (srun, mpirun)
 *
 * The node's first rank makes the progress page and forks a watcher before PMIx, MPI or any thread
 * exists in it. The watcher reports hangs of its node's ranks, ends them after hang_abort_seconds,
 * names a rank that died, and ends with the last of them, leaving nothing behind.
 */
#ifndef LAUNCH_WATCHER_H
#define LAUNCH_WATCHER_H

#include "base/err.h"

struct watcher_options {
    double hang_seconds, hang_abort_seconds; /* 0 never */
    const char *log_folder;                  /* ranks but 0 write to rank-N.log in it; NULL: none */
};

/*
 * To be called by every rank before launch_join. Under our own supervisor, and for a process that
 * is no rank, it does nothing. Returns 0, or -1 and ERR_FAILED.
 */
int watcher_start(const struct watcher_options *options, struct err *err);

/*
 * After launch_join: this rank takes its slot, the page's name vanishes once all have it, and the
 * output of ranks but 0 goes to their log with warnings and errors also on the screen, "rank N: "
 * in front.
 */
int watcher_join(int world_rank, int local_rank, int local_size, struct err *err);

#endif
