/*
 * optimizer.cu - the gradient's norm and AdamW, with the bits of the CPU's
 *
 * lib/kernels/cpu/optimizer.c says which IEEE operations in which order; here the same ones are
 * spread over threads.
 *
 *   sumsq          16 threads take the 16 lanes of a block of OPS_NORM_BLOCK elements, and add them
 *                  as the CPU's tree. They load whole lines together, 16 bytes each, and take their
 *                  lane's elements from shared memory. Bound by memory: each thread has 64 bytes
 *                  under way while it adds those before. A float's square is exact in double, so
 *                  fma is product and sum.
 *   sum_runs       a run is one chain of dependent adds, some 8 cycles each, and a thread block
 *   gradient_norm  takes it: one thread adds what the others bring into shared memory ahead of it.
 *                  Runs are parameters: a 7B model's longest has 32,000 sums (0.2 ms), all of them
 *                  at once, and the norm adds one number a parameter.
 *   adamw          a thread block takes OPS_NORM_BLOCK elements, whose decay is one. What is the
 *                  same for all of it (bias corrections and so on) four threads make while the
 *                  first loads are under way. Bound by memory, also where states are bf16: 100
 *                  instructions an element are then less than its 16 bytes take.
 *
 * lr, bias corrections, factor and skip are read by the kernels: a graph replays with new ones.
 */
#include "cuda/rng.cuh"
#include "cuda/rows.cuh"

extern "C" {
#include "base/rng.h"
}

/* ---- sums of squares ---------------------------------------------------------------------------
 */

enum { LANES = 16, SUMSQ_THREADS = 256, SUMSQ_BYTES = 64 /* of a thread under way */ };

template <typename T> static __device__ __forceinline__ double add_square(T x, double sum)
{
    double value = (double)to_float(x);

    return fma(value, value, sum);
}

/* What the lanes of a block load at once: 16 bytes of each at a time. */
template <typename T> struct sumsq_chunk {
    enum {
        N_PACKS = SUMSQ_BYTES / 16,
        N_ROUNDS = SUMSQ_BYTES / sizeof(T), /* elements of a lane */
        N_ELEMENTS = N_ROUNDS * LANES,
        ROOM = N_PACKS * LANES + 2, /* so that both blocks of a warp read from banks of their own */
    };
};

template <typename T>
static __device__ __forceinline__ void load_chunk(const T *from, uint4 (&packs)[SUMSQ_BYTES / 16])
{
#pragma unroll
    for (int k = 0; k < SUMSQ_BYTES / 16; k++)
        packs[k] = ((const uint4 *)from)[k * LANES + threadIdx.x % LANES];
}

/* The lane's elements of what the lanes of a block have loaded, in their order, on top of sum. */
template <typename T>
static __device__ __forceinline__ double
add_chunk(uint4 *room, const uint4 (&packs)[SUMSQ_BYTES / 16], double sum)
{
    const T *own = (const T *)room + threadIdx.x % LANES;
    unsigned lanes = 0xffffu << threadIdx.x % 32 / LANES * LANES;

    __syncwarp(lanes); /* what was there has been read */
#pragma unroll
    for (int k = 0; k < sumsq_chunk<T>::N_PACKS; k++)
        room[k * LANES + threadIdx.x % LANES] = packs[k];
    __syncwarp(lanes);
#pragma unroll
    for (int k = 0; k < sumsq_chunk<T>::N_ROUNDS; k++)
        sum = add_square(own[k * LANES], sum);
    return sum;
}

