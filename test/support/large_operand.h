/*
 * large_operand.h - a large op's operands on the device: memory with a guard behind it, contents
 *
 * For large_case.c, which runs the op; how contents come about is told in large_case.h.
 */
#ifndef SUPPORT_LARGE_OPERAND_H
#define SUPPORT_LARGE_OPERAND_H

#include "support/large_case.h"

/* Behind each operand, and what they are filled with. */
enum { GUARD_BYTES = 256, GUARD = 0xa5 };

static inline size_t tensor_bytes(const struct tensor *t)
{
    return (size_t)(t->rows * t->stride) * dtype_bytes(t->dtype);
}

static inline struct device *device_of(const struct large_case *c)
{
    return c->kernels->device;
}

static inline int64_t pick(const struct large_picks *picks, int64_t i)
{
    return picks && picks->at ? picks->at[i] : i;
}

static inline int64_t n_picked(const struct large_picks *picks, int64_t n_all)
{
    return picks && picks->at ? picks->n : n_all;
}

/* Memory of the tensor's size, if it is given; -1: there is none. */
int large_allocate(struct large_case *c, struct tensor *t, struct err *err);
void large_release(struct large_case *c, struct tensor *t);

/* Choose what an input has, and fill it. */
void large_make(struct large_case *c, int i);

/* Fill an input with what was chosen, again where the op has changed it. */
void large_fill(struct large_case *c, int i);

#endif
