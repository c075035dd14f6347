/*
 * norm.cu - RMSNorm and LayerNorm, alone and fused with the residual add
 *
 * A row of up to 1024 columns is a warp's, a longer one a block's of 128 to 512 threads, so that
 * each thread has up to 32 elements of it in registers: x (and delta) are read once, sums need no
 * second reading. Rows over 16384 columns are read again for each sum. Bound by memory: x, delta,
 * y and sum once each; w and b stay in the L1.
 *
 * Which thread has which columns follows from d and y's dtype: with and without delta, and however
 * operands lie, the bits are the same.
 */
#include "cuda/fp8_rows.cuh"
#include "cuda/norm.cuh"

enum { N_THREADS_MIN = 128, N_ELEMENTS = 32 /* of a thread */, LANES_MAX = 512 };

/* T: of activations, R: of the residual stream */
template <typename T, typename R> struct norm_rows {
    rows_of<R> x, sum;
    rows_of<T> delta; /* absent: at is NULL, as below */
    const float *w, *b;
    rows_of<T> y;
    rows_of<float> mean; /* absent: RMSNorm */
    rows_of<float> rstd;
    fp8_rows coded;
    int64_t n_rows, d;
    float eps;
};

/* Sum of (x - mean)^2, of those elements that are there. */
template <int N>
static __device__ __forceinline__ float add_squares(float squares, const float *x, float mean,
                                                    int64_t n_left)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < n_left)
            squares = fmaf(x[i] - mean, x[i] - mean, squares);
    return squares;
}

/* A pack of y out of x; if y is coded (fp8_rows.cuh), the bits of its largest element. */
template <typename T, typename R, int N, int WIDE, int CODED>
static __device__ __forceinline__ uint32_t put_normed(const norm_rows<T, R> &n, int64_t row,
                                                      int64_t col, const float *x, float mean,
                                                      float rstd)
{
    float w[N], b[N], y[N];

    load_constants<N, WIDE>(n.w + col, n.d - col, w);
    if (n.b)
        load_constants<N, WIDE>(n.b + col, n.d - col, b);
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = n.b ? fmaf((x[i] - mean) * rstd, w[i], b[i]) : (x[i] - mean) * rstd * w[i];
    store_row_floats<T, N, WIDE>(n.y.row(row) + col, n.d - col, y);
    if constexpr (CODED)
        return code_unrounded<T, N>(n.coded, row, col, y, n.d - col, OPS_FP8_BLOCK / N);
    return 0;
}

/* The row's packs of a thread: x + delta as it is stored. Loads come before stores, as the
 * compiler does not know that these do not change what is loaded. */
template <typename T, typename R, int N, int WIDE, int LANES, int N_PACKS>
static __device__ __forceinline__ void get_row(const norm_rows<T, R> &n, int64_t row, int lane,
                                               float (&x)[N_PACKS][N])
{
#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        int64_t col = (int64_t)(p * LANES + lane) * N;

        load_row_floats<R, N, WIDE>(n.x.row(row) + col, n.d - col, x[p]);
    }
    if (!n.delta.at)
        return;

    float delta[N_PACKS][N];

#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        int64_t col = (int64_t)(p * LANES + lane) * N;

        load_row_floats<T, N, WIDE>(n.delta.row(row) + col, n.d - col, delta[p]);
    }
#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        int64_t col = (int64_t)(p * LANES + lane) * N;

#pragma unroll
        for (int i = 0; i < N; i++)
            x[p][i] = to_float(from_float<R>(x[p][i] + delta[p][i]));
        store_row_floats<R, N, WIDE>(n.sum.row(row) + col, n.d - col, x[p]);
    }
}

