/*
 * gemm_block_avx512_impl.h - the register block of AVX-512: 8 rows of 3 vectors
 *
 * 24 sums, 3 vectors of b and a broadcast lane of a fill 28 of 32 registers; a step is 3 loads and
 * 8 broadcasts for 24 multiply-adds, so the multipliers are the bound. Edges take the block with
 * fewer rows or vectors that just covers them.
 *
 * Included by a file a way of multiplying: where that defines GEMM_LANES_ARE_PAIRS, a lane is two
 * bf16. What the compiler may use says nothing of it: CFLAGS may allow all to every file.
 */
#ifndef KERNELS_CPU_GEMM_BLOCK_AVX512_IMPL_H
#define KERNELS_CPU_GEMM_BLOCK_AVX512_IMPL_H

#include "kernels/cpu/gemm_load_avx512_impl.h"

#define ROWS 8
#define VECTORS 3
#define COLS (VECTORS * LANES)

CPU_INLINE __m512 multiply_add(__m512 sum, __m512 a, __m512 b)
{
#ifdef GEMM_LANES_ARE_PAIRS
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    return _mm512_fmadd_ps(a, b, sum);
#endif
}

CPU_INLINE void multiply_block(float *c, const float *a, const float *b, int64_t n_steps, int fresh,
                               const int rows, const int vectors)
{
    /* No branch: gcc would keep both sides' sums on the stack. */
    const __mmask16 kept = fresh ? 0 : 0xffff;
    __m512 sums[ROWS][VECTORS];

    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = _mm512_maskz_loadu_ps(kept, c + r * COLS + v * LANES);
    do {
        __m512 row[VECTORS];

        for (int v = 0; v < vectors; v++)
            row[v] = _mm512_loadu_ps(b + v * LANES);
        for (int r = 0; r < rows; r++) {
            __m512 lane = _mm512_set1_ps(a[r]);

            for (int v = 0; v < vectors; v++)
                sums[r][v] = multiply_add(sums[r][v], lane, row[v]);
        }
        a += ROWS;
        b += COLS;
    } while (--n_steps > 0);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(c + r * COLS + v * LANES, sums[r][v]);
}

CPU_INLINE void multiply_rows(float *c, const float *a, const float *b, int64_t n_steps, int fresh,
                              int n_rows, const int vectors)
{
    if (n_rows > 4)
        multiply_block(c, a, b, n_steps, fresh, 8, vectors);
    else if (n_rows > 2)
        multiply_block(c, a, b, n_steps, fresh, 4, vectors);
    else if (n_rows > 1)
        multiply_block(c, a, b, n_steps, fresh, 2, vectors);
    else
        multiply_block(c, a, b, n_steps, fresh, 1, vectors);
}

CPU_INLINE void multiply(float *c, const uint32_t *a_panel, const uint32_t *b_panel,
                         int64_t n_steps, int fresh, int n_rows, int n_cols)
{
    const float *a = (const float *)(const void *)a_panel;
    const float *b = (const float *)(const void *)b_panel;

    if (n_cols > 2 * LANES)
        multiply_rows(c, a, b, n_steps, fresh, n_rows, 3);
    else if (n_cols > LANES)
        multiply_rows(c, a, b, n_steps, fresh, n_rows, 2);
    else
        multiply_rows(c, a, b, n_steps, fresh, n_rows, 1);
}

#endif