/* The lane's elements of n_chunks > 0 of a block, at a multiple of 16 bytes. */
template <typename T>
static __device__ __forceinline__ double lane_of_chunks(const T *x, int64_t n_chunks)
{
    enum { N_PACKS = sumsq_chunk<T>::N_PACKS };
    __shared__ uint4 shared[SUMSQ_THREADS / LANES][sumsq_chunk<T>::ROOM];
    uint4 *room = shared[threadIdx.x / LANES], now[N_PACKS], next[N_PACKS];
    double sum = 0;

    load_chunk(x, next);
    while (--n_chunks > 0) {
#pragma unroll
        for (int k = 0; k < N_PACKS; k++)
            now[k] = next[k];
        x += sumsq_chunk<T>::N_ELEMENTS;
        load_chunk(x, next);
        sum = add_chunk<T>(room, now, sum);
    }
    return add_chunk<T>(room, next, sum);
}

/* The same of all that is left of a block, for any address. */
template <typename T>
static __device__ __forceinline__ double lane_of_dense(const T *x, int64_t i, int64_t end,
                                                       double sum)
{
#pragma unroll 16
    for (; i < end; i += LANES)
        sum = add_square(x[i], sum);
    return sum;
}

template <typename T>
static __device__ __forceinline__ double lane_of_rows(rows_of<T> x, int64_t cols, int64_t i,
                                                      int64_t end)
{
    int64_t row = i / cols, col = i % cols;
    double sum = 0;

    for (; i < end; i += LANES) {
        sum = add_square(x.row(row)[col], sum);
        for (col += LANES; col >= cols; row++)
            col -= cols;
    }
    return sum;
}

/* cols: 0 where rows lie one after the other. WIDE: they do, from a multiple of 16 bytes on. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(SUMSQ_THREADS)
    sumsq_kernel(rows_of<T> x, int64_t cols, int64_t n, double *sums, int64_t n_blocks)
{
    enum { CHUNK = sumsq_chunk<T>::N_ELEMENTS };
    int64_t thread = (int64_t)blockIdx.x * SUMSQ_THREADS + threadIdx.x;
    int64_t block = thread / LANES, lane = thread % LANES, begin = block * OPS_NORM_BLOCK;
    int64_t end = begin + OPS_NORM_BLOCK < n ? begin + OPS_NORM_BLOCK : n;
    double sum = 0;

    if (WIDE && begin + CHUNK <= end) {
        sum = lane_of_chunks(x.at + begin, (end - begin) / CHUNK);
        begin = end - (end - begin) % CHUNK;
    }
    if (begin + lane < end)
        sum = cols ? lane_of_rows(x, cols, begin + lane, end)
                   : lane_of_dense(x.at, begin + lane, end, sum);
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
    const struct tensor *x = &call->op.in[SUMSQ_X], *sums = &call->op.out[SUMSQ_SUMS];
    struct cuda_shape shape =
        cuda_shape_of(ceil_div(sums->cols * LANES, SUMSQ_THREADS), SUMSQ_THREADS);

    (void)first;
    cuda_with_act(x->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        int wide = is_dense(x) && (uintptr_t)x->data % 16 == 0;

        cuda_launch(kernels, call, shape, wide ? sumsq_kernel<T, 1> : sumsq_kernel<T, 0>,
                    cuda_rows<T>(x), is_dense(x) ? 0 : x->cols, tensor_elements(x),
                    (double *)sums->data, sums->cols);
    });
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

#pragma unroll 64 /* the first loads of a turn are waited for */
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
    cuda_launch(kernels, call, cuda_shape_of(op->out[SUM_RUNS_Y].cols, CHAIN_THREADS),
                sum_runs_kernel, (const double *)op->in[SUM_RUNS_X].data,
                (const int32_t *)op->in[SUM_RUNS_ENDS].data,
                (const int32_t *)op->in[SUM_RUNS_ORDER].data, (double *)op->out[SUM_RUNS_Y].data);
}

