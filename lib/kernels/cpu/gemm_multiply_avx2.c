/*
 * gemm_multiply_avx2.c - the register block of AVX2: 6 rows of 2 vectors
 *
 * 12 sums, 2 vectors of b and 2 broadcast lanes of a are all 16 registers; a step is 2 loads and 6
 * broadcasts for 12 multiply-adds.
 */
#include "kernels/cpu/gemm_code_impl.h"

#include <immintrin.h>

#define ROWS 6
#define VECTORS 2
#define LANES 8
#define COLS (VECTORS * LANES)

CPU_INLINE void multiply_block(float *c, const float *a, const float *b, int64_t n_steps, int fresh,
                               const int rows, const int vectors)
{
    /* No branch: gcc would keep both sides' sums on the stack. */
    const __m256i kept = _mm256_set1_epi32(fresh ? 0 : -1);
    __m256 sums[ROWS][VECTORS];

    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = _mm256_maskload_ps(c + r * COLS + v * LANES, kept);
    do {
        __m256 row[VECTORS];

        for (int v = 0; v < vectors; v++)
            row[v] = _mm256_loadu_ps(b + v * LANES);
        for (int r = 0; r < rows; r++) {
            __m256 lane = _mm256_broadcast_ss(a + r);

            for (int v = 0; v < vectors; v++)
                sums[r][v] = _mm256_fmadd_ps(lane, row[v], sums[r][v]);
        }
        a += ROWS;
        b += COLS;
    } while (--n_steps > 0);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            _mm256_storeu_ps(c + r * COLS + v * LANES, sums[r][v]);
}

void gemm_multiply_avx2(float *c, const uint32_t *a_panel, const uint32_t *b_panel, int64_t n_steps,
                        int fresh, int n_rows, int n_cols)
{
    const float *a = (const float *)(const void *)a_panel;
    const float *b = (const float *)(const void *)b_panel;

    (void)n_cols;
    if (n_rows > 3)
        multiply_block(c, a, b, n_steps, fresh, 6, VECTORS);
    else if (n_rows > 1)
        multiply_block(c, a, b, n_steps, fresh, 3, VECTORS);
    else
        multiply_block(c, a, b, n_steps, fresh, 1, VECTORS);
}
