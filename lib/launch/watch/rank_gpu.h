/*
 * rank_gpu.h - which GPU a rank computes on, for its daemon or watcher
 */
#ifndef LAUNCH_WATCH_RANK_GPU_H
#define LAUNCH_WATCH_RANK_GPU_H

#include "progress/progress.h"

/* This rank's GPU, by its PCI address. Once, before the first kernel. */
void rank_gpu_set(struct progress_slot *slot, const char *pci);

#endif
