/*
 * hang_impl.h - ranks that make no progress
 *
 * Every rank's beat is looked at now and then. A rank that has begun (beat above 0) and whose beat
 * stands still for long is reported together with where all others are. That all processes are
 * stopped (scontrol suspend, Ctrl-Z) is no hang: their clocks start anew.
 */
#ifndef LAUNCH_HANG_IMPL_H
#define LAUNCH_HANG_IMPL_H

#include <stdint.h>

#include "base/str.h"
#include "launch/progress_impl.h"
#include "launch/rank_process_impl.h"

struct hang_watch {
    int n_ranks;
    const union progress_place *page;
    const struct rank_process *processes;
    double last_look;
    uint64_t *beats;
    double *since; /* when each beat was first seen */
};

void hang_watch_init(struct hang_watch *watch, int n_ranks, const union progress_place *page,
                     const struct rank_process *processes, double now);
void hang_watch_release(struct hang_watch *watch);

/* Start all clocks anew: nobody could move. */
void hang_watch_restart(struct hang_watch *watch, double now);

/*
 * Look at the beats; returns for how long the slowest running rank has stood still. *culprit
 * becomes that rank, one that waits for nobody if there is one; -1 if no rank has begun.
 */
double hang_watch_look(struct hang_watch *watch, double now, int *culprit);

/* Lines for people: what each rank does and since when, those that don't wait for others first. */
void hang_watch_report(const struct hang_watch *watch, double now, struct str *text);

#endif
