/*
 * gemm.cuh - a matrix product by cuBLASLt
 *
 *     c[m x n] = (add ? c : 0) + a[m x k] b[k x n] (+ bias)
 *
 * All row-major, a and b also as stored transposed; sums in fp32. The product is whole before the
 * one add to c, and no algorithm is taken that splits k among blocks, so that bits depend on
 * operands, shape and algorithm alone. fp32 is multiplied as fp32, never as TF32.
 *
 * The algorithm is what choices that were loaded say (kernels_choices_load); else, of those that
 * the library's heuristic offers for shape, strides and alignment, the fastest where calls are
 * prepared early (gemm_measure.cu), or the first. It is taken once, when a product is prepared, and
 * kept for all products that are alike.
 *
 * A product beside collectives is to leave them their multiprocessors: it has a target of those
 * that are left, as one of a block for each would end in a second wave. The target is the library's
 * word to the algorithm that was chosen, and no part of what products are alike by: where
 * collectives travel follows from the layout, and bits must not. What is measured for a product
 * with a target is measured with it, and is right with it; any target is tried when a call is
 * prepared early, and taken only if the library has the algorithm with it, and it leaves every bit
 * of a product of all mantissas as it was.
 *
 * Operands of e4m3 have k a multiple of 128, and n one of 16, as the library wants 16 bytes of all.
 * Sums are fp32's throughout (no fast accumulation, which scales of blocks do not allow), and what
 * the library makes of factors is its own: blockwise the contract's sums to rounding. Scales of
 * blocks come with cuBLAS 12.9, on sm_90 alone, and of squares for one operand at most. What they
 * require is said by the cuBLAS documentation ("Scaling Factors Layouts"), and checked by others
 * before they call it: TransformerEngine's transformer_engine/common/gemm/cublaslt_gemm.cu
 * (CanonicalizeGemmInput) and tests/pytorch/test_float8_blockwise_gemm_exact.py, PyTorch's
 * aten/src/ATen/native/cuda/ScaledBlas.cpp:
 *
 *   lines   n is a multiple of 8; so is m, where a has scales of lines
 *           scales [k / 128 x lines]: those of one block lie together
 *   squares scales [lines / 128 x k / 128], whose rows are padded to a multiple of four (16 bytes)
 *
 * Accumulators of 16 bits are read, added to in fp32, and rounded once. Where the library has no
 * such product (their dtype is not that of a and b) it is made in scratch, and added by a kernel of
 * ours.
 *
 * Rows that lie in runs are a strided batch, of which b is the same (a stride of 0).
 *
 * A bias of fp32 goes on the fp32 sum, in the product's epilogue. Where the result is of 16 bits
 * the library wants it in the result's dtype, to which it is rounded first, as weights are; where
 * it has no such epilogue (rows that are not multiples of 16 bytes), the bias is added to the
 * rounded product by a kernel of ours.
 */
#ifndef CUDA_GEMM_CUH
#define CUDA_GEMM_CUH

#include "cuda/cuda.cuh"

/* Factors of operands of e4m3 (or e5m2), that undo their scaling (ops/fp8_recipe.h): one of each, or of blocks of
 * 128 along k, of each line or of 128 lines. */
enum cuda_gemm_scales { GEMM_SCALES_NONE, GEMM_SCALES_ONE, GEMM_SCALES_LINES, GEMM_SCALES_SQUARES };

struct cuda_gemm_shape {
    int64_t m, n, k;
    enum dtype in, out; /* in U8: e4m3, a as stored, b as stored transposed */
    int a_is_e5m2;      /* with it */
    enum cuda_gemm_scales a_scales, b_scales;
    int a_transposed, b_transposed; /* stored as [k x m], [n x k] */
    int64_t lda, ldb, ldc;          /* elements from one stored row to the next */
    /* Rows in runs: so many of m rows each, of a and of c, which begin so many elements behind the
     * run before; b is the same for all. 0: one. Not of a transposed a, nor of e4m3. */
    int64_t n_runs, run_lda, run_ldc;
    int biased;
};

struct cuda_gemm_operands {
    const void *a, *b;
    const float *bias; /* one a column; NULL where the shape is not biased */
    /* With scales, in device memory. Of lines: [k / 128 x lines]; of squares: [lines / 128 x k /
     * 128], rows padded to a multiple of four. */
    const float *a_scales, *b_scales;
    void *c;
    int add;    /* to what is at c */
    int beside; /* multiprocessors that are left to others; kernel_call's, also when prepared */
};

struct cuda_gemm; /* a prepared product; the instance's */

/*
 * operands: what the run will have, or others that are multiples of no more than 16 bytes less;
 * NULL is taken for aligned. Opens the library where it is not yet. Returns 0, or -1 and
 * ERR_DEVICE: there is no library, or it has no such product, or a loaded choice does not fit.
 */
int cuda_gemm_prepare(struct kernels *kernels, const struct cuda_gemm_shape *shape,
                      const struct cuda_gemm_operands *operands, const struct cuda_gemm **gemm,
                      struct err *err);

/* Enqueue. name: the op's, for a failure's message. scratch: gpu_product_scratch_bytes,
 * aligned to 64. */
void cuda_gemm_run(struct kernels *kernels, const char *name, const struct cuda_gemm *gemm,
                   const struct cuda_gemm_operands *operands, void *scratch);

/* The library's version, "130100", or "none"; for the instance's identity. */
void cuda_gemm_describe(struct cuda_kernels *cuda, char *text, size_t size);

/* Hooks of kernels_choices_print, _load and _forget: the lines that begin with "product". */
void cuda_gemm_choices_print(struct kernels *kernels, struct str *text);
int cuda_gemm_choices_load(struct kernels *kernels, const char *text, struct err *err);
void cuda_gemm_choices_forget(struct kernels *kernels);

void cuda_gemm_destroy(struct cuda_kernels *cuda);

#endif
