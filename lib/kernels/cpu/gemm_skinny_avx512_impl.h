/*
 * gemm_skinny_avx512_impl.h - few rows by all columns, each weight read once and used from
 * registers
 *
 * A block of 16 lines of b and 16 steps is a kilobyte; turning it takes 64 shuffles, so a core can
 * read about as fast as memory gives. Included where gemm_block_avx512_impl.h is.
 */
#ifndef KERNELS_CPU_GEMM_SKINNY_AVX512_IMPL_H
#define KERNELS_CPU_GEMM_SKINNY_AVX512_IMPL_H

#include "kernels/cpu/gemm_block_avx512_impl.h"
#include "kernels/cpu/transpose_avx512_impl.h"

#include "base/num.h"

/* Bytes from a line to the same place 16 lines on: what is read next, too far for the processor. */
CPU_INLINE void prefetch_lines(const char *from, int64_t line_bytes, int64_t n_lines)
{
    for (int r = 0; r < LANES; r++)
        if (LANES + r < n_lines)
            _mm_prefetch(from + (LANES + r) * line_bytes, _MM_HINT_T1);
}

/*
 * One vector of columns: 16 lines by 16 steps are turned in registers, then each step is a
 * multiply-add a row.
 */
CPU_INLINE void multiply_lines(float *c, const float *a, const char *from, int64_t line_bytes,
                               int64_t n_lines, int64_t n_k, const int rows,
                               const enum gemm_lane lane)
{
    const int elements = lane == LANE_PAIR ? 2 : 1;
    const int64_t element_bytes = lane == LANE_F32 ? 4 : 2, n_steps = ceil_div(n_k, elements);
    __m512 sums[ROWS];

    for (int r = 0; r < rows; r++)
        sums[r] = _mm512_setzero_ps();
    for (int64_t step = 0; step < n_steps; step += LANES) {
        const char *at = from + step * elements * element_bytes;
        int64_t n = min_i64(LANES, n_steps - step);
        __m512 lines[LANES];

        for (int r = 0; r < LANES; r++)
            lines[r] = r < n_lines ? _mm512_castsi512_ps(load_along(at + r * line_bytes,
                                                                    n_k - step * elements, lane))
                                   : _mm512_setzero_ps();
        prefetch_lines(at, line_bytes, n_lines);
        transpose_lanes(lines);
        if (n == LANES)
            for (int s = 0; s < LANES; s++)
                for (int r = 0; r < rows; r++)
                    sums[r] =
                        multiply_add(sums[r], _mm512_set1_ps(a[(step + s) * ROWS + r]), lines[s]);
        else
            for (int s = 0; s < LANES; s++)
                for (int r = 0; s < n && r < rows; r++)
                    sums[r] =
                        multiply_add(sums[r], _mm512_set1_ps(a[(step + s) * ROWS + r]), lines[s]);
    }
    for (int r = 0; r < rows; r++)
        _mm512_storeu_ps(c + r * COLS, sums[r]);
}

CPU_INLINE void multiply_skinny(float *c, const uint32_t *a_panel, const struct gemm_source *b,
                                const struct gemm_part *part, const int rows,
                                const enum gemm_lane lane)
{
    const float *a = (const float *)(const void *)a_panel;
    const int64_t element_bytes = lane == LANE_F32 ? 4 : 2;
    const int64_t line_bytes = b->line_stride * element_bytes;
    const char *from = (const char *)b->data + part->line * line_bytes + part->k * element_bytes;

    for (int64_t line = 0; line < part->n_lines; line += LANES)
        multiply_lines(c + line, a, from + line * line_bytes, line_bytes, part->n_lines - line,
                       part->n_k, rows, lane);
}

CPU_INLINE void multiply_few_rows(float *c, const uint32_t *a, const struct gemm_source *b,
                                  const struct gemm_part *part, int n_rows,
                                  const enum gemm_lane lane)
{
    if (n_rows > 4)
        multiply_skinny(c, a, b, part, 8, lane);
    else if (n_rows > 2)
        multiply_skinny(c, a, b, part, 4, lane);
    else if (n_rows > 1)
        multiply_skinny(c, a, b, part, 2, lane);
    else
        multiply_skinny(c, a, b, part, 1, lane);
}

#endif
