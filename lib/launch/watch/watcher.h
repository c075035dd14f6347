/*
 * watcher.h - the process that monitors the ranks of a node under srun and mpirun
 *
 * The first rank of a node that starts makes the progress page (watch_page_impl.h) and forks a
 * watcher before PMIx, MPI or any thread exists in it. The watcher reports hangs of its node's
 * ranks and ends them after hang_abort_seconds, names a rank that died and ends the others of its
 * node half a second later (not every launcher does), as it does when the launcher itself is gone,
 * and ends with the last of them, leaving nothing behind: each rank has a folder in shared memory
 * for Open MPI's files, and if the launcher was killed its folder in /tmp goes too. Its messages go
 * to the first rank's stderr and to the log folder's watcher-HOST.log.
 *
 * Of other nodes it knows only the deaths that their watchers post in the log folder, which it
 * reads once a second. If all its ranks wait for ranks of other nodes, it reports that, and
 * terminates them only after twice hang_abort_seconds: by then the watcher of the rank that hangs
 * should have done so.
 */
#ifndef LAUNCH_WATCH_WATCHER_H
#define LAUNCH_WATCH_WATCHER_H

#include <stdint.h>

#include "base/err.h"
#include "launch/launch.h"

struct watcher_options {
    double hang_seconds, hang_abort_seconds; /* 0 never */
    const char *log_folder; /* ranks but 0 write to rank-N.log in it; NULL: none. Copied */
    const char
        *status_folder; /* for what `lmtrain watch` reads (status_file.h); NULL: none. Copied */
    /*
     * For the run's record, as that of supervise.h: "hung", once on rank 0's node, and on that of
     * the rank that is behind; "died", on the node that sees the first
     * death. Called in a thread of the watcher's process, which has the caller's memory as it was
     * at watcher_start. NULL: not recorded.
     */
    void (*on_trouble)(void *context, const char *event, int64_t step, double at, const char *text);
    void *context;
};

/*
 * To be called by every rank before launch_join, without other threads. Under our own supervisor,
 * and for a process that is no rank, it does nothing. Without a watcher (no memory, a folder that
 * cannot be written) a warning is logged and the job continues. Returns 0, or -1 and ERR_FAILED.
 */
int watcher_start(const struct watcher_options *options, struct err *err);

/*
 * After launch_join: ERR_DEVICE where shared memory is too small for this node's ranks
 * (shm_space.h). The page's name vanishes once all of them are here, and the output
 * of ranks but 0 goes to their log, with warnings and errors also on the screen, "rank N: " in
 * front. Under our own supervisor it does nothing.
 */
int watcher_join(const struct launch_rank *rank, struct err *err);

/*
 * After MPI's start, when ranks have each other's files mapped: their names go, so that nothing is
 * left even if the launcher kills ranks and watcher at once, as Slurm does.
 */
void watcher_settle(void);

/*
 * Before MPI's end, which removes those names itself and complains at length where there are none:
 * empty files by these names. watcher_settle again, after it, removes what is left.
 */
void watcher_unsettle(void);

#endif
