/*
 * head_norm.cu - RMSNorm of each query head and each key head, and its gradient
 *
 * A head is 8, 16 or 32 lanes' of a warp by its width, eight elements a lane in registers. Forward,
 * those lanes take up to two heads of one row. In the gradient a block takes consecutive rows, and
 * its groups of lanes their heads in turn, each lane keeping its columns' sums of wq's and wk's
 * gradients; these are added over groups, then over blocks, in order (column_sums.cuh). Which group
 * has which head decides bits, so v's heads, which were copied here once, keep their turns. Bound
 * by memory: q and k (and dout) read once, the output written once.
 */
#include "cuda/column_sums.cuh"
#include "cuda/rows.cuh"

enum {
    N_THREADS = 256,
    N = 8, /* elements of a lane */
    HEADS_A_THREAD = 2,
};

template <typename T> struct head_norm {
    rows_of<T> dout, qk, out; /* out: dqk of the gradient */
    rows_of<float> rstd;
    const float *wq, *wk;
    float *partial; /* [blocks x 2 e]: of wq, of wk */
    int64_t n_rows, rows_a_block;
    int n_q, n_heads, n_groups, e;
    int n_turns; /* of a row in the gradient: n_heads, and as many without a head as kv heads */
    float eps;
};

/* Over the lanes that have a head; all get it. */
template <int LANES> static __device__ __forceinline__ float head_sum(float x)
{
#pragma unroll
    for (int lanes = LANES / 2; lanes; lanes /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

/* ---- forward ---- */

template <typename T, int WIDE, int LANES>
__global__ void __launch_bounds__(N_THREADS) head_norm_kernel(head_norm<T> n)
{
    int64_t task = ((int64_t)blockIdx.x * N_THREADS + threadIdx.x) / LANES;
    int64_t row = task / n.n_groups;
    int group = (int)(task - row * n.n_groups), lane = (int)threadIdx.x % LANES;
    int at = lane * N, n_left = row < n.n_rows ? n.e - at : 0;
    float x[HEADS_A_THREAD][N], w[N], rstd[HEADS_A_THREAD];

    row = row < n.n_rows ? row : 0; /* lanes of no row come to the sums, too */
#pragma unroll
    for (int k = 0; k < HEADS_A_THREAD; k++) {
        int head = group + k * n.n_groups;

        load_row_floats<T, N, WIDE>(n.qk.row(row) + head * n.e + at, head < n.n_heads ? n_left : 0,
                                    x[k]);
    }
#pragma unroll
    for (int k = 0; k < HEADS_A_THREAD; k++) {
        float squares = 0.0f;

#pragma unroll
        for (int i = 0; i < N; i++)
            squares = fmaf(x[k][i], x[k][i], squares);
        rstd[k] = 1.0f / sqrtf(head_sum<LANES>(squares) / (float)n.e + n.eps);
    }
#pragma unroll
    for (int k = 0; k < HEADS_A_THREAD; k++) {
        int head = group + k * n.n_groups;
        int64_t col = (int64_t)head * n.e + at;

        if (head < n.n_heads) {
            load_constants<N, WIDE>((head < n.n_q ? n.wq : n.wk) + at, n_left, w);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[k][i] = x[k][i] * rstd[k] * w[i];
            store_row_floats<T, N, WIDE>(n.out.row(row) + col, n_left, x[k]);
            if (!lane && n_left > 0)
                n.rstd.row(row)[head] = rstd[k];
        }
    }
}

/* ---- gradient ---- */

/* One head: with g = dy w and xhat = x rstd, dx = rstd (g - xhat mean(g xhat)); dw adds dy xhat. */
template <typename T, int WIDE, int LANES>
static __device__ __forceinline__ void head_grad(const head_norm<T> &n, int64_t row, int head,
                                                 int lane, int n_left, float (&dwq)[N],
                                                 float (&dwk)[N])
{
    int64_t col = (int64_t)head * n.e + lane * N;
    float dy[N], xhat[N], w[N], dot = 0.0f, rstd = n_left > 0 ? n.rstd.row(row)[head] : 0.0f;
    int is_key = head >= n.n_q;

    load_row_floats<T, N, WIDE>(n.dout.row(row) + col, n_left, dy);
    load_row_floats<T, N, WIDE>(n.qk.row(row) + col, n_left, xhat);
    load_constants<N, WIDE>((is_key ? n.wk : n.wq) + lane * N, n_left, w);
#pragma unroll
    for (int i = 0; i < N; i++) {
        xhat[i] *= rstd;
        dot = fmaf(dy[i] * w[i], xhat[i], dot);
    }
    dot = head_sum<LANES>(dot) / (float)n.e;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float own = dy[i];

        dy[i] = rstd * fmaf(-xhat[i], dot, own * w[i]);
        dwq[i] = is_key ? dwq[i] : fmaf(own, xhat[i], dwq[i]);
        dwk[i] = is_key ? fmaf(own, xhat[i], dwk[i]) : dwk[i];
    }
    store_row_floats<T, N, WIDE>(n.out.row(row) + col, n_left, dy);
}

/* The sums of a block's groups of lanes, in order, to its row of `partial`. */
template <int LANES>
static __device__ __forceinline__ void put_partial(float *partial, int e, const float (&dwq)[N],
                                                   const float (&dwk)[N])
{
    enum { N_GROUPS = N_THREADS / LANES, WIDTH = LANES * N };
    __shared__ float all[N_GROUPS][2 * WIDTH];
    int lane = (int)threadIdx.x % LANES, group = (int)threadIdx.x / LANES;

#pragma unroll
    for (int i = 0; i < N; i++) {
        all[group][lane * N + i] = dwq[i];
        all[group][WIDTH + lane * N + i] = dwk[i];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * e; i += N_THREADS) {
        int at = i < e ? i : WIDTH + i - e;
        float sum = all[0][at];

        for (int other = 1; other < N_GROUPS; other++)
            sum += all[other][at];
        partial[(int64_t)blockIdx.x * 2 * e + i] = sum;
    }
}

template <typename T, int WIDE, int LANES>
__global__ void __launch_bounds__(N_THREADS) head_norm_grad_kernel(head_norm<T> n)
{
    enum { N_GROUPS = N_THREADS / LANES };
    int lane = (int)threadIdx.x % LANES, head = (int)threadIdx.x / LANES;
    int64_t row = (int64_t)blockIdx.x * n.rows_a_block, end = row + n.rows_a_block;
    float dwq[N] = {}, dwk[N] = {};

    end = end < n.n_rows ? end : n.n_rows;
    /* Groups of one warp go round equally often: the sums are met by all of its lanes. */
    for (int64_t left = (end - row) * n.n_turns; left > 0; left -= N_GROUPS, head += N_GROUPS) {
        for (; head >= n.n_turns; row++)
            head -= n.n_turns;
        int has_head = row < end && head < n.n_heads;

        head_grad<T, WIDE, LANES>(n, has_head ? row : 0, has_head ? head : 0, lane,
                                  has_head ? n.e - lane * N : 0, dwq, dwk);
    }
    put_partial<LANES>(n.partial, n.e, dwq, dwk);
}

/* ---- launching ---- */

template <typename T, int WIDE, int LANES>
static void launch_lanes(struct kernels *kernels, const struct kernel_call *call,
                         const head_norm<T> &n)
{
    if (n.partial)
        cuda_launch(kernels, call, cuda_shape_of(ceil_div(n.n_rows, n.rows_a_block), N_THREADS),
                    head_norm_grad_kernel<T, WIDE, LANES>, n);
    else
        cuda_launch(kernels, call,
                    cuda_shape_of(ceil_div(n.n_rows * n.n_groups, N_THREADS / LANES), N_THREADS),
                    head_norm_kernel<T, WIDE, LANES>, n);
}

template <typename T, int WIDE>
static void launch(struct kernels *kernels, const struct kernel_call *call, const head_norm<T> &n)
{
    if (n.e <= 8 * N)
        launch_lanes<T, WIDE, 8>(kernels, call, n);
    else if (n.e <= 16 * N)
        launch_lanes<T, WIDE, 16>(kernels, call, n);
    else
        launch_lanes<T, WIDE, 32>(kernels, call, n);
}

/* What forward and gradient have alike: q and k and their weights, inputs from `begin` on in the
 * forward's order, and the first output. */
template <typename T>
static void head_norm_launch(struct kernels *kernels, const struct kernel_call *call, int begin,
                             head_norm<T> n)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *a = &op->attributes;

    n.qk = cuda_rows<T>(&op->in[begin + HEAD_NORM_QK]);
    n.wq = (const float *)op->in[begin + HEAD_NORM_WQ].data;
    n.wk = (const float *)op->in[begin + HEAD_NORM_WK].data;
    n.out = cuda_rows<T>(&op->out[OPS_FIRST]);
    n.n_rows = op->in[begin + HEAD_NORM_QK].rows;
    n.rows_a_block = gpu_head_norm_block_rows(n.n_rows);
    n.n_q = a->n_heads;
    n.n_heads = a->n_heads + a->n_kv_heads;
    n.n_turns = n.n_heads + a->n_kv_heads;
    n.n_groups = (int)ceil_div(n.n_heads, HEADS_A_THREAD);
    n.e = a->head_dim;
    n.eps = (float)a->eps;

    int wide = a->head_dim % N == 0 && cuda_is_aligned(&op->out[OPS_FIRST], 16);

    for (int i = 0; i <= begin + HEAD_NORM_WK; i++)
        wide = wide && cuda_is_aligned(&op->in[i], 16);
    if (wide)
        launch<T, 1>(kernels, call, n);
    else
        launch<T, 0>(kernels, call, n);
}

