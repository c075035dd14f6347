/*
 * norm_grad.cu - the gradients of RMSNorm and LayerNorm
 *
 * A block takes consecutive rows, one after the other: rows of up to 512 columns by each of its
 * four warps, longer ones by all of its 128 to 512 threads, 16 elements a thread in registers; so
 * dy, x and add are read once, and each thread keeps its columns' sums of dw and db besides. These
 * go to scratch and are added over blocks in a second step (column_sums.cuh). Longer rows still
 * are read again for dx, and a second kernel sums their columns.
 *
 * Bound by memory: dy, x, add, dx once; the partial sums are a few per cent of that, w is in the
 * L1. How rows are cut follows from T and d: at most GPU_NORM_BLOCKS blocks, four to a
 * multiprocessor of the largest GPUs.
 */
#include "cuda/column_sums.cuh"
#include "cuda/fp8_rows.cuh"
#include "cuda/norm.cuh"

enum {
    N_THREADS_MIN = 128,
    N_ELEMENTS = 16, /* of a thread */
    LANES_MAX = 512,
    LONG_LANES = 1024,
    ROWS_MIN = GPU_NORM_ROWS_MIN,
};

/* T: of activations, R: of the residual stream's gradient */
template <typename T, typename R> struct norm_grad {
    rows_of<T> dy;
    rows_of<R> x, add, dx; /* add and mean (RMSNorm) may be absent: at is NULL */
    rows_of<float> mean, rstd;
    const float *w;
    rows_of<T> copy; /* of dx; absent: at is NULL */
    fp8_rows coded;  /* dx or, where there is one, its copy */
    float *dw, *db;  /* partial sums, [blocks x d]; NULL where absent */
    int64_t n_rows, d, rows_a_block;
};

/*
 * With g = dy w and xhat = (x - mean) rstd: dx = rstd (g - mean(g) - xhat mean(g xhat)); RMSNorm
 * has no mean(g). dw adds dy xhat, db adds dy. What lies behind the row's end is zero in dy and w
 * and adds nothing.
 */
template <int N>
static __device__ __forceinline__ void add_dots(float (&sums)[2], const float *dy,
                                                const float *xhat, const float *w)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        float g = dy[i] * w[i];

        sums[0] = fmaf(g, xhat[i], sums[0]);
        sums[1] += g;
    }
}

/* A pack of dx, and of its copy; if it is coded, the bits of its largest element. */
template <typename T, typename R, int N, int WIDE, int CODED>
static __device__ __forceinline__ uint32_t put_dx(const norm_grad<T, R> &n, int64_t row,
                                                  int64_t col, const float *dy, const float *xhat,
                                                  const float *w, const float *add, float rstd,
                                                  const float (&means)[2])
{
    float dx[N];

    if (!n.dx.at)
        return 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float own = rstd * (fmaf(-xhat[i], means[0], dy[i] * w[i]) - means[1]);

        dx[i] = n.add.at ? add[i] + own : own;
    }
    store_row_floats<R, N, WIDE>(n.dx.row(row) + col, n.d - col, dx);
    if (n.copy.at)
        store_row_floats<T, N, WIDE>(n.copy.row(row) + col, n.d - col, dx);
    if constexpr (CODED)
        return code_unrounded<T, N>(n.coded, row, col, dx, n.d - col, OPS_FP8_BLOCK / N);
    return 0;
}

/* ---- rows that a block holds -------------------------------------------------------------------
 */

/* A thread's part of a row. */
template <int N, int N_PACKS> struct grad_row {
    float dy[N_PACKS][N], xhat[N_PACKS][N], add[N_PACKS][N];
    float rstd;
};

template <typename T, typename R, int N, int WIDE, int LANES, int LAYER, int N_PACKS>
static __device__ __forceinline__ void get_row(const norm_grad<T, R> &n, int64_t row, int lane,
                                               grad_row<N, N_PACKS> *r)
{
    float mean = LAYER ? *n.mean.row(row) : 0.0f;

    r->rstd = *n.rstd.row(row);
#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        int64_t col = (int64_t)(p * LANES + lane) * N;

        load_row_floats<T, N, WIDE>(n.dy.row(row) + col, n.d - col, r->dy[p]);
        load_row_floats<R, N, WIDE>(n.x.row(row) + col, n.d - col, r->xhat[p]);
        if (n.add.at)
            load_row_floats<R, N, WIDE>(n.add.row(row) + col, n.d - col, r->add[p]);
    }