template <typename T, typename R, int N, int WIDE, int LANES, int CODED>
__global__ void __launch_bounds__(LANES < N_THREADS_MIN ? N_THREADS_MIN : LANES)
    norm_kernel(norm_rows<T, R> n)
{
    enum { N_PACKS = N_ELEMENTS / N };
    __shared__ float shared[2][32];
    __shared__ uint32_t sizes[CODED ? 32 : 1];
    uint32_t most = 0;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    int lane = (int)threadIdx.x % LANES;
    float x[N_PACKS][N], mean = 0.0f, rstd;

    if (row >= n.n_rows)
        return;
    get_row<T, R, N, WIDE, LANES>(n, row, lane, x);
    if (n.mean.at) {
        float sum[1] = { 0.0f };

#pragma unroll
        for (int p = 0; p < N_PACKS; p++)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[0] += x[p][i];
        row_sums<LANES>(sum, shared[0]);
        mean = sum[0] / (float)n.d;
    }

    float squares[1] = { 0.0f };

#pragma unroll
    for (int p = 0; p < N_PACKS; p++)
        squares[0] = add_squares<N>(squares[0], x[p], mean, n.d - (int64_t)(p * LANES + lane) * N);
    row_sums<LANES>(squares, shared[1]);
    rstd = 1.0f / sqrtf(squares[0] / (float)n.d + n.eps);
#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        uint32_t size = put_normed<T, R, N, WIDE, CODED>(n, row, (int64_t)(p * LANES + lane) * N,
                                                         x[p], mean, rstd);

        most = size > most ? size : most;
    }
    if (CODED)
        put_largest<LANES>(n.coded, row, most, sizes);
    if (!lane) {
        *n.rstd.row(row) = rstd;
        if (n.mean.at)
            *n.mean.row(row) = mean;
    }
}

/* Rows of any length, a block of LANES_MAX each. A thread reads again what it wrote itself. */
template <typename T, typename R, int N, int WIDE>
__global__ void __launch_bounds__(LANES_MAX) norm_long_kernel(norm_rows<T, R> n)
{
    __shared__ float shared[2][32];
    int64_t row = blockIdx.x, begin = (int64_t)threadIdx.x * N, step = LANES_MAX * N;
    const R *from = n.delta.at ? n.sum.row(row) : n.x.row(row);
    float x[1][N], sum[1] = { 0.0f }, squares[1] = { 0.0f }, mean = 0.0f, rstd;

    for (int64_t col = begin; col < n.d; col += step) {
        norm_rows<T, R> at = n;

        at.x.at += col, at.delta.at += n.delta.at ? col : 0, at.sum.at += col, at.d -= col;
        get_row<T, R, N, WIDE, LANES_MAX>(at, row, 0, x);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[0] += x[0][i];
    }
    row_sums<LANES_MAX>(sum, shared[0]);
    if (n.mean.at)
        mean = sum[0] / (float)n.d;
    for (int64_t col = begin; col < n.d; col += step) {
        load_row_floats<R, N, WIDE>(from + col, n.d - col, x[0]);
        squares[0] = add_squares<N>(squares[0], x[0], mean, n.d - col);
    }
    row_sums<LANES_MAX>(squares, shared[1]);
    rstd = 1.0f / sqrtf(squares[0] / (float)n.d + n.eps);
    for (int64_t col = begin; col < n.d; col += step) {
        load_row_floats<R, N, WIDE>(from + col, n.d - col, x[0]);
        put_normed<T, R, N, WIDE, 0>(n, row, col, x[0], mean, rstd);
    }
    if (!threadIdx.x) {
        *n.rstd.row(row) = rstd;
        if (n.mean.at)
            *n.mean.row(row) = mean;
    }
}

/* ---- launching ---------------------------------------------------------------------------------
 */

template <typename T, typename R, int N, int WIDE, int LANES>
static void launch_lanes(struct kernels *kernels, const struct kernel_call *call,
                         const norm_rows<T, R> &n)
{
    enum { N_THREADS = LANES < N_THREADS_MIN ? N_THREADS_MIN : LANES };

    struct cuda_shape shape = cuda_shape_of(ceil_div(n.n_rows * LANES, N_THREADS), N_THREADS);

    if constexpr (WIDE && std::is_same<T, bf16>::value)
        if (n.coded.most)
            return cuda_launch(kernels, call, shape, norm_kernel<T, R, N, WIDE, LANES, 1>, n);
    cuda_launch(kernels, call, shape, norm_kernel<T, R, N, WIDE, LANES, 0>, n);
    if (n.coded.most)
        cuda_code_rows(kernels, call);
}

