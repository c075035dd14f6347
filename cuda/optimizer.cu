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
 *                  first loads are under way. Bound by memory; where states are bf16 (16 bytes an
 *                  element), and two elements share one Philox, arithmetic is near that.
 *
 * lr, bias corrections, factor and skip are read by the kernels: a graph replays with new ones.
 */
#include "cuda/cuda.cuh"
#include "cuda/rng.cuh"

extern "C" {
#include "base/rng.h"
}

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
                                     const float *scale, double clip, double *norm,
                                     float *factor, int32_t *skip)
{
    double sum = chain_sum(sums, order, 0, n);

    if (threadIdx.x == 0) {
        float by = scale ? *scale : 1.0f;
        double root = sqrt(sum) / (double)by;

        *norm = root;
        *factor = (clip > 0 && root > clip ? (float)(clip / root) : 1.0f) / by;
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
                tensor_given(order) ? order->cols : op->in[0].cols,
                (const float *)op->in[2].data, op->attributes.clip,
                (double *)op->out[0].data, (float *)op->out[1].data, (int32_t *)op->out[2].data);
}

/* ---- AdamW -------------------------------------------------------------------------------------
 */

enum adamw_input { GRADIENT, SCALARS, FACTOR, SKIP, MASTER, M, V, DECAY, PLACE, PART };
enum { ADAMW_THREADS = 256, ADAMW_WIDTH = 4, ADAMW_TURNS = 4 };
static_assert(ADAMW_THREADS * ADAMW_WIDTH * ADAMW_TURNS == OPS_NORM_BLOCK,
              "a block's decay is one");

/* P is the master's type, S the moments', W the weight's. */
template <typename P, typename S, typename W> struct adamw {
    rows_of<float> gradient;
    rows_of<P> master;
    rows_of<S> m, v;
    rows_of<W> weight; /* at NULL: there is none */
    const float *scalars, *factor;
    const int32_t *skip, *part;    /* part NULL: 0 */
    const double *decays, *places; /* a block's each, or NULL: weight_decay, place */
    int64_t cols, n;
    double beta1, beta2, eps, weight_decay;
    uint64_t key, place;
};

/* What is the same for all elements of a block. */
struct adamw_factors {
    float factor, decay, take1, take2, beta2, step, root2, eps;
    uint64_t key, low, high; /* of the rounding's numbers; low: of the block's first */
};

/* decay, step and root2, the ones with roots and quotients of doubles, by one warp each. */
template <typename A>
static __device__ __forceinline__ void make_shared(const A &a, float shared[3])
{
    double lr = a.scalars[SCALAR_LR];

    if (threadIdx.x == 0)
        shared[0] = (float)(1.0 - lr * (a.decays ? a.decays[blockIdx.x] : a.weight_decay));
    else if (threadIdx.x == 32)
        shared[1] = (float)(lr / (double)a.scalars[SCALAR_BIAS1]);
    else if (threadIdx.x == 64)
        shared[2] = (float)sqrt((double)a.scalars[SCALAR_BIAS2]);
}

template <typename A>
static __device__ __forceinline__ struct adamw_factors factors_of(const A &a, const float shared[3])
{
    uint64_t place = a.places ? (uint64_t)a.places[blockIdx.x] : a.place + blockIdx.x;
    uint64_t part = a.part ? (uint64_t)*a.part : 0;

    return { *a.factor,
             shared[0],
             (float)(1.0 - a.beta1),
             (float)(1.0 - a.beta2),
             (float)a.beta2,
             shared[1],
             shared[2],
             (float)a.eps,
             a.key,
             place << 11,
             (uint64_t)a.scalars[SCALAR_UPDATE] | part << 32 };
}

/* Stored as it is, or rounded by 16 random bits; NaN and infinity stay. */
static __device__ __forceinline__ void put_rounded(float *to, float x, uint32_t)
{
    *to = x;
}