#pragma unroll
    for (int p = 0; p < N_PACKS; p++)
#pragma unroll
        for (int i = 0; i < N; i++)
            r->xhat[p][i] = (r->xhat[p][i] - mean) * r->rstd;
}

template <typename T, typename R, int N, int WIDE, int LANES, int LAYER, int CODED, int N_PACKS>
static __device__ __forceinline__ void row_grad(const norm_grad<T, R> &n, int64_t row, int lane,
                                                float *shared, uint32_t *sizes,
                                                float (&dw)[N_PACKS][N], float (&db)[N_PACKS][N])
{
    grad_row<N, N_PACKS> r;
    float w[N], sums[2] = { 0.0f, 0.0f };
    uint32_t most = 0;

    get_row<T, R, N, WIDE, LANES, LAYER>(n, row, lane, &r);
#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        int64_t col = (int64_t)(p * LANES + lane) * N;

        load_constants<N, WIDE>(n.w + col, n.d - col, w);
        add_dots<N>(sums, r.dy[p], r.xhat[p], w);
    }
    row_sums<LANES>(sums, shared);
    sums[0] = sums[0] / (float)n.d;
    sums[1] = LAYER ? sums[1] / (float)n.d : 0.0f;
#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        int64_t col = (int64_t)(p * LANES + lane) * N;

        load_constants<N, WIDE>(n.w + col, n.d - col, w);
        uint32_t size = put_dx<T, R, N, WIDE, CODED>(n, row, col, r.dy[p], r.xhat[p], w, r.add[p],
                                                     r.rstd, sums);
        most = size > most ? size : most;
#pragma unroll
        for (int i = 0; i < N; i++) {
            dw[p][i] = fmaf(r.dy[p][i], r.xhat[p][i], dw[p][i]);
            if (LAYER)
                db[p][i] += r.dy[p][i];
        }
    }
    if (CODED)
        put_largest<LANES>(n.coded, row, most, sizes);
}

/* The block's sums to its row of `partial`: those of its warps are added in order where each had
 * rows of its own. */
template <int N, int WIDE, int LANES, int N_PACKS>
static __device__ __forceinline__ void put_partial(float *partial, int64_t d,
                                                   float (&sums)[N_PACKS][N])
{
    __shared__ float all[LANES == 32 ? N_THREADS_MIN / 32 * 32 * N_ELEMENTS : 1];
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;

    if (!partial)
        return;
    if (LANES == 32) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < N_ELEMENTS; k++)
            all[(warp * N_ELEMENTS + k) * 32 + lane] = sums[k / N][k % N];
        __syncthreads();
        if (warp)
            return;
#pragma unroll
        for (int k = 0; k < N_ELEMENTS; k++)
            for (int other = 1; other < N_THREADS_MIN / 32; other++)
                sums[k / N][k % N] += all[(other * N_ELEMENTS + k) * 32 + lane];
    }
#pragma unroll
    for (int p = 0; p < N_PACKS; p++) {
        int64_t col = (int64_t)(p * LANES + lane) * N;

        store_row_floats<float, N, WIDE>(partial + blockIdx.x * d + col, d - col, sums[p]);
    }
}

template <typename T, typename R, int N, int WIDE, int LANES, int LAYER, int CODED>
__global__ void __launch_bounds__(LANES < N_THREADS_MIN ? N_THREADS_MIN : LANES)
    norm_grad_kernel(norm_grad<T, R> n)
{
    enum { N_PACKS = N_ELEMENTS / N };
    __shared__ float shared[2][2 * 32]; /* in turns, so that a row has one __syncthreads */
    __shared__ uint32_t sizes[2][CODED ? 32 : 1];
    int lane = (int)threadIdx.x % LANES, at_once = (int)blockDim.x / LANES, turn = 0;
    int64_t row = (int64_t)blockIdx.x * n.rows_a_block, end = row + n.rows_a_block;
    float dw[N_PACKS][N] = {}, db[N_PACKS][N] = {};

    end = end < n.n_rows ? end : n.n_rows;
    for (row += threadIdx.x / LANES; row < end; row += at_once, turn ^= 1)
        row_grad<T, R, N, WIDE, LANES, LAYER, CODED>(n, row, lane, shared[turn], sizes[turn], dw,
                                                     db);
    put_partial<N, WIDE, LANES>(n.dw, n.d, dw);
    if (LAYER)
        put_partial<N, WIDE, LANES>(n.db, n.d, db);
}

/* ---- rows that it does not ---------------------------------------------------------------------
 */