template <typename T, typename R, int N, int WIDE>
static void launch_long(struct kernels *kernels, const struct kernel_call *call,
                        const norm_rows<T, R> &n)
{
    cuda_launch(kernels, call, cuda_shape_of(n.n_rows, LANES_MAX), norm_long_kernel<T, R, N, WIDE>,
                n);
    if (n.coded.most)
        cuda_code_rows(kernels, call);
}

template <typename T, typename R, int WIDE>
static void launch(struct kernels *kernels, const struct kernel_call *call,
                   const norm_rows<T, R> &n)
{
    enum { N = 16 / sizeof(T) };

    if (n.d <= 32 * N_ELEMENTS)
        launch_lanes<T, R, N, WIDE, 32>(kernels, call, n);
    else if (n.d <= 128 * N_ELEMENTS)
        launch_lanes<T, R, N, WIDE, 128>(kernels, call, n);
    else if (n.d <= 256 * N_ELEMENTS)
        launch_lanes<T, R, N, WIDE, 256>(kernels, call, n);
    else if (n.d <= LANES_MAX * N_ELEMENTS)
        launch_lanes<T, R, N, WIDE, LANES_MAX>(kernels, call, n);
    else
        launch_long<T, R, N, WIDE>(kernels, call, n);
}

static int is_wide(const struct op_shape *op)
{
    int wide = 1, codes = op_info(op->kind)->codes_output - 1;

    for (int i = 0; i < 4; i++)
        wide = wide && (op->in[i].cols == 1 || cuda_is_aligned(&op->in[i], 16)) &&
               (i >= codes || op->out[i].cols == 1 || cuda_is_aligned(&op->out[i], 16));
    return wide && op->in[RMSNORM_X].cols > 1 && cuda_is_aligned(&op->out[codes], 8);
}

static void norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int adds = op->kind == OP_ADD_RMSNORM || op->kind == OP_ADD_LAYERNORM;
    int layer = op->kind == OP_LAYERNORM || op->kind == OP_ADD_LAYERNORM;

    (void)first;
    cuda_with_act_and_res(op->out[RMSNORM_Y].dtype, op->in[RMSNORM_X].dtype,
                          [&](auto zero, auto res) {
                              typedef decltype(zero) T;
                              typedef decltype(res) R;
                              norm_rows<T, R> n = {};

                              n.x = cuda_rows<R>(&op->in[RMSNORM_X]);
                              n.w = (const float *)op->in[RMSNORM_W + adds].data;
                              n.b = layer ? cuda_rows<float>(&op->in[LAYERNORM_B + adds]).at : NULL;
                              n.y = cuda_rows<T>(&op->out[RMSNORM_Y]);
                              n.rstd = cuda_rows<float>(&op->out[RMSNORM_RSTD + layer]);
                              if (adds) {
                                  n.delta = cuda_rows<T>(&op->in[ADD_RMSNORM_DELTA]);
                                  n.sum = cuda_rows<R>(&op->out[ADD_RMSNORM_SUM + layer]);
                              }
                              if (layer)
                                  n.mean = cuda_rows<float>(&op->out[LAYERNORM_MEAN]);
                              n.coded = cuda_fp8_rows(op);
                              n.n_rows = op->in[RMSNORM_X].rows;
                              n.d = op->in[RMSNORM_X].cols;
                              n.eps = (float)op->attributes.eps;
                              if (is_wide(op))
                                  launch<T, R, 1>(kernels, call, n);
                              else
                                  launch<T, R, 0>(kernels, call, n);
                          });
}

void cuda_register_norm(struct kernels_backend *table)
{
    table->entries[OP_RMSNORM].run = norm_run;
    table->entries[OP_LAYERNORM].run = norm_run;
    table->entries[OP_ADD_RMSNORM].run = norm_run;
    table->entries[OP_ADD_LAYERNORM].run = norm_run;
    cuda_register_norm_grad(table);
}
