/*
 * convert_dtype.h - arrays from one floating type to another
 *
 * fp32, bf16 and fp16 among each other, rounded once to nearest, ties to even; too large becomes
 * infinite, NaN stays NaN. Any type to itself is a copy.
 */
#ifndef CKPT_CONVERT_DTYPE_H
#define CKPT_CONVERT_DTYPE_H

#include <stdint.h>

#include "base/dtype.h"

int convert_supported(enum dtype to, enum dtype from);

/* n elements; the pair must be supported. src and dst need no alignment and must not overlap. */
void convert(enum dtype to, void *dst, enum dtype from, const void *src, int64_t n);

/* The first of n numbers that is a NaN or infinite, or -1. fp32, bf16 or fp16. */
int64_t convert_first_bad(enum dtype dtype, const void *data, int64_t n);

#endif
