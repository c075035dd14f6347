/*
 * gemm_multiply_avx512.c - the register block for lanes of fp32
 */
#include "kernels/cpu/gemm_block_avx512_impl.h"

void gemm_multiply_avx512(float *c, const uint32_t *a, const uint32_t *b, int64_t n_steps,
                          int fresh, int n_rows, int n_cols)
{
    multiply(c, a, b, n_steps, fresh, n_rows, n_cols);
}