static void head_norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cuda_with_act(call->op.out[HEAD_NORM_OUT].dtype, [&](auto zero) {
        head_norm<decltype(zero)> n = {};

        n.rstd = cuda_rows<float>(&call->op.out[HEAD_NORM_RSTD]);
        head_norm_launch(kernels, call, OPS_FIRST, n);
    });
}

static void head_norm_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int64_t n_rows = op->in[HEAD_NORM_GRAD_DOUT].rows,
            n_blocks = ceil_div(n_rows, gpu_head_norm_block_rows(n_rows));
    int e = op->attributes.head_dim;
    float *partial = (float *)call->scratch;

    cuda_with_act(op->out[HEAD_NORM_GRAD_DQK].dtype, [&](auto zero) {
        head_norm<decltype(zero)> n = {};

        n.dout = cuda_rows<decltype(zero)>(&op->in[HEAD_NORM_GRAD_DOUT]);
        n.rstd = cuda_rows<float>(&op->in[HEAD_NORM_GRAD_RSTD]);
        n.partial = partial;
        head_norm_launch(kernels, call, HEAD_NORM_GRAD_QK, n);
    });
    cuda_column_totals(kernels, call, (const float *)partial, 2 * e, n_blocks,
                       &op->out[HEAD_NORM_GRAD_DWQ], first >> HEAD_NORM_GRAD_DWQ & 1);
    cuda_column_totals(kernels, call, (const float *)partial + e, 2 * e, n_blocks,
                       &op->out[HEAD_NORM_GRAD_DWK], first >> HEAD_NORM_GRAD_DWK & 1);
}

void cuda_register_head_norm(struct kernels_backend *table)
{
    table->entries[OP_HEAD_NORM].run = head_norm_run;
    table->entries[OP_HEAD_NORM_GRAD].run = head_norm_grad_run;
}
