/*
 * rank_gpu_impl.h - the GPUs of a node's ranks, seen by the node's daemon or watcher
 *
 * Their state is written to the ranks' slots, and reaches the head with those. All other functions
 * read the slots alone and need no NVML.
 */
#ifndef LAUNCH_WATCH_RANK_GPU_IMPL_H
#define LAUNCH_WATCH_RANK_GPU_IMPL_H

#include <stddef.h>

#include "device/gpu_watch.h"
#include "launch/watch/rank_gpu.h"

/* Without progress of any rank for this time, with a GPU broken, the ranks are terminated. */
#define RANK_GPU_GRACE_SECONDS 15.0

/*
 * Bring a slot up to date, without waiting. *watch is made (rank_gpu: NVML is asked about all GPUs
 * of the node from then on) by the first rank that has a GPU; NULL before. Returns 1 if there is a
 * new Xid.
 */
int rank_gpu_look(struct progress_slot *slot, struct gpu_watch **watch);

/*
 * The same for the first rank that ends with a device's error: its Xid is waited for, a quarter
 * second.
 */
void rank_gpu_look_at_death(struct progress_slot *slot, struct gpu_watch **watch);

/* It is hot, held down, has an Xid or does not answer. */
int rank_gpu_is_troubled(const struct progress_slot *slot);

/* It needs a reset: nothing can run on it, nor on its node, until then. */
int rank_gpu_is_broken(const struct progress_slot *slot);

/* Its work is ended, and can be begun again on it. */
int rank_gpu_is_reusable(const struct progress_slot *slot);

/*
 * "GPU 3 (0000:9a:00.0) at 100 % and 210 of 1980 MHz, 120 W, 89 degrees Celsius: thermal slowdown",
 * with its Xid; "" if it was not seen. Returns buffer.
 */
const char *rank_gpu_describe(const struct progress_slot *slot, char *buffer, size_t size);

/*
 * "GPU 3 (0000:9a:00.0, GPU-…): Xid 79, the GPU has fallen off the bus (hint: drain the node: …)";
 * "" without an Xid. Returns buffer.
 */
const char *rank_gpu_death(const struct progress_slot *slot, char *buffer, size_t size);

#endif
