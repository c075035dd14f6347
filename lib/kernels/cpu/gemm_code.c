/*
 * gemm_code.c - packing and multiplying in plain C, and who uses what
 *
 * The plain register block is 4 x 8 of whatever the compiler has; without fused multiply-add in
 * the target it multiplies, then adds, as calling libm for each element would take all day. So
 * "plain" has bits of its own, and the identity says which.
 */
#include "kernels/cpu/gemm_code_impl.h"

#include "kernels/cpu/vec_math.h"

#define PLAIN_ROWS 4
#define PLAIN_COLS 8
#define AVX2_ROWS 6
#define AVX2_COLS 16

CPU_INLINE uint32_t lane_at(const void *data, int64_t at, const enum gemm_lane lane)
{
    if (lane == LANE_HALF)
        return vec_to_bits(vec_from_fp16(((const uint16_t *)data)[at]));
    return lane == LANE_WIDENED ? (uint32_t)((const uint16_t *)data)[at] << 16
                                : ((const uint32_t *)data)[at];
}

CPU_INLINE void pack_as(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                        const struct gemm_part *part, const int width, const enum gemm_lane lane)
{
    for (int64_t start = 0; start < part->n_lines; start += width) {
        uint32_t *panel = panels + start / width * panel_stride;
        int64_t n_lines = part->n_lines - start < width ? part->n_lines - start : width;

        for (int64_t k = 0; k < part->n_k; k++)
            for (int64_t line = 0; line < n_lines; line++) {
                int64_t at = (part->line + start + line) * source->line_stride +
                             (part->k + k) * source->k_stride;

                panel[k * width + line] = lane_at(source->data, at, lane);
            }
    }
}

CPU_INLINE void pack(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                     const struct gemm_part *part, const int width)
{
    CHECK(source->lane != LANE_PAIR);
    if (source->lane == LANE_WIDENED)
        pack_as(panels, panel_stride, source, part, width, LANE_WIDENED);
    else if (source->lane == LANE_HALF)
        pack_as(panels, panel_stride, source, part, width, LANE_HALF);
    else
        pack_as(panels, panel_stride, source, part, width, LANE_F32);
}

#define PACK(name, width) \
    static void name(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source, \
                     const struct gemm_part *part) \
    { \
        pack(panels, panel_stride, source, part, width); \
    }
PACK(pack_a_plain, PLAIN_ROWS)
PACK(pack_b_plain, PLAIN_COLS)
PACK(pack_a_avx2, AVX2_ROWS)
PACK(pack_b_avx2, AVX2_COLS)

CPU_INLINE float multiply_add(float a, float b, float sum)
{
#ifdef FP_FAST_FMAF
    return __builtin_fmaf(a, b, sum);
#else
    return a * b + sum;
#endif
}

int cpu_gemm_plain_fuses(void)
{
#ifdef FP_FAST_FMAF
    return 1;
#else
    return 0;
#endif
}

static void multiply_plain(float *c, const uint32_t *a_panel, const uint32_t *b_panel,
                           int64_t n_steps, int fresh, int n_rows, int n_cols)
{
    const float *a = (const float *)(const void *)a_panel;
    const float *b = (const float *)(const void *)b_panel;
    float sums[PLAIN_ROWS][PLAIN_COLS];

    (void)n_rows;
    (void)n_cols;
    for (int r = 0; r < PLAIN_ROWS; r++)
        for (int j = 0; j < PLAIN_COLS; j++)
            sums[r][j] = fresh ? 0.0f : c[r * PLAIN_COLS + j];
    for (int64_t k = 0; k < n_steps; k++) {
        for (int r = 0; r < PLAIN_ROWS; r++)
            for (int j = 0; j < PLAIN_COLS; j++)
                sums[r][j] = multiply_add(a[r], b[j], sums[r][j]);
        a += PLAIN_ROWS;
        b += PLAIN_COLS;
    }
    for (int r = 0; r < PLAIN_ROWS; r++)
        for (int j = 0; j < PLAIN_COLS; j++)
            c[r * PLAIN_COLS + j] = sums[r][j];
}

const struct gemm_code *cpu_gemm_code(const struct cpu_kernels *cpu, enum gemm_lane lane)
{
    static const struct gemm_code plain = { .rows = PLAIN_ROWS,
                                            .cols = PLAIN_COLS,
                                            .steps = 192,
                                            .pack_a = pack_a_plain,
                                            .pack_b = pack_b_plain,
                                            .multiply = multiply_plain };
    static const struct gemm_code avx2 = { .rows = AVX2_ROWS,
                                           .cols = AVX2_COLS,
                                           .steps = 192,
                                           .pack_a = pack_a_avx2,
                                           .pack_b = pack_b_avx2,
                                           .multiply = gemm_multiply_avx2 };
    static const struct gemm_code avx512 = { .rows = 8,
                                             .cols = 48,
                                             .steps = 192,
                                             .pack_a = gemm_pack_a_avx512,
                                             .pack_b = gemm_pack_b_avx512,
                                             .multiply = gemm_multiply_avx512,
                                             .multiply_skinny = gemm_multiply_skinny_avx512 };
    static const struct gemm_code avx512bf16 = { .rows = 8,
                                                 .cols = 48,
                                                 .steps = 192,
                                                 .pack_a = gemm_pack_a_avx512,
                                                 .pack_b = gemm_pack_b_avx512,
                                                 .multiply = gemm_multiply_avx512bf16,
                                                 .multiply_skinny =
                                                     gemm_multiply_skinny_avx512bf16 };

    if (lane == LANE_PAIR) {
        CHECK(cpu->has_avx512_bf16);
        return &avx512bf16;
    }
    return cpu->isa == CPU_ISA_AVX512 ? &avx512 : cpu->isa == CPU_ISA_AVX2 ? &avx2 : &plain;
}