template <typename T, typename R, int N, int WIDE>
__global__ void __launch_bounds__(LONG_LANES) norm_grad_long_kernel(norm_grad<T, R> n)
{
    __shared__ float shared[2 * 32];
    int64_t row = blockIdx.x, begin = (int64_t)threadIdx.x * N;
    float rstd = *n.rstd.row(row), mean = n.mean.at ? *n.mean.row(row) : 0.0f;
    float dy[N], xhat[N], w[N], add[N], sums[2] = { 0.0f, 0.0f };

    for (int turn = 0; turn < 2; turn++) {
        for (int64_t col = begin; col < n.d; col += LONG_LANES * N) {
            load_row_floats<T, N, WIDE>(n.dy.row(row) + col, n.d - col, dy);
            load_row_floats<R, N, WIDE>(n.x.row(row) + col, n.d - col, xhat);
            load_constants<N, WIDE>(n.w + col, n.d - col, w);
            if (n.add.at && turn)
                load_row_floats<R, N, WIDE>(n.add.row(row) + col, n.d - col, add);
#pragma unroll
            for (int i = 0; i < N; i++)
                xhat[i] = (xhat[i] - mean) * rstd;
            if (turn)
                put_dx<T, R, N, WIDE, 0>(n, row, col, dy, xhat, w, add, rstd, sums);
            else
                add_dots<N>(sums, dy, xhat, w);
        }
        if (!turn) {
            row_sums<LONG_LANES>(sums, shared);
            sums[0] = sums[0] / (float)n.d;
            sums[1] = n.mean.at ? sums[1] / (float)n.d : 0.0f;
        }
    }
}

/* Columns' sums of dw and db over a block's rows, a thread a column. */
template <typename T, typename R>
__global__ void __launch_bounds__(N_THREADS_MIN) norm_grad_columns_kernel(norm_grad<T, R> n)
{
    int64_t col = (int64_t)blockIdx.y * N_THREADS_MIN + threadIdx.x;
    int64_t row = (int64_t)blockIdx.x * n.rows_a_block, end = row + n.rows_a_block;
    float dw = 0.0f, db = 0.0f;

    end = end < n.n_rows ? end : n.n_rows;
    if (col >= n.d)
        return;
#pragma unroll 4
    for (; row < end; row++) {
        float mean = n.mean.at ? *n.mean.row(row) : 0.0f, dy = to_float(n.dy.row(row)[col]);

        dw = fmaf(dy, (to_float(n.x.row(row)[col]) - mean) * *n.rstd.row(row), dw);
        db += dy;
    }
    if (n.dw)
        n.dw[blockIdx.x * n.d + col] = dw;
    if (n.db)
        n.db[blockIdx.x * n.d + col] = db;
}

/* ---- launching ---------------------------------------------------------------------------------
 */

template <typename T, typename R, int WIDE, int LANES, int CODED>
static void launch_coded(struct kernels *kernels, const struct kernel_call *call,
                         const norm_grad<T, R> &n)
{
    enum { N = 16 / sizeof(T), N_THREADS = LANES < N_THREADS_MIN ? N_THREADS_MIN : LANES };

    cuda_launch(kernels, call, cuda_shape_of(ceil_div(n.n_rows, n.rows_a_block), N_THREADS),
                n.mean.at ? norm_grad_kernel<T, R, N, WIDE, LANES, 1, CODED>
                          : norm_grad_kernel<T, R, N, WIDE, LANES, 0, CODED>,
                n);
}

template <typename T, typename R, int WIDE, int LANES>
static void launch_lanes(struct kernels *kernels, const struct kernel_call *call,
                         const norm_grad<T, R> &n)
{
    if constexpr (WIDE && std::is_same<T, bf16>::value)
        if (n.coded.most)
            return launch_coded<T, R, WIDE, LANES, 1>(kernels, call, n);
    launch_coded<T, R, WIDE, LANES, 0>(kernels, call, n);
    if (n.coded.most)
        cuda_code_rows(kernels, call);
}