/* scale: NULL, or where the factor is that all gradients have too much. */
__global__ void gradient_norm_kernel(const double *sums, const int32_t *order, int64_t n,
                                     const float *scale, double clip, double *norm, float *factor,
                                     int32_t *skip)
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
    const struct tensor *order = &op->in[GRADIENT_NORM_ORDER];

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(1, CHAIN_THREADS), gradient_norm_kernel,
                (const double *)op->in[GRADIENT_NORM_SUMS].data, (const int32_t *)order->data,
                tensor_given(order) ? order->cols : op->in[GRADIENT_NORM_SUMS].cols,
                cuda_rows<float>(&op->in[GRADIENT_NORM_SCALE]).at, op->attributes.clip,
                (double *)op->out[GRADIENT_NORM_NORM].data,
                (float *)op->out[GRADIENT_NORM_CLIP_FACTOR].data,
                (int32_t *)op->out[GRADIENT_NORM_SKIP_UPDATE].data);
}

/* ---- AdamW -------------------------------------------------------------------------------------
 */

enum { ADAMW_THREADS = 256, ADAMW_WIDTH = 4, ADAMW_TURNS = 4 };
static_assert(ADAMW_THREADS * ADAMW_WIDTH * ADAMW_TURNS == OPS_NORM_BLOCK,
              "a block's decay is one");

/* G is the gradient's type, P the master's, S the moments', W the weight's. */
template <typename G, typename P, typename S, typename W> struct adamw {
    rows_of<G> gradient;
    rows_of<P> master;
    rows_of<S> m, v;
    rows_of<W> weight; /* at NULL: there is none */
    const float *scalars, *factor;
    const int32_t *skip, *part;    /* part NULL: 0 */
    const double *decays, *places; /* a block's each, or NULL: weight_decay, place */
    int64_t cols, n;
    float take1, take2, beta2, eps;
    double weight_decay;
    uint64_t key, place;
};

/*
 * What is the same for all elements of a block, in shared memory until it is in registers: what
 * comes from constant memory the compiler would load for each element.
 */
struct adamw_factors {
    float factor, decay, take1, take2, beta2, step, root2, inverse2, eps;
    uint64_t key, low, high; /* of the rounding's numbers; low: of the block's first */
};

/* decay, step and root2, the ones with roots and quotients of doubles, by one warp each. */
template <typename A>
static __device__ __forceinline__ void make_factors(const A &a, struct adamw_factors *f)
{
    double lr = a.scalars[SCALAR_LR];

    if (threadIdx.x == 0) {
        f->decay = (float)(1.0 - lr * (a.decays ? a.decays[blockIdx.x] : a.weight_decay));
    } else if (threadIdx.x == 32) {
        f->step = (float)(lr / (double)a.scalars[SCALAR_BIAS1]);
    } else if (threadIdx.x == 64) {
        f->root2 = (float)sqrt((double)a.scalars[SCALAR_BIAS2]);
        f->inverse2 = 1.0f / f->root2;
    } else if (threadIdx.x == 96) {
        uint64_t place = a.places ? (uint64_t)a.places[blockIdx.x] : a.place + blockIdx.x;
        uint64_t part = a.part ? (uint64_t)*a.part : 0;

        f->factor = *a.factor;
        f->take1 = a.take1;
        f->take2 = a.take2;
        f->beta2 = a.beta2;
        f->eps = a.eps;
        f->key = a.key;
        f->low = place << 11;
        f->high = (uint64_t)a.scalars[SCALAR_UPDATE] | part << 32;
    }
}

/*
 * x / root2 with the bits of a division, for half its instructions. The second quotient is off by
 * less than an ulp; and from such a one, with an exact rest and an inverse that is rounded to
 * nearest, the last step finds the nearest (Markstein, IBM J. Res. Dev. 34, 1990). x is a root of
 * fp32, so 0, infinite, NaN or within 2^-75 .. 2^64, and root2 is within 2^-27 .. 1, as beta2 < 1:
 * nothing here is too large or too small to be exact.
 */
