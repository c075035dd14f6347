/*
 * keep_set.h - what becomes of the values that the ops of a layer's forward write
 *
 * By kind of op, as program/recompute.c counts outputs to kinds. All zeros: what the backward reads
 * is kept in the device's memory.
 */
#ifndef OPS_KEEP_SET_H
#define OPS_KEEP_SET_H

#include <stdbool.h>

#include "base/bitset.h"

struct keep_set {
    bool full;             /* the layer's input alone is kept, whatever `dropped` says */
    struct bitset dropped; /* computed again in the backward */
    struct bitset away;    /* of what is kept: it rests in another memory (program/offload.c) */
};

/* A set for each layer of a model: sets[set_of_layer[layer]]. set_of_layer is NULL: none. */
struct layer_keep_sets {
    const struct keep_set *sets;
    const unsigned char *set_of_layer;
};

#endif