template <typename T, typename R, int WIDE>
static void launch(struct kernels *kernels, const struct kernel_call *call,
                   const norm_grad<T, R> &n)
{
    enum { N = 16 / sizeof(T) };

    if (n.d <= 32 * N_ELEMENTS)
        return launch_lanes<T, R, WIDE, 32>(kernels, call, n);
    if (n.d <= 128 * N_ELEMENTS)
        return launch_lanes<T, R, WIDE, 128>(kernels, call, n);
    if (n.d <= 256 * N_ELEMENTS)
        return launch_lanes<T, R, WIDE, 256>(kernels, call, n);
    if (n.d <= LANES_MAX * N_ELEMENTS)
        return launch_lanes<T, R, WIDE, LANES_MAX>(kernels, call, n);
    if (n.dx.at)
        cuda_launch(kernels, call, cuda_shape_of(n.n_rows, LONG_LANES),
                    norm_grad_long_kernel<T, R, N, WIDE>, n);
    if (n.coded.most)
        cuda_code_rows(kernels, call);
    if (n.dw || n.db)
        cuda_launch(kernels, call,
                    cuda_shape_of_rows(ceil_div(n.n_rows, n.rows_a_block), n.d, N_THREADS_MIN, 1),
                    norm_grad_columns_kernel<T, R>, n);
}

static int is_wide(const struct op_shape *op, int layer)
{
    return cuda_is_aligned(&op->in[RMSNORM_GRAD_DY], 16) &&
           cuda_is_aligned(&op->in[RMSNORM_GRAD_X], 16) &&
           cuda_is_aligned(&op->in[RMSNORM_GRAD_W], 16) &&
           cuda_is_aligned(&op->in[RMSNORM_GRAD_ADD + layer], 16) &&
           cuda_is_aligned(&op->out[RMSNORM_GRAD_DX], 16) &&
           cuda_is_aligned(&op->out[RMSNORM_GRAD_COPY + layer], 16) &&
           cuda_is_aligned(&op->out[RMSNORM_GRAD_CODES + layer], 8);
}

static void norm_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int layer = op->kind == OP_LAYERNORM_GRAD;
    int64_t rows_a_block = gpu_norm_block_rows(op->in[RMSNORM_GRAD_DY].rows),
            d = op->in[RMSNORM_GRAD_DY].cols;
    int64_t n_blocks = ceil_div(op->in[RMSNORM_GRAD_DY].rows, rows_a_block);
    struct tensor none = {};
    const struct tensor *out_dw = &op->out[RMSNORM_GRAD_DW],
                        *out_db = layer ? &op->out[LAYERNORM_GRAD_DB] : &none;
    float *dw = tensor_given(out_dw) ? (float *)call->scratch : NULL, *db = NULL;

    if (tensor_given(out_db))
        db = (float *)((char *)call->scratch +
                       (dw ? align_up((size_t)(n_blocks * d) * sizeof(float), 64) : 0));
    cuda_with_act_and_res(op->in[RMSNORM_GRAD_DY].dtype, op->in[RMSNORM_GRAD_X].dtype,
                          [&](auto zero, auto res) {
                              typedef decltype(zero) T;
                              typedef decltype(res) R;
                              norm_grad<T, R> n = {};

                              n.dy = cuda_rows<T>(&op->in[RMSNORM_GRAD_DY]);
                              n.x = cuda_rows<R>(&op->in[RMSNORM_GRAD_X]);
                              n.w = (const float *)op->in[RMSNORM_GRAD_W].data;
                              if (layer)
                                  n.mean = cuda_rows<float>(&op->in[LAYERNORM_GRAD_MEAN]);
                              n.rstd = cuda_rows<float>(&op->in[RMSNORM_GRAD_RSTD + layer]);
                              n.add = cuda_rows<R>(&op->in[RMSNORM_GRAD_ADD + layer]);
                              n.dx = cuda_rows<R>(&op->out[RMSNORM_GRAD_DX]);
                              n.copy = cuda_rows<T>(&op->out[RMSNORM_GRAD_COPY + layer]);
                              n.coded = cuda_fp8_rows(op);
                              n.dw = dw;
                              n.db = db;
                              n.n_rows = op->in[RMSNORM_GRAD_DY].rows;
                              n.d = d;
                              n.rows_a_block = rows_a_block;
                              if (is_wide(op, layer))
                                  launch<T, R, 1>(kernels, call, n);
                              else
                                  launch<T, R, 0>(kernels, call, n);
                          });
    cuda_column_totals(kernels, call, (const float *)dw, d, n_blocks, out_dw, first >> 1 & 1);
    cuda_column_totals(kernels, call, (const float *)db, d, n_blocks, out_db, first >> 2 & 1);
}

void cuda_register_norm_grad(struct kernels_backend *table)
{
    for (int kind : { OP_RMSNORM_GRAD, OP_LAYERNORM_GRAD }) {
        table->entries[kind].run = norm_grad_run;
    }
}