static __device__ __forceinline__ void put_rounded(bf16 *to, float x, uint32_t bits16)
{
    uint32_t bits = __float_as_uint(x);
    uint32_t more = (bits & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0;

    bits16 = (bits & 0x7f800000u) == 0x7f800000u ? 0 : bits16;
    to->bits = (uint16_t)(((bits | more) + bits16) >> 16);
}

/* noise: of the element and its neighbour; odd: it is the second of these. */
template <typename P, typename S>
static __device__ __forceinline__ float adamw_element(const struct adamw_factors &f, float gradient,
                                                      P *master, S *m, S *v, const uint4 &noise,
                                                      int odd)
{
    float g = gradient * f.factor, p = to_float(*master) * f.decay;
    float mean = to_float(*m) + f.take1 * (g - to_float(*m));
    float square = to_float(*v) * f.beta2 + f.take2 * g * g;
    float after = p - f.step * (mean / (sqrtf(square) / f.root2 + f.eps));

    put_rounded(m, mean, odd ? noise.y >> 16 : noise.y & 0xffff);
    put_rounded(v, square, odd ? noise.z >> 16 : noise.z & 0xffff);
    put_rounded(master, after, odd ? noise.x >> 16 : noise.x & 0xffff);
    return after;
}

/* Of an even element of the block and the next. */
template <typename S>
static __device__ __forceinline__ uint4 noise_of(const struct adamw_factors &f, int64_t element)
{
    if (sizeof(S) == sizeof(float))
        return { 0, 0, 0, 0 };
    return cuda_philox(f.key, f.low | (uint64_t)element / 2, f.high);
}

/* element: of the block; where it lies. */
template <typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_one(const adamw<P, S, W> &a,
                                                 const struct adamw_factors &f, int64_t element,
                                                 int64_t row, int64_t col)
{
    P master = a.master.row(row)[col];
    S m = a.m.row(row)[col], v = a.v.row(row)[col];
    float after = adamw_element(f, a.gradient.row(row)[col], &master, &m, &v,
                                noise_of<S>(f, element), (int)(element % 2));

    a.m.row(row)[col] = m;
    a.v.row(row)[col] = v;
    a.master.row(row)[col] = master;
    if (a.weight.at)
        a.weight.row(row)[col] = from_float<W>(after);
}

/* Rows with gaps, or at odd addresses. */
template <typename P, typename S, typename W> __global__ void adamw_plain_kernel(adamw<P, S, W> a)
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
        adamw_one(a, f, i - start, i / a.cols, i % a.cols);
}

template <typename P, typename S> struct adamw_pack {
    packed<float, ADAMW_WIDTH> gradient;
    packed<P, ADAMW_WIDTH> master;
    packed<S, ADAMW_WIDTH> m, v;
};

template <typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_load(const adamw<P, S, W> &a, int64_t i,
                                                  adamw_pack<P, S> *p)
{
    p->gradient = *(const packed<float, ADAMW_WIDTH> *)(a.gradient.at + i);
    p->master = *(const packed<P, ADAMW_WIDTH> *)(a.master.at + i);
    p->m = *(const packed<S, ADAMW_WIDTH> *)(a.m.at + i);
    p->v = *(const packed<S, ADAMW_WIDTH> *)(a.v.at + i);
}

/* A pack that begins at this element of the block, and lies at i. */
template <typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_step(const adamw<P, S, W> &a,
                                                  const struct adamw_factors &f, int64_t element,
                                                  int64_t i, adamw_pack<P, S> *p)
{
    packed<W, ADAMW_WIDTH> out;
    uint4 noise = {};

#pragma unroll
    for (int e = 0; e < ADAMW_WIDTH; e++) {
        if (e % 2 == 0)
            noise = noise_of<S>(f, element + e);
        out.at[e] = from_float<W>(adamw_element(f, p->gradient.at[e], &p->master.at[e], &p->m.at[e],
                                                &p->v.at[e], noise, e % 2));
    }
    *(packed<S, ADAMW_WIDTH> *)(a.m.at + i) = p->m;
    *(packed<S, ADAMW_WIDTH> *)(a.v.at + i) = p->v;
    *(packed<P, ADAMW_WIDTH> *)(a.master.at + i) = p->master;
    if (a.weight.at)
        *(packed<W, ADAMW_WIDTH> *)(a.weight.at + i) = out;
}

