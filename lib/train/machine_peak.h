/*
 * machine_peak.h - what this rank's cores, or its GPU, can reach at best: products and memory
 *
 * An op's speed of light is the longer of two times: its FLOPs at the best speed of a product of
 * its dtype, and its bytes, each moved once, at the best speed of memory. Ops whose operands lie in
 * caches may be faster than that.
 */
#ifndef TRAIN_MACHINE_PEAK_H
#define TRAIN_MACHINE_PEAK_H

#include "ops/ops.h"
#include "train/engine.h"

struct machine_peak {
    double flops;            /* FLOP/s of the best product, in the run's dtype */
    double f32_flops;        /* the same in fp32 */
    double bytes_per_second; /* the best of reading, copying, and changing in place */
};

/*
 * Measured with the rank's threads in about half a second; other ranks of the node should do the
 * same at the same time. Takes two buffers for that long, of twice the last-level caches' size:
 * 256 MiB to 1 GiB, less where memory is short.
 */
int machine_peak_measure(struct machine_peak *ceiling, struct engine *engine, enum dtype dtype,
                         struct err *err);

/* The part of it that is memory's: of a GPU, copies within it. Returns 0, or -1 and ERR_DEVICE. */
int machine_peak_memory(struct engine *engine, double *bytes_per_second, struct err *err);

/*
 * MiB of each buffer that memory is measured with, of one of n_ranks on a machine with these
 * last-level caches in all, for whole windows of n_threads threads; available_bytes 0: not known.
 */
int64_t machine_peak_tiles(size_t caches_bytes, int n_ranks, int n_threads, size_t available_bytes);

/* Seconds that the op cannot be faster than, from memory to memory. */
double machine_peak_seconds(const struct machine_peak *ceiling, const struct op_shape *op);

#endif
