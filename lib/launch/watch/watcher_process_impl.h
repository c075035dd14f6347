/*
 * watcher_process_impl.h - the state of a node's watcher, and the parts of its loop
 *
 * watcher_process.c has the loop: it finds ranks, waits for events and terminates ranks.
 * watcher_deaths.c finds ranks that ended, and exchanges death notices with other nodes;
 * watcher_hangs.c finds ranks that make no progress or have lost their GPU; watcher_status.c writes
 * what they do for `lmtrain watch`; watcher_record.c has hangs and deaths recorded in the run's
 * metrics.jsonl; watcher_logs.c writes the watcher's log and reads those of the ranks.
 */
#ifndef LAUNCH_WATCH_WATCHER_PROCESS_IMPL_H
#define LAUNCH_WATCH_WATCHER_PROCESS_IMPL_H

#include <poll.h>

#include "launch/death_impl.h"
#include "launch/watch/death_notices_impl.h"
#include "launch/watch/hang_impl.h"
#include "launch/watch/rank_gpu_impl.h"
#include "launch/watch/watcher_impl.h"
#include "progress/status_file.h"

enum { WATCHER_TAIL_BYTES = 1024 };

#define WATCHER_NOTICE_SECONDS 0.2 /* waits for the log folder, to write or read notices */
#define WATCHER_GRACE_SECONDS 0.5  /* from a death to the termination of the other ranks */

struct watcher {
    const struct watcher_start *start;
    struct watch_page *page;
    char host[64];
    int signal_fd;
    int wake_fd;     /* -1 once the first rank is gone */
    int launcher_fd; /* readable once the launcher has ended; -1: that is known, or cannot be */
    int n;           /* ranks seen */
    struct hang_rank ranks[WATCH_RANKS_MAX];
    int pidfds[WATCH_RANKS_MAX];
    struct pollfd polls[WATCH_RANKS_MAX + 3];
    struct hang_watch hang;
    bool hang_reported;
    bool has_log;       /* or could not have one */
    bool terminated;    /* SIGTERM came */
    int n_told, n_more; /* deaths */
    double end_at;      /* begin to end the ranks; 0: not wanted */
    enum { WATCHING, ENDING, KILLED } phase;
    double ending_since;
    double left_at;                    /* the last time that a rank left */
    struct death_notices *notices;     /* with other nodes; NULL: there are none, or not yet */
    bool has_notices;                  /* or could not have */
    struct gpu_watch *gpus;            /* NULL: no rank has a GPU, so far */
    bool gpu_is_told[WATCH_RANKS_MAX]; /* that it is broken */
    uint64_t beats;                    /* of all ranks, at the last look at GPUs */
    double still_since;                /* when they last changed, or a GPU broke */
    struct status_file *status;        /* NULL: none, or not yet */
    uint64_t heard_beats[WATCH_RANKS_MAX];
    double heard_at[WATCH_RANKS_MAX]; /* when each rank's beat had changed */
    struct watcher_record *record;    /* NULL: nothing to record yet */
    bool has_recorded_hang;
};

/* ---- watcher_process.c ---- */

/* Ask the ranks to end (SIGUSR2); the loop sends SIGKILL later. Again: no effect. */
void watcher_begin_ending(struct watcher *w, double now);

/* ---- watcher_deaths.c ---- */

/* Open the notices of other nodes, once the ranks have published the launch's number. */
void watcher_open_notices(struct watcher *w);

/* A death of rank i of this node, without what only some kinds have. */
struct death watcher_death_of(const struct watcher *w, int i, enum death_kind kind);

/*
 * Tell the other nodes' watchers why the ranks of this node are about to end, so that ranks that
 * wait for them end, too. Only the first cause is sent.
 */
void watcher_post_notice(const struct watcher *w, const struct death *death);

/* Report a death, post a notice of it, and terminate the ranks. */
void watcher_terminate(struct watcher *w, const struct death *death, double now);

/*
 * Terminate the ranks if another node's watcher has posted a notice; waits up to wait_seconds for
 * one.
 */
void watcher_read_notices(struct watcher *w, double now, double wait_seconds);

/* Find ranks that ended, and report the first death. Returns how many run and have not left. */
int watcher_take_ends(struct watcher *w, double now);

/* ---- watcher_hangs.c ---- */

/* Report ranks without progress, and terminate the ranks after hang_abort_seconds. */
void watcher_watch_hangs(struct watcher *w, double now);

/* Update the ranks' GPUs in their slots; terminate the ranks if one has lost its GPU and hangs. */
void watcher_look_at_gpus(struct watcher *w, double now);

/* ---- watcher_status.c ---- */

/* What the ranks of this node do, into the run folder's status; once a second. */
void watcher_put_status(struct watcher *w, double now);

/* ---- watcher_record.c ---- */

/*
 * Have on_trouble called, by a thread: of the first hang, and of a death that is not known to be a
 * consequence of another, after its notice was posted. After a SIGTERM nothing is recorded: the
 * launcher ends the job.
 */
void watcher_record_hang(struct watcher *w, const char *text);
void watcher_record_death(struct watcher *w, const struct death *death);

/* Returns once that is done, or after `seconds`. */
void watcher_flush_record(struct watcher *w, double seconds);

/* ---- watcher_logs.c ---- */

/*
 * From now on messages are also written to watcher-HOST.log: the screen may vanish with the
 * launcher.
 */
void watcher_open_log(struct watcher *w);

/* The last lines of rank i's log, as far as this job wrote them; "" without a log. */
void watcher_read_tail(const struct watcher *w, int i, char text[WATCHER_TAIL_BYTES + 1]);

/* Cut ranks' logs that have become too long (log_file.h). */
void watcher_bound_logs(struct watcher *w);

#endif
