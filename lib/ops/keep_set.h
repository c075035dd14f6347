/*
 * keep_set.h - what becomes of the values that the ops of a layer's forward write
 *
 * By kind of op, as program/recompute.c counts outputs to kinds. All zeros: what the backward reads
 * is kept in the device's memory.
 */
#ifndef OPS_KEEP_SET_H
#define OPS_KEEP_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/bitset.h"

struct keep_set {
    bool full;             /* the layer's input alone is kept, whatever `dropped` says */
    struct bitset dropped; /* computed again in the backward */
    struct bitset away;    /* of what is kept: it rests in another memory (program/offload.c) */
};

/* Cells that may be away, by kind: at least so many bytes of a rank's are; of them the last
 * filed_bytes in its file. SIZE_MAX: all. */
enum away_kind { AWAY_STATES, AWAY_GRADIENTS, AWAY_WEIGHTS, N_AWAY_KINDS };

struct away_bytes {
    size_t bytes, filed_bytes;
};

/* Of the cells and kept values of a pipeline rank. */
struct rank_offload {
    struct away_bytes cells[N_AWAY_KINDS];
    /* Of a micro-batch's kept values that keep-sets let go so many bytes do at least, those whose
     * next use is farthest; 0: all. */
    size_t activation_bytes;
    bool files_activations; /* what keep-sets send away goes to the file */
    bool updates_on_host;   /* the optimizer runs where its states are, if that is host memory */
    int n_fewer_ahead;      /* copies travel at a time, to have less memory: by so many, up to 2 */
    size_t piece_bytes; /* of fp32, that the update takes of a larger cell at a time; 0: usual */
};

/* A set for each layer of a model: sets[set_of_layer[layer]]. set_of_layer is NULL: none. */
struct layer_keep_sets {
    const struct keep_set *sets;
    const unsigned char *set_of_layer;
};

#endif
