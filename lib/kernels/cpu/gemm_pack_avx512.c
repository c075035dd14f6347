/*
 * gemm_pack_avx512.c - packing for AVX-512, 16 lines at a time
 *
 * Lines that lie along k are read 16 steps each and transposed in registers: half a cycle a lane,
 * against the cols / 16 (of a) or rows / 16 (of b) cycles that it is multiplied for. Lines that lie
 * across k are read a row of k at a time, as wide as the part is, so that each line of cache is
 * fetched once however far apart the rows are.
 */
#include "kernels/cpu/gemm_load_avx512_impl.h"
#include "kernels/cpu/transpose_avx512_impl.h"

#include "base/num.h"

#define A_WIDTH 8
#define B_WIDTH 48
#define ROWS_AHEAD 12 /* of k, for the prefetcher sees no pattern in them */

/* One step of 16 lines, n_lines of which exist; next: the next row of k, NULL if there is none. */
CPU_INLINE __m512i load_across(const void *from, const void *next, int64_t n_lines,
                               const enum gemm_lane lane)
{
    __mmask16 lines = mask_16(n_lines);

    if (lane == LANE_F32)
        return _mm512_maskz_loadu_epi32(lines, from);
    if (lane == LANE_HALF)
        return load_fp16(from, lines);
    if (lane == LANE_WIDENED)
        return _mm512_slli_epi32(load_halves(from, lines), 16);
    return _mm512_or_si512(load_halves(from, lines),
                           _mm512_slli_epi32(load_halves(next, next ? lines : 0), 16));
}

/* One step of lines line .. line + 15, n_lines of which exist. */
CPU_INLINE void store_step(uint32_t *panels, int64_t panel_stride, int64_t line, int64_t n_lines,
                           int64_t step, __m512i lanes, const int width)
{
    if (width == A_WIDTH) {
        uint32_t *panel = panels + line / A_WIDTH * panel_stride + step * A_WIDTH;

        _mm256_storeu_si256((void *)panel, _mm512_castsi512_si256(lanes));
        if (n_lines > A_WIDTH)
            _mm256_storeu_si256((void *)(panel + panel_stride),
                                _mm512_extracti32x8_epi32(lanes, 1));
    } else {
        _mm512_storeu_si512(panels + step * B_WIDTH + line, lanes);
    }
}

CPU_INLINE void pack_along(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                           const struct gemm_part *part, const int width, const enum gemm_lane lane)
{
    const int elements = lane == LANE_PAIR ? 2 : 1;
    const int64_t element_bytes = lane == LANE_F32 ? 4 : 2;
    const int64_t n_steps = ceil_div(part->n_k, elements);
    const char *from =
        (const char *)source->data + (part->line * source->line_stride + part->k) * element_bytes;
    const int64_t line_bytes = source->line_stride * element_bytes;

    for (int64_t line = 0; line < part->n_lines; line += LANES)
        for (int64_t step = 0; step < n_steps; step += LANES) {
            int64_t k = step * elements, n_lines = part->n_lines - line;
            __m512 rows[LANES];

            for (int r = 0; r < LANES; r++)
                rows[r] = r < n_lines ? _mm512_castsi512_ps(load_along(
                                            from + (line + r) * line_bytes + k * element_bytes,
                                            part->n_k - k, lane))
                                      : _mm512_setzero_ps();
            transpose_lanes(rows);
            if (step + LANES <= n_steps)
                for (int r = 0; r < LANES; r++)
                    store_step(panels, panel_stride, line, n_lines, step + r,
                               _mm512_castps_si512(rows[r]), width);
            else
                for (int r = 0; r < LANES; r++)
                    if (step + r < n_steps)
                        store_step(panels, panel_stride, line, n_lines, step + r,
                                   _mm512_castps_si512(rows[r]), width);
        }
}

CPU_INLINE void pack_across(uint32_t *panels, int64_t panel_stride,
                            const struct gemm_source *source, const struct gemm_part *part,
                            const int width, const enum gemm_lane lane)
{
    const int elements = lane == LANE_PAIR ? 2 : 1;
    const int64_t element_bytes = lane == LANE_F32 ? 4 : 2;
    const int64_t row_bytes = source->k_stride * element_bytes;
    const char *from =
        (const char *)source->data + (part->k * source->k_stride + part->line) * element_bytes;

    for (int64_t k = 0; k < part->n_k; k += elements) {
        const char *row = from + k * row_bytes;

        for (int64_t line = 0; line < part->n_lines; line += LANES) {
            const char *at = row + line * element_bytes;
            const char *next = k + 1 < part->n_k ? at + row_bytes : NULL;

            for (int e = 0; e < elements; e++)
                _mm_prefetch(at + (ROWS_AHEAD + e) * row_bytes, _MM_HINT_T0);
            store_step(panels, panel_stride, line, part->n_lines - line, k / elements,
                       load_across(at, next, part->n_lines - line, lane), width);
        }
    }
}

CPU_INLINE void pack_as(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                        const struct gemm_part *part, const int width, const enum gemm_lane lane)
{
    if (source->k_stride == 1)
        pack_along(panels, panel_stride, source, part, width, lane);
    else
        pack_across(panels, panel_stride, source, part, width, lane);
}

CPU_INLINE void pack(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                     const struct gemm_part *part, const int width)
{
    if (source->lane == LANE_F32)
        pack_as(panels, panel_stride, source, part, width, LANE_F32);
    else if (source->lane == LANE_PAIR)
        pack_as(panels, panel_stride, source, part, width, LANE_PAIR);
    else if (source->lane == LANE_HALF)
        pack_as(panels, panel_stride, source, part, width, LANE_HALF);
    else
        pack_as(panels, panel_stride, source, part, width, LANE_WIDENED);
}

void gemm_pack_a_avx512(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                        const struct gemm_part *part)
{
    pack(panels, panel_stride, source, part, A_WIDTH);
}

void gemm_pack_b_avx512(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                        const struct gemm_part *part)
{
    pack(panels, panel_stride, source, part, B_WIDTH);
}
