/*
 * layouts.h - loss and every whole gradient of one step, by any layout of ranks
 *
 * Ranks are threads; each compiles its program, and their parts of the gradients are put together.
 */
#ifndef SUPPORT_LAYOUTS_H
#define SUPPORT_LAYOUTS_H

#include "config/model_spec.h"
#include "layout/mesh.h"
#include "program/passes.h"
#include "run/run.h"

#define LAYOUT_RANKS_MAX 16
#define LAYOUT_ROWS_MAX 4096 /* of a sequence */

struct layout {
    int tp, dp, pp;
    int sequence_parallel, early;
    enum recompute_kind recompute;
    int ulysses, keys; /* ranks that exchange heads, and that gather keys; 0: 1 */
    int fastseq;       /* the former gather the input of qkv */
};

/* A whole gradient under our name, as the parameter lies. */
struct gradient {
    char name[64];
    int64_t rows, cols;
    float *data;
};

struct outcome {
    double loss, norm; /* nats a learned token; the norm of all gradients */
    int n_gradients, capacity;
    struct gradient *gradients;
};

/* What is computed; the same for all layouts. */
struct experiment {
    struct model_spec spec;
    int n_sequences, seq_len;
    const int32_t *tokens, *targets; /* [n_sequences x seq_len], targets < 0 are not learned */
    const int *sizes;                /* of n_sizes micro-batches; NULL: one sequence each */
    int n_sizes;
    enum dtype dtype; /* of activations */
    /* [n_sequences x seq_len]: the first row of each row's document in its sequence; NULL: one
     * document each. */
    const int32_t *starts;
    /* A mistake to be found: positions of a rank's rows are counted from 0. */
    int counts_locally;
    /* Called by each rank before its step, all at once; NULL: not. */
    void (*begin)(void *context, int rank, struct run *run, const struct program *program);
    /* Fill the whole [rows x cols] of a parameter; asked by all ranks, one at a time. */
    int (*weights)(void *context, const char *name, int n_dims, int64_t rows, int64_t cols,
                   float *out, struct err *err);
    void *context;
};

/* The goldens' weights (golden/fill.h), for experiment.weights. */
int layout_golden_weights(void *context, const char *name, int n_dims, int64_t rows, int64_t cols,
                          float *out, struct err *err);

/* n_sequences and sizes are dp's to divide. Fills *outcome, which is then the caller's to release;
 * -1 and what failed on which rank. */
int layout_run(const struct experiment *experiment, const struct layout *layout,
               struct outcome *outcome, struct err *err);

void outcome_release(struct outcome *outcome);

/* NULL if there is none. */
const struct gradient *outcome_find(const struct outcome *outcome, const char *name);

struct mesh layout_mesh(const struct layout *layout);

/* "tp 2 sequence parallel, dp 1, pp 2, late sums, recompute 0", behind "ulysses 2, keys 1, " where
 * sequences are divided. */
void layout_describe(const struct layout *layout, char *out, size_t size);

#endif
