/*
 * gate_rows.cu - gate_rows, gate_rows_grad: each row times the sigmoid of its own gate
 *
 * A row a warp, a lane 16 bytes at a time where rows are aligned to that: bound by memory. A gate's
 * gradient is the warp's sum along the row.
 */
#include "cuda/packs.cuh"

enum { ROWS_A_BLOCK = 8 };

static __device__ __forceinline__ float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

struct gating {
    rows_of<float> gate, dgate;
    int64_t rows, cols;
};

template <typename T, int N>
__global__ void __launch_bounds__(ROWS_A_BLOCK * 32)
    gate_rows_kernel(struct gating p, rows_of<T> x, rows_of<T> y)
{
    int64_t row = (int64_t)blockIdx.x * ROWS_A_BLOCK + threadIdx.x / 32;

    if (row >= p.rows)
        return;
    float s = sigmoid_of(*p.gate.row(row));

    for (int64_t col = (int64_t)(threadIdx.x % 32) * N; col < p.cols; col += 32 * N) {
        packed<T, N> in = *(const packed<T, N> *)(x.row(row) + col), out;

        for (int k = 0; k < N; k++)
            out.at[k] = from_float<T>(s * to_float(in.at[k]));
        *(packed<T, N> *)(y.row(row) + col) = out;
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(ROWS_A_BLOCK * 32)
    gate_rows_grad_kernel(struct gating p, rows_of<T> dy, rows_of<T> x, rows_of<T> dx)
{
    int64_t row = (int64_t)blockIdx.x * ROWS_A_BLOCK + threadIdx.x / 32;

    if (row >= p.rows)
        return;
    float s = sigmoid_of(*p.gate.row(row)), sum = 0;

    for (int64_t col = (int64_t)(threadIdx.x % 32) * N; col < p.cols; col += 32 * N) {
        packed<T, N> gs = *(const packed<T, N> *)(dy.row(row) + col);
        packed<T, N> xs = *(const packed<T, N> *)(x.row(row) + col), out;

        for (int k = 0; k < N; k++) {
            float g = to_float(gs.at[k]);

            sum = fmaf(g, to_float(xs.at[k]), sum);
            out.at[k] = from_float<T>(s * g);
        }
        *(packed<T, N> *)(dx.row(row) + col) = out;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        *p.dgate.row(row) = s * (1.0f - s) * sum;
}

static struct gating gating_of(const struct tensor *x, const struct tensor *gate)
{
    struct gating p = {};

    p.gate = cuda_rows<float>(gate);
    p.rows = x->rows;
    p.cols = x->cols;
    return p;
}

static struct cuda_shape shape_of(const struct gating &p)
{
    return cuda_shape_of(ceil_div(p.rows, ROWS_A_BLOCK), ROWS_A_BLOCK * 32);
}

static void gate_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *x = &call->op.in[GATE_ROWS_X], *y = &call->op.out[GATE_ROWS_Y];
    struct gating p = gating_of(x, &call->op.in[GATE_ROWS_GATE]);

    (void)first;
    with_packs(x->dtype, cuda_is_aligned(x, 16) && cuda_is_aligned(y, 16),
               [&](auto zero, auto length) {
                   typedef decltype(zero) T;
                   enum { N = decltype(length)::N_ELEMENTS };

                   cuda_launch(kernels, call, shape_of(p), gate_rows_kernel<T, N>, p,
                               cuda_rows<T>(x), cuda_rows<T>(y));
               });
}

static void gate_rows_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *dy = &call->op.in[GATE_ROWS_GRAD_DY], *x = &call->op.in[GATE_ROWS_GRAD_X],
                        *dx = &call->op.out[GATE_ROWS_GRAD_DX];
    struct gating p = gating_of(x, &call->op.in[GATE_ROWS_GRAD_GATE]);
    int wide = cuda_is_aligned(dy, 16) && cuda_is_aligned(x, 16) && cuda_is_aligned(dx, 16);

    (void)first;
    p.dgate = cuda_rows<float>(&call->op.out[GATE_ROWS_GRAD_DGATE]);
    with_packs(x->dtype, wide, [&](auto zero, auto length) {
        typedef decltype(zero) T;
        enum { N = decltype(length)::N_ELEMENTS };

        cuda_launch(kernels, call, shape_of(p), gate_rows_grad_kernel<T, N>, p, cuda_rows<T>(dy),
                    cuda_rows<T>(x), cuda_rows<T>(dx));
    });
}

void cuda_register_gate_rows(struct kernels_backend *table)
{
    table->entries[OP_GATE_ROWS].run = gate_rows_run;
    table->entries[OP_GATE_ROWS_GRAD].run = gate_rows_grad_run;
}