static __device__ __forceinline__ float divide_by_root2(const struct adamw_factors &f, float x)
{
    float first = x * f.inverse2;
    float second = fmaf(fmaf(-first, f.root2, x), f.inverse2, first);
    float quotient = fmaf(fmaf(-second, f.root2, x), f.inverse2, second);

    return x < CUDART_INF_F ? quotient : x;
}

/* An element before it is rounded. */
struct adamw_state {
    float master, m, v;
};

static __device__ __forceinline__ void adamw_element(const struct adamw_factors &f, float gradient,
                                                     struct adamw_state *s)
{
    float g = gradient * f.factor, p = s->master * f.decay;

    s->m = s->m + f.take1 * (g - s->m);
    s->v = s->v * f.beta2 + f.take2 * g * g;
    s->master = p - f.step * (s->m / (divide_by_root2(f, sqrtf(s->v)) + f.eps));
}

/* ---- rounding ---- */

/* Of N pairs of elements from an even one of the block on: ops/ops.h says which bits are whose. */
template <typename S, int N>
static __device__ __forceinline__ void make_noise(const struct adamw_factors &f, int element,
                                                  uint4 (&noise)[N])
{
    if constexpr (sizeof(S) < sizeof(float))
        cuda_philox_row(f.key, f.low | (unsigned)element / 2, f.high, noise);
}

/*
 * The upper half is x rounded by 16 random bits. Infinity has none below, so it stays; so does NaN,
 * which an operation has made, and so one whose upper half alone is one.
 */
static __device__ __forceinline__ uint32_t rounded(float x, uint32_t bits16)
{
    uint32_t bits = __float_as_uint(x);

    return x == x ? bits + bits16 : bits;
}

static __device__ __forceinline__ void put_rounded(float *to, float x, uint32_t)
{
    *to = x;
}

static __device__ __forceinline__ void put_rounded(bf16 *to, float x, uint32_t bits16)
{
    to->bits = (uint16_t)(rounded(x, bits16) >> 16);
}

/* An even element and the next as a word; noise: both their bits. */
static __device__ __forceinline__ uint32_t rounded_pair(float x, float next, uint32_t noise)
{
    return rounded(x, noise & 0xffff) >> 16 | (rounded(next, noise >> 16) & 0xffff0000u);
}

/* element: of the block; where it lies. */
template <typename G, typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_one(const adamw<G, P, S, W> &a,
                                                 const struct adamw_factors &f, int element,
                                                 int64_t row, int64_t col)
{
    struct adamw_state s = { to_float(a.master.row(row)[col]), to_float(a.m.row(row)[col]),
                             to_float(a.v.row(row)[col]) };
    uint4 noise[1] = {};
    int shift = element % 2 * 16;

    make_noise<S>(f, element, noise);
    adamw_element(f, to_float(a.gradient.row(row)[col]), &s);
    put_rounded(&a.m.row(row)[col], s.m, noise[0].y >> shift & 0xffff);
    put_rounded(&a.v.row(row)[col], s.v, noise[0].z >> shift & 0xffff);
    put_rounded(&a.master.row(row)[col], s.master, noise[0].x >> shift & 0xffff);
    if (a.weight.at)
        a.weight.row(row)[col] = from_float<W>(s.master);
}

/* Rows with gaps, or at odd addresses. */
template <typename G, typename P, typename S, typename W>
__global__ void adamw_plain_kernel(adamw<G, P, S, W> a)
{
    __shared__ struct adamw_factors shared;
    int64_t start = (int64_t)blockIdx.x * OPS_NORM_BLOCK;
    int64_t end = start + OPS_NORM_BLOCK < a.n ? start + OPS_NORM_BLOCK : a.n;

    if (*a.skip)
        return;
    make_factors(a, &shared);
    __syncthreads();
    struct adamw_factors f = shared;
    for (int64_t i = start + threadIdx.x; i < end; i += ADAMW_THREADS)
        adamw_one(a, f, (int)(i - start), i / a.cols, i % a.cols);
}

