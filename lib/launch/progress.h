/*
 * progress.h - where each rank is, for whoever watches
 *
 * One page of shared memory per job holds a slot per local rank. A rank stores what it does before
 * it does it (a few relaxed stores, no system call); the supervisor reads. The words for an op are
 * the upper modules' business.
 */
#ifndef LAUNCH_PROGRESS_H
#define LAUNCH_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

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

/* "Now I do text [PROGRESS_TEXT_BYTES]", waiting for others if waits is set. slot NULL: nobody
 * asks. */
static inline void progress_publish(struct progress_slot *slot, const char *text, int waits)
{
    if (!slot)
        return;
    memcpy(slot->text, text, sizeof slot->text);
    atomic_store_explicit(&slot->waits, waits, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->beat, 1, memory_order_release);
}

/* Still at it: for what takes long and is no hang. */
static inline void progress_beat(struct progress_slot *slot)
{
    if (slot)
        atomic_fetch_add_explicit(&slot->beat, 1, memory_order_release);
}

#endif
