/*
 * ema.cu - the moving average of a parameter
 *
 * With the bits of lib/kernels/cpu/ema.c, which says which IEEE operations in which order. A thread
 * has four elements, one load of 16 bytes each of x and average where both are dense, and so has
 * threads' neighbours beside it; bound by memory.
 */
#include "cuda/rows.cuh"

enum { EMA_THREADS = 256, EMA_WIDTH = 4 };

/* x, or its upper words where low is given. */
template <typename X> struct ema_operands {
    rows_of<const X> x;
    rows_of<const uint16_t> low; /* at is NULL where there are none */
    rows_of<float> average;
    const float *scalars;
    const int32_t *skip;
    int64_t cols, n;
    float rate;
};

static __device__ __forceinline__ float joined(uint32_t upper, uint32_t lower)
{
    return __uint_as_float((upper << 16) + lower - ((lower & 0x8000u) << 1));
}

static __device__ __forceinline__ float whole_of(const ema_operands<float> &e, int64_t row,
                                                 int64_t col)
{
    return e.x.row(row)[col];
}

static __device__ __forceinline__ float whole_of(const ema_operands<uint16_t> &e, int64_t row,
                                                 int64_t col)
{
    return joined(e.x.row(row)[col], e.low.at ? e.low.row(row)[col] : 0);
}

static __device__ __forceinline__ float averaged(float average, float x, float rate, bool copies)
{
    return copies ? x : average + rate * (x - average);
}

template <typename X> __global__ void __launch_bounds__(EMA_THREADS) ema_kernel(ema_operands<X> e)
{
    int64_t at = ((int64_t)blockIdx.x * EMA_THREADS + threadIdx.x) * EMA_WIDTH;
    bool copies = e.scalars[SCALAR_UPDATE] <= 1;

    if (*e.skip)
        return;
    for (int64_t i = at; i < at + EMA_WIDTH && i < e.n; i++) {
        int64_t row = i / e.cols, col = i % e.cols;
        float *average = e.average.row(row) + col;

        *average = averaged(*average, whole_of(e, row, col), e.rate, copies);
    }
}

/* Of fp32 at addresses of 16 bytes. */
__global__ void __launch_bounds__(EMA_THREADS) ema_wide_kernel(ema_operands<float> e)
{
    int64_t at = ((int64_t)blockIdx.x * EMA_THREADS + threadIdx.x) * EMA_WIDTH;
    bool copies = e.scalars[SCALAR_UPDATE] <= 1;

    if (*e.skip || at >= e.n)
        return;
    if (at + EMA_WIDTH > e.n) {
        for (int64_t i = at; i < e.n; i++)
            e.average.at[i] = averaged(e.average.at[i], e.x.at[i], e.rate, copies);
        return;
    }
    float4 x = *(const float4 *)(e.x.at + at), average = *(const float4 *)(e.average.at + at);
    average.x = averaged(average.x, x.x, e.rate, copies);
    average.y = averaged(average.y, x.y, e.rate, copies);
    average.z = averaged(average.z, x.z, e.rate, copies);
    average.w = averaged(average.w, x.w, e.rate, copies);
    *(float4 *)(e.average.at + at) = average;
}

template <typename X> static ema_operands<X> operands_of(const struct op_shape *op)
{
    ema_operands<X> e = { cuda_rows<const X>(&op->in[EMA_X]),
                          cuda_rows<const uint16_t>(&op->in[EMA_LOW]),
                          cuda_rows<float>(&op->in[EMA_AVERAGE]),
                          (const float *)op->in[EMA_SCALARS].data,
                          (const int32_t *)op->in[EMA_SKIP_UPDATE].data,
                          op->in[EMA_X].cols,
                          tensor_elements(&op->in[EMA_X]),
                          (float)op->attributes.rate };

    return e;
}

static bool is_flat(const struct tensor *t)
{
    return cuda_is_dense(t) && (uintptr_t)t->data % 16 == 0;
}

static void ema_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int64_t n_threads = ceil_div(tensor_elements(&op->in[EMA_X]), EMA_WIDTH);
    struct cuda_shape shape = cuda_shape_of(ceil_div(n_threads, EMA_THREADS), EMA_THREADS);

    (void)first;
    if (op->in[EMA_X].dtype != DTYPE_F32)
        cuda_launch(kernels, call, shape, ema_kernel<uint16_t>, operands_of<uint16_t>(op));
    else if (is_flat(&op->in[EMA_X]) && is_flat(&op->in[EMA_AVERAGE]))
        cuda_launch(kernels, call, shape, ema_wide_kernel, operands_of<float>(op));
    else
        cuda_launch(kernels, call, shape, ema_kernel<float>, operands_of<float>(op));
}

void cuda_register_ema(struct kernels_backend *table)
{
    table->entries[OP_EMA].run = ema_run;
}
