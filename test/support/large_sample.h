/*
 * large_sample.h - the rows and columns of a large op's results that its references compare
 *
 * large_reference.c has the ops whose samples are small ops, large_softmax.c those whose rows need
 * all keys or the whole vocabulary. Tolerances are of the largest wanted number: sums in fp32 of up
 * to 60,000 products, 1e-3 (a tensor core cuts off what it adds up); what is rounded to 16 bits
 * within the op (P and dS of attention, a head's gradients of logits), 1e-2.
 */
#ifndef SUPPORT_LARGE_SAMPLE_H
#define SUPPORT_LARGE_SAMPLE_H

#include <stdlib.h>

#include "base/rng.h"
#include "support/large_case.h"
#include "support/op_case.h"

#define N_PICKS 16

struct sampled {
    int64_t rows_at[N_PICKS], cols_at[N_PICKS];
    struct large_picks rows, cols;
};

/* The first, the last and others between. */
static inline struct large_picks choose(int64_t n, uint64_t place, int64_t at[N_PICKS])
{
    for (int i = 0; i < N_PICKS; i++) {
        struct rng_block b = rng_at(2, RNG_TEST, place, (uint64_t)i);

        at[i] = i == 0 ? 0 : i == N_PICKS - 1 ? n - 1 : (int64_t)(b.word[0] % (uint64_t)n);
    }
    return (struct large_picks){ N_PICKS, at };
}

/* Of a tensor; each kind of another place, so that kinds have samples of their own. */
static inline void choose_both(struct sampled *s, const struct tensor *t, enum op_kind kind)
{
    s->rows = choose(t->rows, (uint64_t)kind * 2, s->rows_at);
    s->cols = choose(t->cols, (uint64_t)kind * 2 + 1, s->cols_at);
}

static inline struct tensor zeros(int64_t rows, int64_t cols, enum dtype dtype)
{
    struct tensor t = { .rows = rows, .cols = cols, .stride = cols, .dtype = dtype };

    t.data = calloc((size_t)(rows * cols), dtype_bytes(dtype));
    CHECK(t.data);
    return t;
}

/* ---- large_softmax.c's part of large_check ---- */

void large_check_attention(struct large_case *c);
void large_check_attention_grad(struct large_case *c);

/* With gradients or the loss alone. */
void large_check_head(struct large_case *c);

#endif
