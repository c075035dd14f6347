/*
 * gemm_impl.h - a matrix product by oneDNN, cut into output tiles
 *
 *     c[m x n] = a[m x k] b[k x n] (+ bias)
 *
 * All row-major, a and b also as stored transposed. The cut follows from the shape alone, each tile
 * is one single-threaded call of oneDNN, so the bits do not depend on the number of threads. k is
 * never cut by us. Operands are all fp32, or all bf16 where the CPU multiplies bf16 (callers widen
 * them first where it does not: cpu_widen).
 *
 * Primitives and memory objects are made by create; run only sets handles.
 */
#ifndef KERNELS_CPU_GEMM_IMPL_H
#define KERNELS_CPU_GEMM_IMPL_H

#include "kernels/cpu/cpu_impl.h"

struct cpu_gemm;

struct cpu_gemm_shape {
    int64_t m, n, k;
    enum dtype in, out;             /* fp32 or bf16 */
    int a_transposed, b_transposed; /* stored as [k x m], [n x k] */
    int64_t lda, ldb, ldc;          /* elements from one stored row to the next */
    int bias;                       /* one fp32 per column */
    int accumulate; /* c = (first ? 0 : c) + product, the product whole before the add; c fp32 */
    int64_t tile_m, tile_n; /* 0: chosen from the shape */
};

struct cpu_gemm_operands {
    const void *a, *b;
    const float *bias;
    void *c;
    int first;
};

/* Returns 0, or -1 and ERR_DEVICE if oneDNN refuses. */
int cpu_gemm_create(struct cpu_gemm **gemm, struct cpu_kernels *cpu,
                    const struct cpu_gemm_shape *shape, struct err *err);
void cpu_gemm_destroy(struct cpu_gemm *gemm);

/* Scratch of a run, for all threads; a multiple of 64. 0 if oneDNN refuses the shape: create says
 * why. */
size_t cpu_gemm_scratch_bytes(struct cpu_kernels *cpu, const struct cpu_gemm_shape *shape);

/* All tiles, on all threads; done on return. scratch: aligned to 64. */
void cpu_gemm_run(struct cpu_gemm *gemm, const struct cpu_gemm_operands *operands, void *scratch);

/* Whether products of this dtype must be made of widened operands. */
static inline int cpu_must_widen(const struct cpu_kernels *cpu, enum dtype dtype)
{
    return dtype == DTYPE_BF16 && !cpu->has_avx512_bf16;
}

/* Bytes of a bf16 tensor widened to dense fp32 rows; a multiple of 64. */
static inline size_t cpu_widen_bytes(const struct tensor *tensor)
{
    return ((size_t)tensor_elements(tensor) * sizeof(float) + 63) / 64 * 64;
}

/* The same numbers as dense fp32 rows at to. */
void cpu_widen(struct cpu_kernels *cpu, const struct tensor *from, float *to);

#endif
