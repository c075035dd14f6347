/*
 * optimizer.cu - the gradient's norm and AdamW, with the bits of the CPU's
 *
 * lib/kernels/cpu/optimizer.c says which IEEE operations in which order; here the same ones are
 * spread over threads.
 *
 *   sumsq          16 threads take the 16 lanes of a block of OPS_NORM_BLOCK elements, and add them
 *                  as the CPU's tree. Bound by memory: 64 bytes a load of 16 threads, 16 loads of a
 *                  thread in flight. A float's square is exact in double, so fma is product and sum.
 *   sum_runs       a run is one chain of dependent adds, some 8 cycles each, and a thread block
 *   gradient_norm  takes it: one thread adds what the others bring into shared memory ahead of it.
 *                  Runs are parameters: a 7B model's longest has 32,000 sums (0.2 ms), all of them
 *                  at once, and the norm adds one number a parameter.
 *   adamw          a thread block takes OPS_NORM_BLOCK elements, whose decay is one. What is the
 *                  same for all of it (bias corrections and so on) three threads make while the
 *                  first loads are under way. Bound by memory.
 *
 * lr, bias corrections, factor and skip are read by the kernels: a graph replays with new ones.
 */
#include "cuda/cuda.cuh"

/* ---- sums of squares ---------------------------------------------------------------------------
 */

enum { LANES = 16, SUMSQ_THREADS = 256, SUMSQ_UNROLL = 16 };

/* The lane's elements of a block, where rows lie one after the other. */
static __device__ __forceinline__ double lane_of_dense(const float *x, int64_t i, int64_t end)
{
    double sum = 0;

    for (; i + (SUMSQ_UNROLL - 1) * LANES < end; i += SUMSQ_UNROLL * LANES) {
        float some[SUMSQ_UNROLL];

#pragma unroll
        for (int k = 0; k < SUMSQ_UNROLL; k++)
            some[k] = x[i + k * LANES];
#pragma unroll
        for (int k = 0; k < SUMSQ_UNROLL; k++)
            sum = fma((double)some[k], (double)some[k], sum);
    }
    for (; i < end; i += LANES)
        sum = fma((double)x[i], (double)x[i], sum);
    return sum;
}

static __device__ __forceinline__ double lane_of_rows(rows_of<float> x, int64_t cols, int64_t i,
                                                      int64_t end)
{
    int64_t row = i / cols, col = i % cols;
    double sum = 0;

    for (; i < end; i += LANES) {
        float value = x.row(row)[col];

        sum = fma((double)value, (double)value, sum);
        for (col += LANES; col >= cols; row++)
            col -= cols;
    }
    return sum;
}

/* cols: 0 where rows lie one after the other. */
__global__ void sumsq_kernel(rows_of<float> x, int64_t cols, int64_t n, double *sums,
                             int64_t n_blocks)
{
    int64_t thread = (int64_t)blockIdx.x * SUMSQ_THREADS + threadIdx.x;
    int64_t block = thread / LANES, lane = thread % LANES;
    int64_t start = block * OPS_NORM_BLOCK + lane;
    int64_t end = (block + 1) * OPS_NORM_BLOCK < n ? (block + 1) * OPS_NORM_BLOCK : n;
    double sum = 0;

    if (start < end)
        sum = cols ? lane_of_rows(x, cols, start, end) : lane_of_dense(x.at, start, end);
    for (unsigned half = LANES / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, half, LANES);
    if (lane == 0 && block < n_blocks)
        sums[block] = sum;
}

static int is_dense(const struct tensor *t)
{
    return !tensor_given(t) || t->rows == 1 || t->stride == t->cols;
}

static void sumsq_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *x = &call->op.in[0], *sums = &call->op.out[0];

    (void)first;
    cuda_launch(kernels, call,
                cuda_shape_of(ceil_div(sums->cols * LANES, SUMSQ_THREADS), SUMSQ_THREADS),
                sumsq_kernel, cuda_rows<float>(x), is_dense(x) ? 0 : x->cols, tensor_elements(x),
                (double *)sums->data, sums->cols);
}

