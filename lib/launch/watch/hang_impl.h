/*
 * hang_impl.h - ranks that make no progress
 *
 * Every rank's beat is looked at now and then. A rank whose beat stands still for long is reported
 * together with where all others are, also one that has not begun yet. That all processes are
 * stopped (scontrol suspend, Ctrl-Z) is no hang: their clocks start anew. Used by the head over all
 * nodes, and by the watcher of a node under srun and mpirun (watcher.h) over its own.
 */
#ifndef LAUNCH_WATCH_HANG_IMPL_H
#define LAUNCH_WATCH_HANG_IMPL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/str.h"
#include "progress/progress_page.h"

/* One rank as its watcher sees it; the owner keeps it up to date before each look. */
struct hang_rank {
    int world_rank;
    const char *host;
    pid_t pid;
    bool running;
    bool stopped;                     /* by a signal: state T */
    const struct progress_slot *slot; /* the live one, or a copy that came over a link */
};

struct hang_watch {
    int n_ranks;
    const struct hang_rank *ranks; /* borrowed */
    double last_look;
    uint64_t *beats;
    double *since;  /* when each beat was first seen */
    int world_size; /* more than n_ranks: others are watched elsewhere; 0: these are all */
};

void hang_watch_init(struct hang_watch *watch, int n_ranks, const struct hang_rank *ranks,
                     double now);
void hang_watch_release(struct hang_watch *watch);

/* Start all clocks anew: nobody could move. */
void hang_watch_restart(struct hang_watch *watch, double now);

/* The same for the rank at an index, which cannot be seen at present. */
void hang_watch_restart_rank(struct hang_watch *watch, int rank, double now);

/*
 * Look at the beats; returns for how long the rank to blame has stood still. *culprit becomes its
 * index: of those that wait for nobody who is still under way, the one that stands longest; if all
 * wait, the one that is furthest behind; -1 if nobody stands for long enough to be looked at. Who
 * waits for a rank that makes progress, however slowly, does not hang.
 */
double hang_watch_look(struct hang_watch *watch, double now, int *culprit);

/*
 * Lines for people: what each rank does and since when, those that don't wait for others first, and
 * of those that wait, for whom (design.md §5): "rank 13 waits in reduce_scatter dp ... since 31.0
 * s; rank 12 has not reached it: it is in attention layers.9, step 7, micro-batch 3". Then, where they are
 * known, how the GPUs of some ranks are, hot and broken ones first.
 */
void hang_watch_report(const struct hang_watch *watch, double now, struct str *text);

#endif
