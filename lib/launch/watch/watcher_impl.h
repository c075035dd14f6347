/*
 * watcher_impl.h - the watcher's process, and how the rank that forked it leaves
 */
#ifndef LAUNCH_WATCH_WATCHER_IMPL_H
#define LAUNCH_WATCH_WATCHER_IMPL_H

#include "launch/watch/watch_page_impl.h"
#include "launch/watch/watcher.h"

/* What rank 0 publishes for the watchers of several nodes: 64 random bits. */
#define WATCHER_ID_KEY "lmtrain.launch-id"

struct watcher_start {
    struct watch_page *page;
    const char *path; /* the page's */
    int lock_fd;      /* keeps the page ours */
    int wake_fd;      /* readable, or closed, when a rank leaves */
    pid_t launcher;   /* who started the first rank: mpirun, orted, slurmstepd */
    struct watcher_options options;
};

/* Watch until the last rank has ended or left. In a forked child; exits the process. */
void watcher_run(const struct watcher_start *start) __attribute__((noreturn));

/*
 * This rank has left: its folder in shared memory is removed, and if the watcher is our child, it
 * may end before us. Waits a second at most.
 */
void watcher_leave(void);

#endif
