/*
 * progress.h - where each rank is, for whoever watches
 *
 * One page of shared memory per job holds a slot per local rank. A rank stores what it does before
 * it does it (a few relaxed stores, no system call); the supervisor reads. The words for an op are
 * the upper modules' business: the slot holds small numbers and a name table that the rank writes
 * once.
 */
#ifndef LAUNCH_PROGRESS_H
#define LAUNCH_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"

#define PROGRESS_TEXT_BYTES 96

struct progress_slot {
    _Atomic uint64_t beat; /* grows with every change */
    _Atomic int64_t step;
    _Atomic int32_t micro_batch;
    _Atomic int32_t op;             /* index into the rank's own list, -1 outside the step */
    _Atomic int32_t waits;          /* 1 while in a collective */
    char text[PROGRESS_TEXT_BYTES]; /* "attention layers.9", last written; may be torn */
};

/*
 * This rank's slot: in the page named by $LMTRAIN_PROGRESS (set by the supervisor) at local_rank,
 * or a private one when there is none. Never NULL; lives until the process ends.
 */
struct progress_slot *progress_join(int local_rank);

#endif
