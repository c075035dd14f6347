/*
 * gpu_watch.h - a thread that polls NVML about GPUs, so that no other thread waits for NVML
 *
 * It reads the state of each GPU once per second and receives Xid events (xid.h) as they happen.
 * Readers get the last state without waiting: if a broken GPU blocks NVML, they see that the state
 * gets old. Without NVML the thread ends immediately, and there is never a state.
 */
#ifndef DEVICE_GPU_WATCH_H
#define DEVICE_GPU_WATCH_H

#include <stdbool.h>

#include "device/nvml.h"

struct gpu_watch;

struct gpu_sight {
    int index; /* NVML's */
    struct nvml_gpu gpu;
    struct nvml_state state;
    double age_seconds; /* since it was looked at */
    int xid;            /* the one that stands for its Xids so far (enum xid_kind); 0: none */
};

/* Begin to watch the GPU at a PCI address, or all of this machine (NULL). NULL: no thread. */
struct gpu_watch *gpu_watch_open(const char *pci);

/* Ends the thread. One that NVML does not let go is left behind. Takes a quarter second at most. */
void gpu_watch_close(struct gpu_watch *watch);

/* The last look at a GPU. Returns 0, or -1: it was not seen (yet). watch NULL: never. */
int gpu_watch_see(struct gpu_watch *watch, const char *pci, struct gpu_sight *sight);

/* Wait until an Xid of this GPU is known that is final (xid_is_final), or for `seconds`. */
void gpu_watch_wait_xid(struct gpu_watch *watch, const char *pci, double seconds);

#endif