/* ---- sums one after the other ------------------------------------------------------------------
 */

enum { CHAIN_THREADS = 256, CHAIN_ADDER = 32 };
static constexpr int64_t CHAIN_CHUNK = 2048;

/* The threads behind the first warp bring x[order[i]] of [begin, end), or x[i]. */
static __device__ __forceinline__ void bring(double *into, const double *x, const int32_t *order,
                                             int64_t begin, int64_t end)
{
    int64_t n = end - begin < CHAIN_CHUNK ? end - begin : CHAIN_CHUNK;

#pragma unroll 4
    for (int64_t i = (int64_t)threadIdx.x - CHAIN_ADDER; i < n; i += CHAIN_THREADS - CHAIN_ADDER)
        into[i] = order ? x[order[begin + i]] : x[begin + i];
}

/*
 * Elements [begin, end) of x, or those that order names there, one after the other: thread 0's
 * result. All threads of the thread block come here.
 */
static __device__ double chain_sum(const double *x, const int32_t *order, int64_t begin,
                                   int64_t end)
{
    __shared__ double chunk[2][CHAIN_CHUNK];
    double sum = 0;
    int now = 0;

    if (threadIdx.x >= CHAIN_ADDER)
        bring(chunk[0], x, order, begin, end);
    for (; begin < end; begin += CHAIN_CHUNK, now = !now) {
        __syncthreads();
        if (threadIdx.x >= CHAIN_ADDER) {
            bring(chunk[!now], x, order, begin + CHAIN_CHUNK, end);
        } else if (threadIdx.x == 0) {
            int n = (int)(end - begin < CHAIN_CHUNK ? end - begin : CHAIN_CHUNK);

#pragma unroll 16
            for (int i = 0; i < n; i++)
                sum += chunk[now][i];
        }
    }
    return sum;
}

__global__ void sum_runs_kernel(const double *x, const int32_t *ends, const int32_t *order,
                                double *y)
{
    int64_t run = blockIdx.x;
    double sum = chain_sum(x, order, run ? ends[run - 1] : 0, ends[run]);

    if (threadIdx.x == 0)
        y[run] = sum;
}

static void sum_runs_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(op->out[0].cols, CHAIN_THREADS), sum_runs_kernel,
                (const double *)op->in[0].data, (const int32_t *)op->in[1].data,
                (const int32_t *)op->in[2].data, (double *)op->out[0].data);
}

__global__ void gradient_norm_kernel(const double *sums, const int32_t *order, int64_t n,
                                     double clip, double *norm, float *factor, int32_t *skip)
{
    double sum = chain_sum(sums, order, 0, n);

    if (threadIdx.x == 0) {
        double root = sqrt(sum);

        *norm = root;
        *factor = clip > 0 && root > clip ? (float)(clip / root) : 1.0f;
        *skip = !isfinite(root);
    }
}

static void gradient_norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *order = &op->in[1];

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(1, CHAIN_THREADS), gradient_norm_kernel,
                (const double *)op->in[0].data, (const int32_t *)order->data,
                tensor_given(order) ? order->cols : op->in[0].cols, op->attributes.clip,
                (double *)op->out[0].data, (float *)op->out[1].data, (int32_t *)op->out[2].data);
}

/* ---- AdamW -------------------------------------------------------------------------------------
 */

enum adamw_input { GRADIENT, SCALARS, FACTOR, SKIP, MASTER, M, V, DECAY };
enum { ADAMW_THREADS = 256, ADAMW_WIDTH = 4, ADAMW_TURNS = 4 };
static_assert(ADAMW_THREADS * ADAMW_WIDTH * ADAMW_TURNS == OPS_NORM_BLOCK, "a decay a block");

struct adamw {
    rows_of<float> gradient, master, m, v;
    const float *scalars, *factor;
    const int32_t *skip;
    const double *decays; /* a block's each, or NULL: weight_decay */
    int64_t cols, n;
    double beta1, beta2, eps, weight_decay;
};

