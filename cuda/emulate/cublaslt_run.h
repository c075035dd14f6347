/*
 * cublaslt_run.h - the products of the emulated cuBLASLt, which cublaslt.cc has checked
 */
#ifndef EMULATE_CUBLASLT_RUN_H
#define EMULATE_CUBLASLT_RUN_H

#include "cublasLt.h"

struct emulate_layout {
    cudaDataType_t type;
    int64_t rows, cols, ld; /* column-major */
    int32_t n_batches;
    int64_t batch_offset; /* elements from one matrix to the next */
};

struct emulate_matmul {
    cublasComputeType_t compute;
    int transposed_a, transposed_b;
    uint32_t epilogue;
    const void *bias;
    int bias_type;          /* -1: D's */
    int sm_target;          /* 0: all; at most those that there are */
    const float *scales[2]; /* of A, B */
    int scale_modes[2];
};

/* What a call is about: A[m x k] B[k x n] -> D[m x n], transposed as the descriptor says. */
struct matmul_call {
    emulate_matmul matmul;
    emulate_layout a, b, c, d;
    int64_t m, n, k;
};

static inline size_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1 : 2;
}

static inline int is_fp8(const matmul_call *p)
{
    return p->a.type == CUDA_R_8F_E4M3;
}

struct matmul_operands {
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
};

/* begin: of k, where sums begin; they go round. Not of e4m3. */
void cublaslt_run(const matmul_call &p, const matmul_operands &o, int64_t begin);

#endif
