/*
 * peak.h - what all ranks of a run reach together at best: MFU's denominator
 *
 * Of GPUs that are known it is what their makers state, once for each GPU however many ranks share
 * it. Else it is measured: the ranks of all nodes multiply at the same time, for a few short
 * windows that begin for all at one moment, and of each node the best window counts. A rank that
 * had to wait for a core did less meanwhile, so ranks that share cores do not count them twice,
 * which the sum of what each rank reaches in its best moment would.
 */
#ifndef TRAIN_PEAK_H
#define TRAIN_PEAK_H

#include "train/engine.h"

enum { PEAK_WINDOWS = 8 };

/* One rank's part in it. */
struct peak_part {
    uint64_t node;     /* equal where ranks share a kernel, and so its cores and its clock */
    uint64_t hardware; /* equal where ranks share a GPU; 0: the host, or a GPU of its own */
    double stated;     /* FLOP/s of its GPU; 0: not known */
    double now;        /* on the node's clock */
    double flops[PEAK_WINDOWS]; /* what it did in each */
};

/* The sum of what is stated, or 0 if that is not known of all. Pure. */
double peak_stated(const struct peak_part *parts, int n_ranks);

/* The sum over nodes of the best window of each, in FLOP/s. Pure. */
double peak_measured(const struct peak_part *parts, int n_ranks, double window_seconds);

/*
 * Collective over all ranks, on the engine's worker: takes some 40 ms of a CPU, more of a large
 * device. *flops is the same on all of them. Returns 0, or -1 with ERR_DEVICE or ERR_PEER.
 */
int peak_find(struct engine *engine, enum dtype dtype, double *flops, struct err *err);

#endif