/* What is the same for all elements of a block. */
struct adamw_factors {
    float factor, decay, take1, take2, beta2, step, root2, eps;
};

/* decay, step and root2, the ones with roots and quotients of doubles, by one warp each. */
static __device__ __forceinline__ void make_shared(const struct adamw &a, float shared[3])
{
    double lr = a.scalars[SCALAR_LR];

    if (threadIdx.x == 0)
        shared[0] = (float)(1.0 - lr * (a.decays ? a.decays[blockIdx.x] : a.weight_decay));
    else if (threadIdx.x == 32)
        shared[1] = (float)(lr / (double)a.scalars[SCALAR_BIAS1]);
    else if (threadIdx.x == 64)
        shared[2] = (float)sqrt((double)a.scalars[SCALAR_BIAS2]);
}

static __device__ __forceinline__ struct adamw_factors factors_of(const struct adamw &a,
                                                                  const float shared[3])
{
    return { *a.factor,
             shared[0],
             (float)(1.0 - a.beta1),
             (float)(1.0 - a.beta2),
             (float)a.beta2,
             shared[1],
             shared[2],
             (float)a.eps };
}

static __device__ __forceinline__ void adamw_element(const struct adamw_factors &f, float gradient,
                                                     float &master, float &m, float &v)
{
    float g = gradient * f.factor, p = master * f.decay;

    m = m + f.take1 * (g - m);
    v = v * f.beta2 + f.take2 * g * g;
    master = p - f.step * (m / (sqrtf(v) / f.root2 + f.eps));
}

/* W: the weight's; at NULL: there is none. */
template <typename W>
static __device__ __forceinline__ void adamw_one(const struct adamw &a, rows_of<W> weight,
                                                 const struct adamw_factors &f, int64_t row,
                                                 int64_t col)
{
    float master = a.master.row(row)[col], m = a.m.row(row)[col], v = a.v.row(row)[col];

    adamw_element(f, a.gradient.row(row)[col], master, m, v);
    a.m.row(row)[col] = m;
    a.v.row(row)[col] = v;
    a.master.row(row)[col] = master;
    if (weight.at)
        weight.row(row)[col] = from_float<W>(master);
}

/* Rows with gaps, or at odd addresses. */
template <typename W> __global__ void adamw_plain_kernel(struct adamw a, rows_of<W> weight)
{
    __shared__ float shared[3];
    int64_t start = (int64_t)blockIdx.x * OPS_NORM_BLOCK;
    int64_t end = start + OPS_NORM_BLOCK < a.n ? start + OPS_NORM_BLOCK : a.n;

    if (*a.skip)
        return;
    make_shared(a, shared);
    __syncthreads();
    struct adamw_factors f = factors_of(a, shared);
    for (int64_t i = start + threadIdx.x; i < end; i += ADAMW_THREADS)
        adamw_one(a, weight, f, i / a.cols, i % a.cols);
}

struct adamw_pack {
    packed<float, ADAMW_WIDTH> gradient, master, m, v;
};

static __device__ __forceinline__ void adamw_load(const struct adamw &a, int64_t i,
                                                  struct adamw_pack *p)
{
    typedef packed<float, ADAMW_WIDTH> pack;

    p->gradient = *(const pack *)(a.gradient.at + i);
    p->master = *(const pack *)(a.master.at + i);
    p->m = *(const pack *)(a.m.at + i);
    p->v = *(const pack *)(a.v.at + i);
}

template <typename W>
static __device__ __forceinline__ void adamw_store(const struct adamw &a, rows_of<W> weight,
                                                   int64_t i, const struct adamw_pack &p)
{
    typedef packed<float, ADAMW_WIDTH> pack;

    *(pack *)(a.m.at + i) = p.m;
    *(pack *)(a.v.at + i) = p.v;
    *(pack *)(a.master.at + i) = p.master;
    if (weight.at) {
        packed<W, ADAMW_WIDTH> out;

        for (int k = 0; k < ADAMW_WIDTH; k++)
            out.at[k] = from_float<W>(p.master.at[k]);
        *(packed<W, ADAMW_WIDTH> *)(weight.at + i) = out;
    }
}

