/*
 * progress.h - what each rank does, for its daemon or watcher
 *
 * One page of shared memory per node holds a slot per local rank. A rank stores each activity
 * before it begins (a few relaxed stores, no system call); the node's daemon or watcher reads. The
 * texts for ops come from the upper modules.
 *
 * Positions show which rank is furthest behind: a rank counts what all ranks of its program do
 * alike (ops begun, agreements), and a rank that waits publishes the position at which the others
 * will have arrived.
 */
#ifndef PROGRESS_PROGRESS_H
#define PROGRESS_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"

#define PROGRESS_TEXT_BYTES 192

/* How a rank has left. */
enum progress_end {
    PROGRESS_RUNS,
    PROGRESS_LEFT,   /* launch_leave: in good order */
    PROGRESS_FAILED, /* launch_abort: it has reported its failure itself */
};

/*
 * The GPU that a rank computes on (rank_gpu.h): its address is written by the rank, the rest
 * by the node's daemon or watcher. Texts may be torn, numbers are -1 where they are not known.
 */
struct progress_gpu {
    _Atomic int32_t is_set; /* pci is written */
    _Atomic int32_t n_seen; /* looks so far; 0: what follows is not there */
    _Atomic int32_t index, is_lost, utilization_percent, sm_mhz, sm_mhz_max, power_watts;
    _Atomic int32_t temperature_celsius, throttle; /* nvml.h */
    _Atomic int32_t xid;                           /* what stands for all so far (xid.h), 0: none */
    _Atomic int32_t age_seconds;                   /* of what was seen */
    char pci[32], uuid[48];
};

struct progress_slot {
    _Atomic uint64_t beat;     /* grows with every change; 0: has not begun */
    _Atomic uint64_t position; /* ops and agreements begun since the start */
    _Atomic uint64_t awaits;   /* waiting: others have come once they are there; 0: not known */
    _Atomic int64_t step;
    _Atomic int32_t micro_batch;
    _Atomic int32_t op;    /* index into the function's list, -1 outside the step */
    _Atomic int32_t waits; /* 1 while waiting for others */
    /* For whom: ranks first, first + stride, ..., group_size of them, and as many from first +
     * group_apart on, ..., group_n_runs times; group_size 0: for all. */
    _Atomic int32_t group_first, group_stride, group_size, group_n_runs, group_apart;
    _Atomic int32_t pid;
    _Atomic int32_t world_rank;
    _Atomic int32_t end;     /* enum progress_end */
    _Atomic int32_t is_over; /* by the daemon: the attempt is, and SIGTERM ends its ranks */
    /* Of its process, by the daemon or watcher, once a second, the peak also by the rank at its
     * end; 0: not known. */
    _Atomic int64_t resident_bytes, peak_bytes;
    struct progress_gpu gpu;
    char text[PROGRESS_TEXT_BYTES]; /* "attention layers.9", last written; may be torn */
};

/* The ranks that a rank waits for. */
struct progress_meeting {
    uint64_t position;       /* 0: not known */
    int first, stride, size; /* of the first run; size 0: all */
    int n_runs, apart;       /* as struct progress_slot says */
};

/*
 * This rank's slot: the one the watcher gave it (watcher.h); else that in the page named by
 * $LMTRAIN_PROGRESS (set by the supervisor) at local_rank; else a private one. Always the same
 * after the first call. Never NULL; lives until the process ends.
 */
struct progress_slot *progress_join(int local_rank);

/*
 * Whether the daemon is ending this rank because the attempt is over, rather than passing on a
 * request to stop. False without a slot. May be called in a signal handler.
 */
int progress_is_over(void);

/* Mark this rank as left, if it has a slot. */
void progress_end(enum progress_end end);

/* Internal: text and state, in this order for who reads them. */
static inline void progress_store(struct progress_slot *slot, const char *text, bool waits)
{
    size_t n = strlen(text);

    if (n > sizeof slot->text - 1)
        n = sizeof slot->text - 1;
    memcpy(slot->text, text, n);
    slot->text[n] = '\0';
    atomic_store_explicit(&slot->waits, waits, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->beat, 1, memory_order_release);
}

/*
 * Publish `text` as the current activity, and whether it waits for other ranks (for which ones is
 * unknown). slot NULL: no-op, here and below.
 */
static inline void progress_publish(struct progress_slot *slot, const char *text, bool waits)
{
    if (!slot)
        return;
    atomic_store_explicit(&slot->awaits, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->group_size, 0, memory_order_relaxed);
    progress_store(slot, text, waits);
}

/* The same outside the ops of a step: "writing a checkpoint". */
static inline void progress_phase(struct progress_slot *slot, const char *text)
{
    if (!slot)
        return;
    atomic_store_explicit(&slot->op, -1, memory_order_relaxed);
    progress_publish(slot, text, false);
}

/* The same of a file or folder: "writing a checkpoint to /a/b", ... in the midst of a long path. */
void progress_phase_path(struct progress_slot *slot, const char *what, const char *path);

/* One thing more begun that all ranks of the program do alike. Returns the new position. */
static inline uint64_t progress_advance(struct progress_slot *slot)
{
    if (!slot)
        return 0;
    uint64_t position = atomic_load_explicit(&slot->position, memory_order_relaxed) + 1;

    atomic_store_explicit(&slot->position, position, memory_order_relaxed);
    return position;
}

/* Publish that this rank waits in text, for the ranks of the meeting. */
static inline void progress_wait(struct progress_slot *slot, const char *text,
                                 const struct progress_meeting *meeting)
{
    if (!slot)
        return;
    atomic_store_explicit(&slot->awaits, meeting->position, memory_order_relaxed);
    atomic_store_explicit(&slot->group_first, meeting->first, memory_order_relaxed);
    atomic_store_explicit(&slot->group_stride, meeting->stride, memory_order_relaxed);
    atomic_store_explicit(&slot->group_size, meeting->size, memory_order_relaxed);
    atomic_store_explicit(&slot->group_n_runs, meeting->n_runs, memory_order_relaxed);
    atomic_store_explicit(&slot->group_apart, meeting->apart, memory_order_relaxed);
    progress_store(slot, text, true);
}

/* The same for all ranks: an agreement, a fence. */
static inline void progress_meet(struct progress_slot *slot, const char *text)
{
    struct progress_meeting all = { .position = progress_advance(slot) };

    progress_wait(slot, text, &all);
}

/* A sign of life, for what takes long and is not a hang. */
static inline void progress_beat(struct progress_slot *slot)
{
    if (slot)
        atomic_fetch_add_explicit(&slot->beat, 1, memory_order_release);
}

#endif
