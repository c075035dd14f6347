/*
 * reference_impl.h - what the files of the reference share: elements of its operands
 */
#ifndef TEST_SUPPORT_REFERENCE_IMPL_H
#define TEST_SUPPORT_REFERENCE_IMPL_H

#include "ops/ops.h"

static inline double *at(const struct tensor *t, int64_t row, int64_t col)
{
    return (double *)t->data + row * t->cols + col;
}

static inline int32_t int_at(const struct tensor *t, int64_t row)
{
    return ((const int32_t *)t->data)[row];
}

#define IN(i, row, col) (*at(&op->in[i], row, col))
#define OUT(i, row, col) (*at(&op->out[i], row, col))

/* An accumulated output's start: everything below adds to it. */
static inline void start(const struct tensor *t, int first)
{
    if (first)
        for (int64_t i = 0; i < tensor_elements(t); i++)
            ((double *)t->data)[i] = 0;
}

/* reference_norms.c: whether op is of a kind that it has, and then ran. */
int reference_run_norm(const struct op_shape *op, int first);

#endif
