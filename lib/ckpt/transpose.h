/*
 * transpose.h - a matrix of 2- or 4-byte elements, turned
 */
#ifndef CKPT_TRANSPOSE_H
#define CKPT_TRANSPOSE_H

#include <stddef.h>
#include <stdint.h>

/*
 * to[c * to_stride + r] = from[r * from_stride + c] for r < rows, c < cols. Strides are elements;
 * element_bytes is 2 or 4; both are aligned to it and do not overlap.
 */
void transpose(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows,
               int64_t cols, size_t element_bytes);

#endif
