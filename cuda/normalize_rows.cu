/*
 * normalize_rows.cu - rows of a matrix divided by their lengths, and the gradient of that
 *
 * A row of up to 1024 columns is a warp's, a longer one a block's of 256 threads. It is read for
 * its length, and again to be divided: what a multiprocessor's blocks have at a time fits its L1,
 * so that the second reading costs no memory traffic. Bound by memory: w, y (dy, w, dw twice) once.
 */
#include "cuda/rows.cuh"

enum { N_THREADS = 256, WARP_COLS_MAX = 1024 };

template <typename T> struct normalize {
    rows_of<T> w, y;
    rows_of<float> norm, dy, dw;
    int64_t n_rows, d;
    float eps;
    int first;
};

template <typename T, int WIDE, int LANES>
__global__ void __launch_bounds__(N_THREADS) normalize_kernel(normalize<T> n)
{
    enum { N = 16 / sizeof(T) };
    __shared__ float shared[32];
    int64_t row = ((int64_t)blockIdx.x * N_THREADS + threadIdx.x) / LANES;
    int64_t begin = (int64_t)(threadIdx.x % LANES) * N;
    float w[N], squares[1] = { 0.0f }, norm;

    if (row >= n.n_rows)
        return;
    const T *from = n.w.row(row);
    T *to = n.y.row(row);

#pragma unroll 4
    for (int64_t col = begin; col < n.d; col += LANES * N) {
        load_row_floats<T, N, WIDE>(from + col, n.d - col, w);
#pragma unroll
        for (int i = 0; i < N; i++)
            squares[0] = fmaf(w[i], w[i], squares[0]);
    }
    row_sums<LANES>(squares, shared);
    norm = sqrtf(squares[0]);
    norm = norm < n.eps ? n.eps : norm;
    if (!begin)
        *n.norm.row(row) = norm;
    for (int64_t col = begin; col < n.d; col += LANES * N) {
        load_row_floats<T, N, WIDE>(from + col, n.d - col, w);
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = w[i] / norm;
        store_row_floats<T, N, WIDE>(to + col, n.d - col, w);
    }
}

/* dw adds (dy - y (y dy)) / norm; where eps stood for the length, dy / norm. */
template <typename T, int WIDE, int LANES>
__global__ void __launch_bounds__(N_THREADS) normalize_grad_kernel(normalize<T> n)
{
    enum { N = 16 / sizeof(T) };
    __shared__ float shared[32];
    int64_t row = ((int64_t)blockIdx.x * N_THREADS + threadIdx.x) / LANES;
    int64_t begin = (int64_t)(threadIdx.x % LANES) * N;
    float w[N], dy[N], dw[N], dots[1] = { 0.0f };

    if (row >= n.n_rows)
        return;
    float norm = *n.norm.row(row), inverse = 1.0f / norm;

#pragma unroll 4
    for (int64_t col = begin; col < n.d; col += LANES * N) {
        load_row_floats<T, N, WIDE>(n.w.row(row) + col, n.d - col, w);
        load_row_floats<float, N, WIDE>(n.dy.row(row) + col, n.d - col, dy);
#pragma unroll
        for (int i = 0; i < N; i++)
            dots[0] = fmaf(w[i], dy[i], dots[0]);
    }
    row_sums<LANES>(dots, shared);
    float dot = norm > n.eps ? dots[0] * inverse * inverse : 0.0f;

    for (int64_t col = begin; col < n.d; col += LANES * N) {
        load_row_floats<T, N, WIDE>(n.w.row(row) + col, n.d - col, w);
        load_row_floats<float, N, WIDE>(n.dy.row(row) + col, n.d - col, dy);
        if (!n.first)
            load_row_floats<float, N, WIDE>(n.dw.row(row) + col, n.d - col, dw);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float own = fmaf(-dot, w[i], dy[i]) * inverse;

            dw[i] = n.first ? own : dw[i] + own;
        }
        store_row_floats<float, N, WIDE>(n.dw.row(row) + col, n.d - col, dw);
    }
}

template <typename T, int WIDE>
static void launch(struct kernels *kernels, const struct kernel_call *call, const normalize<T> &n)
{
    int grad = call->op.kind == OP_NORMALIZE_ROWS_GRAD, warps = n.d <= WARP_COLS_MAX;
    int64_t n_blocks = warps ? ceil_div(n.n_rows, N_THREADS / 32) : n.n_rows;
    void (*kernel)(normalize<T>);

    if (grad)
        kernel =
            warps ? normalize_grad_kernel<T, WIDE, 32> : normalize_grad_kernel<T, WIDE, N_THREADS>;
    else
        kernel = warps ? normalize_kernel<T, WIDE, 32> : normalize_kernel<T, WIDE, N_THREADS>;
    cuda_launch(kernels, call, cuda_shape_of(n_blocks, N_THREADS), kernel, n);
}

static int normalize_grad_prepare(struct kernels *, struct kernel_call *call, struct err *err)
{
    return cuda_want_fp32(call, 0, err);
}

static void normalize_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int grad = op->kind == OP_NORMALIZE_ROWS_GRAD;
    const struct tensor *w = grad ? &op->in[NORMALIZE_ROWS_GRAD_W] : &op->in[NORMALIZE_ROWS_W];

    cuda_with_act(w->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        normalize<T> n = {};

        n.w = cuda_rows<T>(w);
        n.n_rows = w->rows;
        n.d = w->cols;
        n.eps = (float)op->attributes.eps;
        n.first = first & 1;
        if (grad) {
            n.dy = cuda_rows<float>(&op->in[NORMALIZE_ROWS_GRAD_DY]);
            n.norm = cuda_rows<float>(&op->in[NORMALIZE_ROWS_GRAD_NORM]);
            n.dw = cuda_rows<float>(&op->out[NORMALIZE_ROWS_GRAD_DW]);
        } else {
            n.y = cuda_rows<T>(&op->out[NORMALIZE_ROWS_Y]);
            n.norm = cuda_rows<float>(&op->out[NORMALIZE_ROWS_NORM]);
        }
        if (cuda_is_aligned(w, 16) && cuda_is_aligned(&op->in[OPS_FIRST], 16) &&
            cuda_is_aligned(&op->out[OPS_FIRST], 16))
            launch<T, 1>(kernels, call, n);
        else
            launch<T, 0>(kernels, call, n);
    });
}

void cuda_register_normalize_rows(struct kernels_backend *table)
{
    table->entries[OP_NORMALIZE_ROWS].run = normalize_run;
    table->entries[OP_NORMALIZE_ROWS_GRAD].run = normalize_run;
    table->entries[OP_NORMALIZE_ROWS_GRAD].prepare = normalize_grad_prepare;
}
