/*
 * fp8_blocks_impl.h - blocks of bf16 for products of fp8: their largest elements, and their codes
 * (ops/fp8_recipe.h)
 *
 * A block has the same bits whether the product rounds it (linear_fp8.c), the op that makes the row
 * (fp8_rows_impl.h), or the step (fp8_weights.c).
 */
#ifndef KERNELS_CPU_FP8_BLOCKS_IMPL_H
#define KERNELS_CPU_FP8_BLOCKS_IMPL_H

#include "kernels/cpu/fp8_numbers_impl.h"
#include "kernels/cpu/rows_impl.h"

/* The largest of `most` and n elements; bits of |x|, which are ordered as they are. */
CPU_INLINE uint16_t fp8_larger(uint16_t most, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t size = x[i] & 0x7fffu;

        most = size > most ? size : most;
    }
    return most;
}

/* The same of what the parts of a tensor have found, in column `col`: bits of fp32. */
static inline uint32_t fp8_largest_of_parts(const struct tensor *parts, int64_t col)
{
    uint32_t most = 0;

    for (int64_t i = 0; i < parts->rows; i++) {
        uint32_t size = vec_to_bits(((const float *)cpu_row(parts, i))[col]);

        most = size > most ? size : most;
    }
    return most;
}

/* Codes of n elements of a block with this scale: zeros where it is 0 or NaN. */
CPU_INLINE void fp8_codes(uint8_t *codes, const uint16_t *x, float scale, int64_t n)
{
    float divisor = scale > 0 ? scale : 1.0f;

    for (int64_t i = 0; i < n; i++) {
        uint8_t code = e4m3_code(vec_from_bf16(x[i]) / divisor);

        codes[i] = scale > 0 ? code : 0;
    }
}

#endif
