/*
 * fp8_rows.cu - codes of rows that have been stored (fp8_rows.cuh)
 *
 * A warp has a block of 128 columns of a row, or the whole row where that has one largest element.
 * Bound by memory, whose second reading is often the L2's.
 */
#include "cuda/fp8_rows.cuh"

enum { N_THREADS = 256, N_COLS = OPS_FP8_BLOCK / 32 /* of a lane, in turns */ };

struct stored_rows {
    rows_of<bf16> x;
    fp8_rows coded;
    int64_t n_rows, n_cols, n_across;
};

/* The larger of `most` and the bits of |x|, which are ordered as it is. */
static __device__ __forceinline__ uint32_t larger_size(uint32_t most, float x)
{
    uint32_t size = __float_as_uint(x) & 0x7fffffffu;

    return size > most ? size : most;
}

static __device__ __forceinline__ void code_block(const stored_rows &s, int64_t row, int64_t block)
{
    int64_t first = block * OPS_FP8_BLOCK + threadIdx.x % 32;
    float x[N_COLS];
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < N_COLS; i++) {
        x[i] = first + 32 * i < s.n_cols ? to_float(s.x.row(row)[first + 32 * i]) : 0.0f;
        most = larger_size(most, x[i]);
    }
    most = largest_among(most, 32);
    float scale = e4m3_scale(most), divisor = scale > 0 ? scale : 1.0f;
#pragma unroll
    for (int i = 0; i < N_COLS; i++)
        if (first + 32 * i < s.n_cols)
            s.coded.codes[row * s.coded.code_stride + first + 32 * i] =
                scale > 0 ? e4m3_code(x[i] / divisor) : 0;
    if (threadIdx.x % 32 == 0)
        s.coded.most[row * s.coded.most_stride + block] = __uint_as_float(most);
}

static __device__ __forceinline__ void measure_row(const stored_rows &s, int64_t row)
{
    uint32_t most = 0;

    for (int64_t col = threadIdx.x % 32; col < s.n_cols; col += 32)
        most = larger_size(most, to_float(s.x.row(row)[col]));
    most = largest_among(most, 32);
    if (threadIdx.x % 32 == 0)
        s.coded.most[row * s.coded.most_stride] = __uint_as_float(most);
}

static __global__ void __launch_bounds__(N_THREADS) code_rows_kernel(stored_rows s)
{
    int64_t warp = ((int64_t)blockIdx.x * N_THREADS + threadIdx.x) / 32;
    int64_t row = warp / s.n_across;

    if (row >= s.n_rows)
        return;
    if (s.coded.codes)
        code_block(s, row, warp - row * s.n_across);
    else
        measure_row(s, row);
}

struct fp8_rows cuda_fp8_rows(const struct op_shape *op)
{
    int codes = op_info(op->kind)->codes_output - 1;
    struct fp8_rows rows = {};

    if (codes < 0 || !tensor_given(&op->out[codes + 1]))
        return rows;
    rows.most = (float *)op->out[codes + 1].data;
    rows.most_stride = op->out[codes + 1].stride;
    if (tensor_given(&op->out[codes])) {
        rows.codes = (uint8_t *)op->out[codes].data;
        rows.code_stride = op->out[codes].stride;
    }
    return rows;
}

void cuda_code_rows(struct kernels *kernels, const struct kernel_call *call)
{
    const struct tensor *x = &call->op.out[ops_rounded_output(&call->op)];
    stored_rows s = {};

    s.x = cuda_rows<bf16>(x);
    s.coded = cuda_fp8_rows(&call->op);
    s.n_rows = x->rows;
    s.n_cols = x->cols;
    s.n_across = s.coded.codes ? ceil_div(x->cols, (int64_t)OPS_FP8_BLOCK) : 1;
    cuda_launch(kernels, call,
                cuda_shape_of(ceil_div(s.n_rows * s.n_across * 32, N_THREADS), N_THREADS),
                code_rows_kernel, s);
}
