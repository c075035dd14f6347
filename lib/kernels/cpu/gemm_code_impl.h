/*
 * gemm_code_impl.h - the inner loops of a product, one set an instruction set
 *
 * Both operands are packed into panels: `width` lines (rows of a, or columns of b) whose elements
 * lie side by side for one step of k, then those of the next step. A step is a 32-bit lane a line:
 * one float, or two bf16 neighbours in k (odd k: the last one is paired with zero). So one loop
 * serves both types. A register block multiplies a panel of a, one lane a row broadcast, with a
 * panel of b, one vector a step.
 *
 * Order of sums: an element is one chain of fused multiply-adds over k, increasing, that starts at
 * +0. Blocks of k continue the chain from the fp32 they have stored, so no block size, tile or
 * thread shows in the bits; and fp32 products are the same on every instruction set with fused
 * multiply-add. A lane of two bf16 is one step of VDPBF16PS, whose rounding is its own.
 */
#ifndef KERNELS_CPU_GEMM_CODE_IMPL_H
#define KERNELS_CPU_GEMM_CODE_IMPL_H

#include "kernels/cpu/cpu_impl.h"

enum gemm_lane {
    LANE_F32,
    LANE_PAIR,    /* two bf16 */
    LANE_WIDENED, /* a bf16 as float */
    LANE_HALF,    /* an fp16 as float */
};

/* Where lines come from: element (line, k) stands at data + (line * line_stride + k * k_stride)
 * elements, one of the strides being 1. */
struct gemm_source {
    const void *data;
    int64_t line_stride, k_stride;
    enum gemm_lane lane;
};

/* A rectangle of a source: n_lines lines of n_k elements. */
struct gemm_part {
    int64_t line, k;
    int64_t n_lines, n_k;
};

struct gemm_code {
    int rows, cols; /* of a register block: widths of the panels of a and b */
    int steps;      /* of k that a panel of b may have to stay in the first-level cache */
    /*
     * Write a part as panels, panel_stride lanes from one to the next, each of ceil(n_k / elements
     * a lane) steps. Lines that are missing from the last panel become zero or stay what they are.
     * Nothing outside of the part is read.
     */
    void (*pack_a)(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                   const struct gemm_part *part);
    void (*pack_b)(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                   const struct gemm_part *part);
    /*
     * c[rows x cols, dense] = (fresh ? 0 : c) + a b over n_steps >= 1, the first n_rows and n_cols
     * of it at least; the others may get any value.
     */
    void (*multiply)(float *c, const uint32_t *a, const uint32_t *b, int64_t n_steps, int fresh,
                     int n_rows, int n_cols);
    /*
     * c[rows x cols, dense] = a b for at most cols lines of b that lie along k (k_stride 1), and
     * all k, with the bits of the above: b passes through registers once and is packed nowhere. a:
     * one panel. Pays where there is no more than one. NULL: not here.
     */
    void (*multiply_skinny)(float *c, const uint32_t *a, const struct gemm_source *b,
                            const struct gemm_part *part, int n_rows);
};

/* Of the best instruction set that the instance may use; LANE_PAIR only with has_avx512_bf16. */
const struct gemm_code *cpu_gemm_code(const struct cpu_kernels *cpu, enum gemm_lane lane);

/*
 * Whether "plain" was compiled for a machine with fused multiply-add (CFLAGS=-march=native), and
 * has the bits of the others' fp32 products then; without it multiplies, then adds.
 */
int cpu_gemm_plain_fuses(void);

/* Each entered only where the CPU has its instructions. */
void gemm_pack_a_avx512(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                        const struct gemm_part *part);
void gemm_pack_b_avx512(uint32_t *panels, int64_t panel_stride, const struct gemm_source *source,
                        const struct gemm_part *part);
void gemm_multiply_avx2(float *c, const uint32_t *a, const uint32_t *b, int64_t n_steps, int fresh,
                        int n_rows, int n_cols);
void gemm_multiply_avx512(float *c, const uint32_t *a, const uint32_t *b, int64_t n_steps,
                          int fresh, int n_rows, int n_cols);
void gemm_multiply_avx512bf16(float *c, const uint32_t *a, const uint32_t *b, int64_t n_steps,
                              int fresh, int n_rows, int n_cols);
void gemm_multiply_skinny_avx512(float *c, const uint32_t *a, const struct gemm_source *b,
                                 const struct gemm_part *part, int n_rows);
void gemm_multiply_skinny_avx512bf16(float *c, const uint32_t *a, const struct gemm_source *b,
                                     const struct gemm_part *part, int n_rows);

#endif
