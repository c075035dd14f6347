/*
 * levels.h - how many layers of a pipeline rank are recomputed, and how, so that it fits its memory
 *
 * A layer that is recomputed takes more time and keeps fewer bytes for each micro-batch that is
 * alive. Of each chunk's layers the first n_full are recomputed in full, the n_selective after them
 * selectively, the others not at all (recompute_layers of a job); a rank's chunks have the same
 * two numbers, or all of their layers. Of all such numbers the ones that take the least time are
 * found, by trying all: layers of a chunk are few. Where layers are alike that is the best of
 * all assignments of levels to layers (test/plan/levels_test.c). Pure.
 */
#ifndef PLAN_LEVELS_H
#define PLAN_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

enum recompute_level { LEVEL_NONE, LEVEL_SELECTIVE, LEVEL_FULL, N_RECOMPUTE_LEVELS };

/* What a layer takes at each level. */
struct level_layer {
    int64_t ns[N_RECOMPUTE_LEVELS];           /* of a micro-batch, forward and backward */
    int64_t slot_bytes[N_RECOMPUTE_LEVELS];   /* kept from its forward to its backward */
    int64_t handed_bytes[N_RECOMPUTE_LEVELS]; /* from its gradient's pass to that of its weights */
};

struct level_chunk {
    const struct level_layer *layers;
    int n_layers;
    int64_t slot_bytes; /* beside the layers: what is received and sent, the head's */
};

struct level_problem {
    const struct level_chunk *chunks;
    int n_chunks;
    int n_slots, n_handed; /* micro-batches that are alive, or between their two backward passes */
    int64_t available;     /* bytes for slots and what is handed on */
};

/* The numbers, to be bounded by each chunk's layers. */
struct level_counts {
    int n_full, n_selective;
};

/* Of a layer, by its place in its chunk. */
enum recompute_level level_of_layer(const struct level_counts *counts, int place);

/* Bytes of the problem's slots with these numbers. */
int64_t levels_bytes(const struct level_problem *problem, const struct level_counts *counts);

/* Returns whether some fit; else *counts has all layers recomputed in full. */
bool levels_choose(struct level_counts *counts, const struct level_problem *problem);

#endif
