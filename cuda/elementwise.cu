/*
 * elementwise.cu - swiglu and its gradient (others to come)
 *
 * A thread takes packs of 16 bytes where rows are aligned, else elements one by one; a block of 256
 * takes consecutive packs of one row, so that warps read whole lines. Bound by memory.
 */
#include "cuda/cuda.cuh"

enum { N_THREADS = 256 };

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <typename T, int N>
__global__ void swiglu_kernel(rows_of<T> gu, rows_of<T> y, int64_t f)
{
    int64_t row = blockIdx.x, col = ((int64_t)blockIdx.y * N_THREADS + threadIdx.x) * N;

    if (col >= f)
        return;
    packed<T, N> gate = *(const packed<T, N> *)(gu.row(row) + col);
    packed<T, N> up = *(const packed<T, N> *)(gu.row(row) + f + col), out;

    for (int i = 0; i < N; i++) {
        float g = to_float(gate.at[i]);

        out.at[i] = from_float<T>(g * sigmoid(g) * to_float(up.at[i]));
    }
    *(packed<T, N> *)(y.row(row) + col) = out;
}

template <typename T, int N> static void swiglu_launch(struct kernels *kernels,
                                                       const struct kernel_call *call)
{
    const struct tensor *gu = &call->op.in[0], *y = &call->op.out[0];
    struct cuda_shape shape = { dim3((unsigned)y->rows, (unsigned)ceil_div(y->cols, N_THREADS * N)),
                                dim3(N_THREADS), 0 };

    cuda_launch(kernels, call, shape, swiglu_kernel<T, N>, cuda_rows<T>(gu), cuda_rows<T>(y),
                y->cols);
}

static void swiglu_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *gu = &call->op.in[0], *y = &call->op.out[0];
    int wide = cuda_is_aligned(y, 16) && cuda_is_aligned(gu, 16);

    (void)first;
    cuda_with_act(y->dtype, [&](auto zero) {
        typedef decltype(zero) T;

        if (wide)
            swiglu_launch<T, 16 / sizeof(T)>(kernels, call);
        else
            swiglu_launch<T, 1>(kernels, call);
    });
}

void cuda_register_elementwise(struct kernels_backend *table)
{
    table->entries[OP_SWIGLU].run = swiglu_run;
}
