/*
 * offload.h - a step whose kept values leave the device and come back, by ops placed by hand
 *
 * Forward of a micro-batch: h_0 = x + w_0, h_l = h_(l-1) + w_l. Each h_l goes to the host after its
 * last use, of odd layers after a gather over the tensor-parallel ranks; three layers on its memory
 * is free again.
 * Backward: they return in the opposite order, two ahead of their use, those of even layers are
 * gathered then, and total += their sum. Several micro-batches are under way at a time, so slots in
 * host memory are written anew while others come back.
 */
#ifndef SUPPORT_OFFLOAD_H
#define SUPPORT_OFFLOAD_H

#include "run/run_impl.h"

enum { OFFLOAD_LAYERS_MAX = 8, OFFLOAD_TP_MAX = 4 };

struct offload_shape {
    int n_layers, tp_size, n_micro_batches;
    int64_t rows, cols; /* of a rank's h */
    bool in_file;       /* what is kept lies in the file, not in host memory */
};

struct offload {
    struct offload_shape shape;
    struct program program;
    int forward, backward; /* functions */
    int x, total;          /* input; [tp rows x cols], summed over micro-batches and layers */
    int w[OFFLOAD_LAYERS_MAX];
    int h[OFFLOAD_LAYERS_MAX], kept[OFFLOAD_LAYERS_MAX]; /* on the device; away */
};

/* Not placed yet. */
void offload_build(struct offload *o, const struct offload_shape *shape);

/*
 * Ranks as threads that play it, once as what follows says.
 */
enum offload_way { OFFLOAD_ON_HOST, OFFLOAD_STAGED, OFFLOAD_ENQUEUED };

struct offload_play {
    struct offload_shape shape;
    enum offload_way way;
    int poison;
    int alone; /* one rank: no comm */
    int bound; /* compute has one core, and the run a thread of its own: not there (asserted) */
    uint64_t
        seed; /* of an adversary: copies come late, in any order of streams, and leave NaN in the
                      memory that they were read from; 0: none */
    const char *folder;                        /* of the ranks' files, if shape.in_file */
    double link_bytes_per_s, file_bytes_per_s; /* run_options' */
    int forgets_waits;                         /* breaks: compute comes after no copy */
};

/* Returns how many elements of `total` were wrong, over ranks and steps. Asserts all else. */
int offload_run(const struct offload_play *play);

#endif
