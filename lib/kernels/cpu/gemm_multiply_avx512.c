/*
 * gemm_multiply_avx512.c - the register block for lanes of fp32
 */
#include "kernels/cpu/gemm_skinny_avx512_impl.h"

void gemm_multiply_avx512(float *c, const uint32_t *a, const uint32_t *b, int64_t n_steps,
                          int fresh, int n_rows, int n_cols)
{
    multiply(c, a, b, n_steps, fresh, n_rows, n_cols);
}

void gemm_multiply_skinny_avx512(float *c, const uint32_t *a, const struct gemm_source *b,
                                 const struct gemm_part *part, int n_rows)
{
    if (b->lane == LANE_F32)
        multiply_few_rows(c, a, b, part, n_rows, LANE_F32);
    else if (b->lane == LANE_HALF)
        multiply_few_rows(c, a, b, part, n_rows, LANE_HALF);
    else
        multiply_few_rows(c, a, b, part, n_rows, LANE_WIDENED);
}
