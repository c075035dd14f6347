/*
 * gemm_multiply_avx512bf16.c - the register block for lanes of pairs of bf16
 */
#define GEMM_LANES_ARE_PAIRS
#include "kernels/cpu/gemm_skinny_avx512_impl.h"

void gemm_multiply_avx512bf16(float *c, const uint32_t *a, const uint32_t *b, int64_t n_steps,
                              int fresh, int n_rows, int n_cols)
{
    multiply(c, a, b, n_steps, fresh, n_rows, n_cols);
}

void gemm_multiply_skinny_avx512bf16(float *c, const uint32_t *a, const struct gemm_source *b,
                                     const struct gemm_part *part, int n_rows)
{
    multiply_few_rows(c, a, b, part, n_rows, LANE_PAIR);
}
