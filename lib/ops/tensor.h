/*
 * tensor.h - a rectangle of numbers in memory, as kernels see it
 *
 * Row-major: element (r, c) is at data + r * stride + c, stride counted in elements (cols where
 * dense). An operand that an op leaves out has rows 0 and data NULL. While a program is compiled
 * and planned the same struct describes shapes alone, with data NULL.
 */
#ifndef OPS_TENSOR_H
#define OPS_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

struct tensor {
    void *data;
    int64_t rows, cols;
    int64_t stride;
    enum dtype dtype;
};

static inline int tensor_given(const struct tensor *tensor)
{
    return tensor->rows > 0;
}

static inline int64_t tensor_elements(const struct tensor *tensor)
{
    return tensor->rows * tensor->cols;
}

#endif
