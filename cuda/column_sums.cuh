/*
 * column_sums.cuh - sums over all rows, for gradients of what is added to or times every row
 *
 * In two steps of fixed shape: blocks of rows each leave their sums in scratch, then these are
 * added in order and the total goes to the accumulator in one add. How rows are cut follows from
 * how many there are alone.
 *
 * The columns of a gradient (bias_grad, and linear_dw's db) are added in fp64: exact to the one
 * rounding to fp32, as the CPU's are. A lane takes 16 bytes of a row and a warp every
 * COLUMN_WARPS-th row of its block, so that all is whole lines with several loads in flight. Bound
 * by reading dy: fp64 adds and conversions take less time on GPUs that have fp64 units to speak of.
 *
 * rope_grad writes q's and k's columns of a dy just before, and could add them up in this very
 * order, rows cut and warps taking turns as here, so with the same bits. It does not. Of Qwen2.5-7B
 * that saves reading (28 + 4) * 128 columns of 2 bytes, 8 KB a token and layer: 28 layers at 3 TB/s
 * are 0.08 us of the 68 to 73 us that a token takes, 0.1 %. v's columns, which nobody rotates,
 * would be added by two launches of their own for 128 blocks of a few rows a warp, estimated at 7
 * of the 12 us that 4096 tokens save: 0.05 % are left. For that the accumulator would be written by
 * two ops in halves, and every pass from split_backward to shard takes it for one value of one op.
 * Nor is the epilogue of the product that reads dy (CUBLASLT_EPILOGUE_BGRADB) one for us: it adds
 * in fp32, in an order of its own.
 */
#ifndef CUDA_COLUMN_SUMS_CUH
#define CUDA_COLUMN_SUMS_CUH

#include "cuda/rows.cuh"

enum {
    COLUMN_WARPS = 8,
    COLUMN_THREADS = 32 * COLUMN_WARPS,
};

/* ---- totals ------------------------------------------------------------------------------------
 */

/*
 * out[c] = (first ? 0 : out[c]) + the sum of partial[0..n_blocks-1][c], rows of `stride`. A warp
 * adds a run of blocks for 32 columns, then the runs are added in order.
 */
template <typename P>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    column_totals_kernel(const P *partial, int64_t stride, int64_t n_blocks, int64_t n, float *out,
                         int first)
{
    __shared__ P sums[COLUMN_WARPS][32];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t col = (int64_t)blockIdx.x * 32 + lane,
            each = (n_blocks + COLUMN_WARPS - 1) / COLUMN_WARPS;
    int64_t block = warp * each, end = block + each < n_blocks ? block + each : n_blocks;
    P sum = 0;

    if (col < n)
#pragma unroll 4
        for (; block < end; block++)
            sum += partial[block * stride + col];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp || col >= n)
        return;
    for (int w = 1; w < COLUMN_WARPS; w++)
        sum += sums[w][lane];
    out[col] = first ? (float)sum : out[col] + (float)sum;
}

template <typename P>
static inline void cuda_column_totals(struct kernels *kernels, const struct kernel_call *call,
                                      const P *partial, int64_t stride, int64_t n_blocks,
                                      const struct tensor *out, int first)
{
    if (tensor_given(out))
        cuda_launch(kernels, call, cuda_shape_of(ceil_div(out->cols, 32), COLUMN_THREADS),
                    column_totals_kernel<P>, partial, stride, n_blocks, out->cols,
                    (float *)out->data, first);
}

/* ---- columns' sums -----------------------------------------------------------------------------
 */

template <typename T, int N>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    column_partials_kernel(rows_of<T> dy, double *partial, int64_t n_rows, int64_t n,
                           int64_t rows_a_block)
{
    __shared__ double sums[COLUMN_WARPS][32 * N];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t begin = (int64_t)blockIdx.y * 32 * N, col = begin + lane * N;
    int64_t row = (int64_t)blockIdx.x * rows_a_block;
    int64_t end = row + rows_a_block < n_rows ? row + rows_a_block : n_rows;
    double sum[N] = {};

    if (col < n)
#pragma unroll 4
        for (row += warp; row < end; row += COLUMN_WARPS) {
            float own[N];

            load_floats<T, N>(dy.row(row) + col, own);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += (double)own[i];
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        sums[warp][i * 32 + lane] = sum[i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 32 * N && begin + i < n; i += COLUMN_THREADS) {
        int at = i % N * 32 + i / N;
        double total = sums[0][at];

        for (int w = 1; w < COLUMN_WARPS; w++)
            total += sums[w][at];
        partial[(int64_t)blockIdx.x * n + begin + i] = total;
    }
}

/*
 * db[1 x n] fp32 = (first ? 0 : db) + the sums of dy's columns, dy any activation's dtype. Whether
 * dy is aligned changes no bit.
 */
static inline void cuda_column_sums(struct kernels *kernels, const struct kernel_call *call,
                                    const struct tensor *dy, const struct tensor *db, void *scratch,
                                    int first)
{
    int64_t rows_a_block = gpu_column_block_rows(dy->rows);
    int64_t n_blocks = ceil_div(dy->rows, rows_a_block);
    int wide = cuda_is_aligned(dy, 16);

    cuda_with_act(dy->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        enum { N = 16 / sizeof(T) };
        struct cuda_shape shape = cuda_shape_of_rows(n_blocks, dy->cols, 32, wide ? N : 1);

        shape.block = dim3(COLUMN_THREADS);
        cuda_launch(kernels, call, shape,
                    wide ? column_partials_kernel<T, N> : column_partials_kernel<T, 1>,
                    cuda_rows<T>(dy), (double *)scratch, dy->rows, dy->cols, rows_a_block);
    });
    cuda_column_totals(kernels, call, (const double *)scratch, dy->cols, n_blocks, db, first);
}

#endif
