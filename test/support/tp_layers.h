/*
 * tp_layers.h - layers over tensor- and sequence-parallel ranks, as few ops as show it
 *
 * A layer gathers the tokens, takes two products, the second of which leaves a sum to be owed, and
 * scatters that: x = [x +] reduce_scatter(w2 (w1 all_gather(x))).
 */
#ifndef SUPPORT_TP_LAYERS_H
#define SUPPORT_TP_LAYERS_H

#include "program/program.h"

#define TP_LAYERS_MAX 64

struct tp_layers {
    struct program program;
    int n_layers, tp_size, residual;
    int64_t tokens, d, f; /* of all ranks */
    int function;
    int x, out; /* input, and the last layer's output doubled: rows of the rank */
    int w1[TP_LAYERS_MAX], w2[TP_LAYERS_MAX];
    int gathered[TP_LAYERS_MAX], partial[TP_LAYERS_MAX]; /* within the layers */
};

/* Not placed yet; one step of one micro-batch is in ENTRY_STEP. */
void tp_layers_build(struct tp_layers *t, int n_layers, int tp_size, int residual, int64_t tokens,
                     int64_t d, int64_t f);

#endif
