/*
 * op_family.h - what the families' facts share: their tables, and elements of a reference's
 * operands
 */
#ifndef TEST_SUPPORT_OPS_OP_FAMILY_H
#define TEST_SUPPORT_OPS_OP_FAMILY_H

#include "base/rng.h"
#include "ops/family_impl.h"
#include "support/op_facts.h"

/* By kind; without an example for kinds of other families. */
#define DECLARE(family) extern const struct op_facts family##_facts[N_OP_KINDS];
OP_FAMILIES(DECLARE)
#undef DECLARE

static inline double *at(const struct tensor *t, int64_t row, int64_t col)
{
    return (double *)t->data + row * t->cols + col;
}

static inline int32_t int_at(const struct tensor *t, int64_t row)
{
    return ((const int32_t *)t->data)[row];
}

/* Of a reference's `op`, by the operand's name. */
#undef IN
#define IN(i, row, col) (*at(&op->in[i], row, col))
#define OUT(i, row, col) (*at(&op->out[i], row, col))

/* Zeros, to which what follows is added. */
static inline void start(const struct tensor *t)
{
    for (int64_t i = 0; i < tensor_elements(t); i++)
        ((double *)t->data)[i] = 0;
}

/* Where the rank's part begins, by an optional input. */
static inline int32_t begin_of(const struct op_shape *op, int input)
{
    return tensor_given(&op->in[input]) ? int_at(&op->in[input], 0) : 0;
}

/* Dropout's factor of an element: 0 where dropped, 1 / (1 - p) where kept. */
static inline double reference_kept(const struct op_attributes *a, int64_t sample,
                                    uint64_t place_low, int64_t element)
{
    uint64_t place_high = a->rng_site * 0x9E3779B97F4A7C15u + (uint64_t)sample;
    struct rng_block words =
        rng_at(a->seed, RNG_DROPOUT, place_high, place_low | (uint64_t)(element / 4));

    return rng_uniform(words.word[element % 4]) >= (float)a->p ? 1 / (1 - a->p) : 0;
}

#endif
