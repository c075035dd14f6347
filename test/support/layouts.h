/*
 * layouts.h - loss and every whole gradient of one step, in fp32, by any layout of ranks
 *
 * Ranks are threads; each compiles its program, and their parts of the gradients are put together.
 */
#ifndef SUPPORT_LAYOUTS_H
#define SUPPORT_LAYOUTS_H

#include "config/model_spec.h"
#include "layout/mesh.h"
#include "program/passes.h"

#define LAYOUT_RANKS_MAX 16

struct layout {
    int tp, dp, pp;
    int sequence_parallel, early;
    enum recompute_kind recompute;
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

/* "tp 2 sequence parallel, dp 1, pp 2, late sums, recompute 0" */
void layout_describe(const struct layout *layout, char *out, size_t size);

#endif
