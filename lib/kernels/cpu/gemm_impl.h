/*
 * gemm_impl.h - a matrix product
 *
 *     c[m x n] = a[m x k] b[k x n] (+ bias)
 *
 * All row-major, a and b also as stored transposed. Element sums have one order (gemm_code_impl.h),
 * so bits depend on operands, k and instruction set alone: threads, tiles, blocks, and rows or
 * columns computed apart do not show. bf16 operands are multiplied as pairs where the CPU does
 * that, else widened while they are packed, as those of fp16 are.
 */
#ifndef KERNELS_CPU_GEMM_IMPL_H
#define KERNELS_CPU_GEMM_IMPL_H

#include "kernels/cpu/cpu_impl.h"

struct cpu_gemm_shape {
    int64_t m, n, k;
    enum dtype in, out;             /* fp32, bf16 or fp16; out fp32 or in */
    int a_transposed, b_transposed; /* stored as [k x m], [n x k] */
    int64_t lda, ldb, ldc;          /* elements from one stored row to the next */
    /*
     * Rows of a and c lie together in runs: m is a multiple of run_rows, and each run begins so
     * many elements behind the one before. 0: all do. Not of a transposed a, nor with scales.
     */
    int64_t run_rows, run_lda, run_ldc;
    int accumulate; /* c = (first ? 0 : c) + product, the product whole before the add in fp32 */
    /*
     * Scales of blocks of k (ops/fp8_recipe.h): of so many elements, a multiple of 2, the last
     * block maybe shorter. The sum of a block's products begins at 0, and is multiplied with a's
     * and b's scale: sum = fma(a's * b's, the block's, sum). Of one block, a's * b's * the block's.
     * 0: no scales.
     */
    int64_t scaled_k;
};

/* Line i (a row of a, a column of b) has in block j of k the scale
 * at[(i >> shift) * line_stride + j * k_stride]: one for each 1 << shift lines. */
struct cpu_gemm_scales {
    const float *at;
    int shift;
    int64_t line_stride, k_stride;
};

struct cpu_gemm_operands {
    const void *a, *b;
    const float *bias; /* one a column, added to the finished sum; NULL: none */
    void *c;
    int first;
    struct cpu_gemm_scales a_scales, b_scales; /* with scaled_k */
};

/* Scratch of a run, for all threads; a multiple of 64. */
size_t cpu_gemm_scratch_bytes(const struct cpu_kernels *cpu, const struct cpu_gemm_shape *shape);

/* No less than that of any product with at most so many rows and at most such a k; likewise. */
size_t cpu_gemm_scratch_most(const struct cpu_kernels *cpu, const struct cpu_gemm_shape *shape);

/* All of it, on all threads; done on return. scratch: aligned to 64. */
void cpu_gemm_run(struct cpu_kernels *cpu, const struct cpu_gemm_shape *shape,
                  const struct cpu_gemm_operands *operands, void *scratch);

#endif
