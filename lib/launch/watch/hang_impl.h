/*
 * hang_impl.h - ranks that make no progress
 *
 * Every rank's beat is compared with its last value a few times a second. If a rank's beat has not
 * changed for too long, also before its first step, it is reported together with what all others
 * do. If all processes are stopped (scontrol suspend, Ctrl-Z), that is no hang, and their clocks
 * are restarted. Used by the head for all nodes, and by the watcher of a node under srun and mpirun
 * (watcher.h) for its own.
 */
#ifndef LAUNCH_WATCH_HANG_IMPL_H
#define LAUNCH_WATCH_HANG_IMPL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/str.h"
#include "progress/progress_page.h"

/* One rank; the caller updates it before each hang_watch_look. */
struct hang_rank {
    int world_rank;
    const char *host;
    pid_t pid;
    bool running;
    bool stopped;                     /* by a signal: state T */
    const struct progress_slot *slot; /* the live one, or a copy received over a link */
};

struct hang_watch {
    int n_ranks;
    const struct hang_rank *ranks; /* borrowed */
    double last_look;
    uint64_t *beats;
    double *since;  /* when each beat last changed */
    int world_size; /* above n_ranks: other nodes have watchers of their own; 0: these are all */
};

void hang_watch_init(struct hang_watch *watch, int n_ranks, const struct hang_rank *ranks,
                     double now);
void hang_watch_release(struct hang_watch *watch);

/* Restart all clocks: the time until now does not count. */
void hang_watch_restart(struct hang_watch *watch, double now);

/* The same for the rank at an index, of which there is no current state. */
void hang_watch_restart_rank(struct hang_watch *watch, int rank, double now);

/*
 * Compare the beats; returns for how long the culprit has made no progress. *culprit is its index:
 * of the ranks that wait for none that has yet to arrive, the one without progress for longest; if
 * those wait, too, the one that is furthest behind; -1 if all made progress in the last half
 * second. A rank that waits for one that makes progress, however slowly, does not hang.
 */
double hang_watch_look(struct hang_watch *watch, double now, int *culprit);

/*
 * Lines for the user: what each rank does and since when, those that do not wait first, and for
 * which ranks the others wait (design.md §5): "rank 13 waits in reduce_scatter dp ... since 31.0 s;
 * rank 12 has not reached it: it is in attention layers.9, step 7, micro-batch 3". Then, where they
 * are known, how the GPUs of some ranks are, hot and broken ones first.
 */
void hang_watch_report(const struct hang_watch *watch, double now, struct str *text);

#endif