/* All operands are one dense row at addresses of 16 bytes; two packs of each on their way. */
template <typename W>
__global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_wide_kernel(struct adamw a, rows_of<W> weight)
{
    enum { STEP = ADAMW_THREADS * ADAMW_WIDTH, AT_ONCE = 2 };
    __shared__ float shared[3];
    int64_t start = (int64_t)blockIdx.x * OPS_NORM_BLOCK + (int64_t)threadIdx.x * ADAMW_WIDTH;
    struct adamw_pack p[AT_ONCE];

#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
        if (start + k * STEP + ADAMW_WIDTH <= a.n)
            adamw_load(a, start + k * STEP, &p[k]);
    make_shared(a, shared);
    __syncthreads();
    if (*a.skip)
        return;
    struct adamw_factors f = factors_of(a, shared);
    for (int turn = 0; turn < ADAMW_TURNS; turn += AT_ONCE) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int64_t i = start + (turn + k) * STEP;

            if (turn && i + ADAMW_WIDTH <= a.n)
                adamw_load(a, i, &p[k]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int64_t i = start + (turn + k) * STEP;

            if (i + ADAMW_WIDTH <= a.n) {
#pragma unroll
                for (int e = 0; e < ADAMW_WIDTH; e++)
                    adamw_element(f, p[k].gradient.at[e], p[k].master.at[e], p[k].m.at[e],
                                  p[k].v.at[e]);
                adamw_store(a, weight, i, p[k]);
            } else {
                for (; i < a.n; i++)
                    adamw_one(a, weight, f, 0, i);
            }
        }
    }
}

static int is_flat(const struct tensor *t)
{
    return !tensor_given(t) || (is_dense(t) && (uintptr_t)t->data % 16 == 0);
}

template <typename W>
static void adamw_launch(struct kernels *kernels, const struct kernel_call *call,
                         const struct adamw &a)
{
    const struct op_shape *op = &call->op;
    struct cuda_shape shape = cuda_shape_of(ceil_div(a.n, OPS_NORM_BLOCK), ADAMW_THREADS);
    rows_of<W> weight = cuda_rows<W>(&op->out[0]);

    if (is_flat(&op->in[GRADIENT]) && is_flat(&op->in[MASTER]) && is_flat(&op->in[M]) &&
        is_flat(&op->in[V]) && is_flat(&op->out[0]))
        cuda_launch(kernels, call, shape, adamw_wide_kernel<W>, a, weight);
    else
        cuda_launch(kernels, call, shape, adamw_plain_kernel<W>, a, weight);
}

static void adamw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *at = &op->attributes;
    struct adamw a = { cuda_rows<float>(&op->in[GRADIENT]),
                       cuda_rows<float>(&op->in[MASTER]),
                       cuda_rows<float>(&op->in[M]),
                       cuda_rows<float>(&op->in[V]),
                       (const float *)op->in[SCALARS].data,
                       (const float *)op->in[FACTOR].data,
                       (const int32_t *)op->in[SKIP].data,
                       cuda_rows<double>(&op->in[DECAY]).at,
                       op->in[GRADIENT].cols,
                       tensor_elements(&op->in[GRADIENT]),
                       at->beta1,
                       at->beta2,
                       at->eps,
                       at->weight_decay };

    (void)first;
    cuda_with_act(tensor_given(&op->out[0]) ? op->out[0].dtype : DTYPE_F32,
                  [&](auto zero) { adamw_launch<decltype(zero)>(kernels, call, a); });
}

void cuda_register_optimizer(struct kernels_backend *table)
{
    table->entries[OP_SUMSQ].run = sumsq_run;
    table->entries[OP_SUM_RUNS].run = sum_runs_run;
    table->entries[OP_GRADIENT_NORM].run = gradient_norm_run;
    table->entries[OP_ADAMW].run = adamw_run;
}