/* All operands are one dense row at addresses of 16 bytes; half of a thread's packs on their way. */
template <typename P, typename S, typename W>
__global__ void __launch_bounds__(ADAMW_THREADS, 3) adamw_wide_kernel(adamw<P, S, W> a)
{
    enum { STEP = ADAMW_THREADS * ADAMW_WIDTH, AT_ONCE = 2 };
    __shared__ float shared[3];
    int64_t start = (int64_t)blockIdx.x * OPS_NORM_BLOCK;
    int first = (int)threadIdx.x * ADAMW_WIDTH;
    adamw_pack<P, S> p[AT_ONCE];

#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
        if (start + first + k * STEP + ADAMW_WIDTH <= a.n)
            adamw_load(a, start + first + k * STEP, &p[k]);
    make_shared(a, shared);
    __syncthreads();
    if (*a.skip)
        return;
    struct adamw_factors f = factors_of(a, shared);
    for (int turn = 0; turn < ADAMW_TURNS; turn += AT_ONCE) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int64_t i = start + first + (turn + k) * STEP;

            if (turn && i + ADAMW_WIDTH <= a.n)
                adamw_load(a, i, &p[k]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int element = first + (turn + k) * STEP;
            int64_t i = start + element;

            if (i + ADAMW_WIDTH <= a.n)
                adamw_step(a, f, element, i, &p[k]);
            else
                for (; i < a.n; i++)
                    adamw_one(a, f, i - start, 0, i);
        }
    }
}

static int is_flat(const struct tensor *t)
{
    return !tensor_given(t) || (is_dense(t) && (uintptr_t)t->data % 16 == 0);
}

template <typename P, typename S, typename W>
static void adamw_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *at = &op->attributes;
    struct cuda_shape shape =
        cuda_shape_of(ceil_div(tensor_elements(&op->in[GRADIENT]), OPS_NORM_BLOCK), ADAMW_THREADS);
    adamw<P, S, W> a = { cuda_rows<float>(&op->in[GRADIENT]),
                         cuda_rows<P>(&op->in[MASTER]),
                         cuda_rows<S>(&op->in[M]),
                         cuda_rows<S>(&op->in[V]),
                         cuda_rows<W>(&op->out[0]),
                         (const float *)op->in[SCALARS].data,
                         (const float *)op->in[FACTOR].data,
                         (const int32_t *)op->in[SKIP].data,
                         cuda_rows<int32_t>(&op->in[PART]).at,
                         cuda_rows<double>(&op->in[DECAY]).at,
                         cuda_rows<double>(&op->in[PLACE]).at,
                         op->in[GRADIENT].cols,
                         tensor_elements(&op->in[GRADIENT]),
                         at->beta1,
                         at->beta2,
                         at->eps,
                         at->weight_decay,
                         rng_key(at->seed, RNG_ROUNDING),
                         at->place };

    if (is_flat(&op->in[GRADIENT]) && is_flat(&op->in[MASTER]) && is_flat(&op->in[M]) &&
        is_flat(&op->in[V]) && is_flat(&op->out[0]))
        cuda_launch(kernels, call, shape, adamw_wide_kernel<P, S, W>, a);
    else
        cuda_launch(kernels, call, shape, adamw_plain_kernel<P, S, W>, a);
}

static void adamw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    (void)first;
    if (op->in[MASTER].dtype == DTYPE_BF16) {
        adamw_launch<bf16, bf16, float>(kernels, call); /* it is the weight */
        return;
    }
    cuda_with_act(tensor_given(&op->out[0]) ? op->out[0].dtype : DTYPE_F32, [&](auto zero) {
        typedef decltype(zero) W;

        if (op->in[M].dtype == DTYPE_BF16)
            adamw_launch<float, bf16, W>(kernels, call);
        else
            adamw_launch<float, float, W>(kernels, call);
    });
}

void cuda_register_optimizer(struct kernels_backend *table)
{
    table->entries[OP_SUMSQ].run = sumsq_run;
    table->entries[OP_SUM_RUNS].run = sum_runs_run;
    table->entries[OP_GRADIENT_NORM].run = gradient_norm_run;
    table->entries[OP_ADAMW].run = adamw_run;
}