/* ---- four at a time ---- */

/* ADAMW_WIDTH elements as they are in memory. */
template <typename T> struct adamw_words {
    uint32_t at[sizeof(T) * ADAMW_WIDTH / 4];
};

static __device__ __forceinline__ void load_pack(adamw_words<float> *to, const float *from)
{
    uint4 words = *(const uint4 *)from;

    *to = { words.x, words.y, words.z, words.w };
}

static __device__ __forceinline__ void load_pack(adamw_words<bf16> *to, const bf16 *from)
{
    uint2 words = *(const uint2 *)from;

    *to = { words.x, words.y };
}

template <typename T>
static __device__ __forceinline__ float pack_float(const adamw_words<T> &pack, int e)
{
    return word_float(pack.at[e * (int)sizeof(T) / 4], e, T());
}

/* noise: of the first two elements, and of the others. */
static __device__ __forceinline__ void put_pack(float *to, const float *x, uint32_t, uint32_t)
{
    store_floats<float, ADAMW_WIDTH>(to, x);
}

static __device__ __forceinline__ void put_pack(bf16 *to, const float *x, uint32_t noise,
                                                uint32_t noise_behind)
{
    const uint32_t words[] = { rounded_pair(x[0], x[1], noise),
                               rounded_pair(x[2], x[3], noise_behind) };

    store_words<2>(to, words);
}

template <typename G, typename P, typename S> struct adamw_pack {
    adamw_words<G> gradient;
    adamw_words<P> master;
    adamw_words<S> m, v;
};

template <typename G, typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_load(const adamw<G, P, S, W> &a, int64_t i,
                                                  adamw_pack<G, P, S> *p)
{
    load_pack(&p->gradient, a.gradient.at + i);
    load_pack(&p->master, a.master.at + i);
    load_pack(&p->m, a.m.at + i);
    load_pack(&p->v, a.v.at + i);
}

/* A pack that begins at this element of the block, and lies at i. */
template <typename G, typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_step(const adamw<G, P, S, W> &a,
                                                  const struct adamw_factors &f, int element,
                                                  int64_t i, const adamw_pack<G, P, S> &p)
{
    float master[ADAMW_WIDTH], m[ADAMW_WIDTH], v[ADAMW_WIDTH];
    uint4 noise[ADAMW_WIDTH / 2] = {};

    make_noise<S>(f, element, noise);
#pragma unroll
    for (int e = 0; e < ADAMW_WIDTH; e++) {
        struct adamw_state s = { pack_float(p.master, e), pack_float(p.m, e), pack_float(p.v, e) };

        adamw_element(f, pack_float(p.gradient, e), &s);
        master[e] = s.master;
        m[e] = s.m;
        v[e] = s.v;
    }
    put_pack(a.m.at + i, m, noise[0].y, noise[1].y);
    put_pack(a.v.at + i, v, noise[0].z, noise[1].z);
    put_pack(a.master.at + i, master, noise[0].x, noise[1].x);
    if (a.weight.at)
        store_floats<W, ADAMW_WIDTH>(a.weight.at + i, master);
}

/* All operands are one dense row at addresses of 16 bytes; half of a thread's packs on their way. */
template <typename G, typename P, typename S, typename W>
__global__ void __launch_bounds__(ADAMW_THREADS, 3) adamw_wide_kernel(adamw<G, P, S, W> a)
{
    enum { STEP = ADAMW_THREADS * ADAMW_WIDTH, AT_ONCE = 2 };
    __shared__ struct adamw_factors shared;
    int64_t start = (int64_t)blockIdx.x * OPS_NORM_BLOCK;
    int first = (int)threadIdx.x * ADAMW_WIDTH;
    adamw_pack<G, P, S> p[AT_ONCE];

#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
        if (start + first + k * STEP + ADAMW_WIDTH <= a.n)
            adamw_load(a, start + first + k * STEP, &p[k]);
    make_factors(a, &shared);
    __syncthreads();
    if (*a.skip)
        return;
    struct adamw_factors f = shared;
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
                adamw_step(a, f, element, i, p[k]);
            else
#pragma unroll 1
                for (; i < a.n; i++)
                    adamw_one(a, f, (int)(i - start), 0, i);
        }
    }
}

