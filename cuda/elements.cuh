/*
 * elements.cuh - kernels whose output elements are each on their own
 *
 * A thread takes the same pack of columns (16 bytes where rows are aligned) of two rows; a block of
 * 256 takes neighbouring packs of as few rows as fill it, so that narrow rows leave no thread idle
 * and warps read whole lines. All loads of a thread come before its first store: an output may be
 * an input's memory.
 *
 * A function is a struct: F::N columns a pack, what it reads at (row, col) into F::operands, and
 * what it then writes there.
 */
#ifndef CUDA_ELEMENTS_CUH
#define CUDA_ELEMENTS_CUH

#include "cuda/rows.cuh"

enum { ELEMENT_THREADS = 256, ELEMENT_ROWS = 2 /* of a thread */ };

template <typename F>
__global__ void __launch_bounds__(ELEMENT_THREADS)
    elements_kernel(F f, int64_t n_rows, int64_t n_cols, int cols_on_x)
{
    int64_t across = cols_on_x ? blockIdx.x : blockIdx.y;
    int64_t down = cols_on_x ? blockIdx.y : blockIdx.x;
    int64_t col = (across * blockDim.x + threadIdx.x) * F::N;
    int64_t row = down * blockDim.y * ELEMENT_ROWS + threadIdx.y;
    typename F::operands operands[ELEMENT_ROWS];

    if (col >= n_cols)
        return;
#pragma unroll
    for (int i = 0; i < ELEMENT_ROWS; i++)
        if (row + i * blockDim.y < n_rows)
            f.load(&operands[i], row + i * blockDim.y, col);
#pragma unroll
    for (int i = 0; i < ELEMENT_ROWS; i++)
        if (row + i * blockDim.y < n_rows)
            f.store(&operands[i], row + i * blockDim.y, col);
}

/* Whichever of the two grids is longer lies on x. */
static inline struct cuda_shape elements_shape(int64_t n_rows, int64_t n_packs, int *cols_on_x)
{
    struct cuda_shape shape;
    unsigned width = 1;
    int64_t across, down;

    while (width < ELEMENT_THREADS && width < n_packs)
        width *= 2;
    across = ceil_div(n_packs, (int64_t)width);
    down = ceil_div(n_rows, (int64_t)(ELEMENT_THREADS / width * ELEMENT_ROWS));
    *cols_on_x = down <= 65535;
    shape.grid = *cols_on_x ? dim3((unsigned)across, (unsigned)down)
                            : dim3((unsigned)down, (unsigned)across);
    shape.block = dim3(width, ELEMENT_THREADS / width);
    shape.shared_bytes = 0;
    return shape;
}

/* For each of n_rows x n_cols. */
template <typename F>
static void cuda_elements(struct kernels *kernels, const struct kernel_call *call, F f,
                          int64_t n_rows, int64_t n_cols)
{
    int cols_on_x;
    struct cuda_shape shape = elements_shape(n_rows, ceil_div(n_cols, (int64_t)F::N), &cols_on_x);

    cuda_launch(kernels, call, shape, elements_kernel<F>, f, n_rows, n_cols, cols_on_x);
}

#endif