static int is_flat(const struct tensor *t)
{
    return !tensor_given(t) || (is_dense(t) && (uintptr_t)t->data % 16 == 0);
}

template <typename G, typename P, typename S, typename W>
static void adamw_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *at = &op->attributes;
    struct cuda_shape shape = cuda_shape_of(
        ceil_div(tensor_elements(&op->in[ADAMW_GRADIENT]), OPS_NORM_BLOCK), ADAMW_THREADS);
    adamw<G, P, S, W> a = { cuda_rows<G>(&op->in[ADAMW_GRADIENT]),
                            cuda_rows<P>(&op->in[ADAMW_MASTER]),
                            cuda_rows<S>(&op->in[ADAMW_M]),
                            cuda_rows<S>(&op->in[ADAMW_V]),
                            cuda_rows<W>(&op->out[ADAMW_WEIGHT]),
                            (const float *)op->in[ADAMW_SCALARS].data,
                            (const float *)op->in[ADAMW_CLIP_FACTOR].data,
                            (const int32_t *)op->in[ADAMW_SKIP_UPDATE].data,
                            cuda_rows<int32_t>(&op->in[ADAMW_PART]).at,
                            cuda_rows<double>(&op->in[ADAMW_DECAY]).at,
                            cuda_rows<double>(&op->in[ADAMW_RNG_SITE]).at,
                            op->in[ADAMW_GRADIENT].cols,
                            tensor_elements(&op->in[ADAMW_GRADIENT]),
                            (float)(1.0 - at->beta1),
                            (float)(1.0 - at->beta2),
                            (float)at->beta2,
                            (float)at->eps,
                            at->weight_decay,
                            rng_key(at->seed, RNG_ROUNDING),
                            at->rng_site };

    if (is_flat(&op->in[ADAMW_GRADIENT]) && is_flat(&op->in[ADAMW_MASTER]) &&
        is_flat(&op->in[ADAMW_M]) && is_flat(&op->in[ADAMW_V]) && is_flat(&op->out[ADAMW_WEIGHT]))
        cuda_launch(kernels, call, shape, adamw_wide_kernel<G, P, S, W>, a);
    else
        cuda_launch(kernels, call, shape, adamw_plain_kernel<G, P, S, W>, a);
}

template <typename G>
static void adamw_choose(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;

    if (op->in[ADAMW_MASTER].dtype == DTYPE_BF16) {
        adamw_launch<G, bf16, bf16, float>(kernels, call); /* it is the weight */
        return;
    }
    cuda_with_act(tensor_given(&op->out[ADAMW_WEIGHT]) ? op->out[ADAMW_WEIGHT].dtype : DTYPE_F32,
                  [&](auto zero) {
                      typedef decltype(zero) W;

                      if (op->in[ADAMW_M].dtype == DTYPE_BF16)
                          adamw_launch<G, float, bf16, W>(kernels, call);
                      else
                          adamw_launch<G, float, float, W>(kernels, call);
                  });
}

static void adamw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    if (call->op.in[ADAMW_GRADIENT].dtype == DTYPE_BF16)
        adamw_choose<bf16>(kernels, call);
    else
        adamw_choose<float>(kernels, call);
}

void cuda_register_optimizer(struct kernels_backend *table)
{
    table->entries[OP_SUMSQ].run = sumsq_run;
    table->entries[OP_SUM_RUNS].run = sum_runs_run;
    table->entries[OP_GRADIENT_NORM].run = gradient_norm_run;
    table->entries[OP_ADAMW].run = adamw_run;
}
