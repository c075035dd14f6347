/*
 * optimizer.cu - AdamW (Loshchilov and Hutter 2019, algorithm 2), with the bits of the CPU's
 *
 * lib/kernels/cpu/optimizer.c says which IEEE operations in which order; here the same ones are
 * spread over threads. A thread block takes OPS_NORM_BLOCK elements, which have one decay. What is
 * the same for all of them (bias corrections and so on) four threads compute while the first loads
 * are under way. Bound by memory, also where states are bf16: 100 instructions an element take less
 * time than its 16 bytes.
 *
 * lr, bias corrections, factor and skip are read by the kernels: a graph replays with new ones.
 */
#include "cuda/optimizer.cuh"
#include "cuda/rng.cuh"

extern "C" {
#include "base/rng.h"
}

enum { ADAMW_THREADS = 256, ADAMW_WIDTH = 4, ADAMW_TURNS = 4 };
static_assert(ADAMW_THREADS * ADAMW_WIDTH * ADAMW_TURNS == OPS_NORM_BLOCK,
              "a block's decay is one");

template <typename P> static constexpr bool HAS_LOW = false;
template <> constexpr bool HAS_LOW<upper16> = true;

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
    float one_minus_beta1, one_minus_beta2, beta2, eps;
    double weight_decay;
    uint64_t key, place;
    rows_of<upper16> low; /* where P is upper16: the lower words */
};

/*
 * What is the same for all elements of a block, in shared memory until it is in registers: what
 * comes from constant memory the compiler would load for each element.
 */
struct adamw_factors {
    float factor, decay, one_minus_beta1, one_minus_beta2, beta2, step, sqrt_bias2,
        inverse_sqrt_bias2, eps;
    uint64_t key, low, high; /* of the rounding's numbers; low: of the block's first */
};

/* decay, step and sqrt_bias2, the ones with roots and quotients of doubles, by one warp each. */
template <typename A>
static __device__ __forceinline__ void make_factors(const A &a, struct adamw_factors *f)
{
    double lr = a.scalars[SCALAR_LR];

    if (threadIdx.x == 0) {
        f->decay = (float)(1.0 - lr * (a.decays ? a.decays[blockIdx.x] : a.weight_decay));
    } else if (threadIdx.x == 32) {
        f->step = (float)(lr / (double)a.scalars[SCALAR_BIAS1]);
    } else if (threadIdx.x == 64) {
        f->sqrt_bias2 = (float)sqrt((double)a.scalars[SCALAR_BIAS2]);
        f->inverse_sqrt_bias2 = 1.0f / f->sqrt_bias2;
    } else if (threadIdx.x == 96) {
        uint64_t place = a.places ? (uint64_t)a.places[blockIdx.x] : a.place + blockIdx.x;
        uint64_t part = a.part ? (uint64_t)*a.part : 0;

        f->factor = *a.factor;
        f->one_minus_beta1 = a.one_minus_beta1;
        f->one_minus_beta2 = a.one_minus_beta2;
        f->beta2 = a.beta2;
        f->eps = a.eps;
        f->key = a.key;
        f->low = place << 11;
        f->high = (uint64_t)a.scalars[SCALAR_UPDATE] | part << 32;
    }
}

/*
 * x / sqrt_bias2 with the bits of a division, for half its instructions. The second quotient is off
 * by less than an ulp; and from such a one, with an exact rest and an inverse that is rounded to
 * nearest, the last step finds the nearest (Markstein, IBM J. Res. Dev. 34, 1990). x is a root of
 * fp32, so 0, infinite, NaN or within 2^-75 .. 2^64, and sqrt_bias2 is within 2^-27 .. 1, as beta2
 * < 1: nothing here is too large or too small to be exact.
 */
static __device__ __forceinline__ float divide_by_sqrt_bias2(const struct adamw_factors &f, float x)
{
    float first = x * f.inverse_sqrt_bias2;
    float second = fmaf(fmaf(-first, f.sqrt_bias2, x), f.inverse_sqrt_bias2, first);
    float quotient = fmaf(fmaf(-second, f.sqrt_bias2, x), f.inverse_sqrt_bias2, second);

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

    s->m = s->m + f.one_minus_beta1 * (g - s->m);
    s->v = s->v * f.beta2 + f.one_minus_beta2 * g * g;
    s->master = p - f.step * (s->m / (divide_by_sqrt_bias2(f, sqrtf(s->v)) + f.eps));
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

template <typename G, typename P, typename S, typename W>
static __device__ __forceinline__ float master_at(const adamw<G, P, S, W> &a, int64_t row,
                                                  int64_t col)
{
    P master = a.master.row(row)[col];

    if constexpr (HAS_LOW<P>)
        return join(master.bits, a.low.row(row)[col].bits);
    else
        return to_float(master);
}

template <typename G, typename P, typename S, typename W>
static __device__ __forceinline__ void put_master(const adamw<G, P, S, W> &a, int64_t row,
                                                  int64_t col, float x, uint32_t bits16)
{
    if constexpr (HAS_LOW<P>) {
        a.master.row(row)[col] = from_float<P>(x);
        a.low.row(row)[col].bits = lower_of(x);
    } else {
        put_rounded(&a.master.row(row)[col], x, bits16);
    }
}

/* element: of the block; where it lies. */
template <typename G, typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_one(const adamw<G, P, S, W> &a,
                                                 const struct adamw_factors &f, int element,
                                                 int64_t row, int64_t col)
{
    struct adamw_state s = { master_at(a, row, col), to_float(a.m.row(row)[col]),
                             to_float(a.v.row(row)[col]) };
    uint4 noise[1] = {};
    int shift = element % 2 * 16;

    make_noise<S>(f, element, noise);
    adamw_element(f, to_float(a.gradient.row(row)[col]), &s);
    put_rounded(&a.m.row(row)[col], s.m, noise[0].y >> shift & 0xffff);
    put_rounded(&a.v.row(row)[col], s.v, noise[0].z >> shift & 0xffff);
    put_master(a, row, col, s.master, noise[0].x >> shift & 0xffff);
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

static __device__ __forceinline__ void load_pack(adamw_words<upper16> *to, const upper16 *from)
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

/* Of masters in two operands. */
template <typename P> struct adamw_low_words {
};
template <> struct adamw_low_words<upper16> {
    adamw_words<upper16> words;
};

template <typename G, typename P, typename S> struct adamw_pack {
    adamw_words<G> gradient;
    adamw_words<P> master;
    adamw_words<S> m, v;
    adamw_low_words<P> low;
};

static __device__ __forceinline__ uint32_t word16(const adamw_words<upper16> &pack, int e)
{
    return pack.at[e / 2] >> e % 2 * 16 & 0xffff;
}

template <typename G, typename P, typename S>
static __device__ __forceinline__ float pack_master(const adamw_pack<G, P, S> &p, int e)
{
    if constexpr (HAS_LOW<P>)
        return join(word16(p.master, e), word16(p.low.words, e));
    else
        return pack_float(p.master, e);
}

static __device__ __forceinline__ void put_lower(upper16 *to, const float *x)
{
    const uint32_t words[] = { lower_of(x[0]) | (uint32_t)lower_of(x[1]) << 16,
                               lower_of(x[2]) | (uint32_t)lower_of(x[3]) << 16 };

    store_words<2>(to, words);
}

template <typename G, typename P, typename S, typename W>
static __device__ __forceinline__ void adamw_load(const adamw<G, P, S, W> &a, int64_t i,
                                                  adamw_pack<G, P, S> *p)
{
    load_pack(&p->gradient, a.gradient.at + i);
    load_pack(&p->master, a.master.at + i);
    if constexpr (HAS_LOW<P>)
        load_pack(&p->low.words, a.low.at + i);
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
        struct adamw_state s = { pack_master(p, e), pack_float(p.m, e), pack_float(p.v, e) };

        adamw_element(f, pack_float(p.gradient, e), &s);
        master[e] = s.master;
        m[e] = s.m;
        v[e] = s.v;
    }
    put_pack(a.m.at + i, m, noise[0].y, noise[1].y);
    put_pack(a.v.at + i, v, noise[0].z, noise[1].z);
    if constexpr (HAS_LOW<P>) {
        store_floats<P, ADAMW_WIDTH>(a.master.at + i, master);
        put_lower(a.low.at + i, master);
    } else {
        put_pack(a.master.at + i, master, noise[0].x, noise[1].x);
    }
    if (a.weight.at)
        store_floats<W, ADAMW_WIDTH>(a.weight.at + i, master);
}

/* All operands are one dense row at addresses of 16 bytes; half of a thread's packs on their
 * way. */
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

static bool is_flat(const struct tensor *t)
{
    return !tensor_given(t) || (cuda_is_dense(t) && (uintptr_t)t->data % 16 == 0);
}

template <typename G, typename P, typename S, typename W>
static void adamw_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *at = &op->attributes;
    struct cuda_shape shape = cuda_shape_of(
        ceil_div(tensor_elements(&op->in[OPTIMIZER_GRADIENT]), OPS_NORM_BLOCK), ADAMW_THREADS);
    adamw<G, P, S, W> a = { cuda_rows<G>(&op->in[OPTIMIZER_GRADIENT]),
                            cuda_rows<P>(&op->in[OPTIMIZER_MASTER]),
                            cuda_rows<S>(&op->in[OPTIMIZER_M]),
                            cuda_rows<S>(&op->in[OPTIMIZER_V]),
                            cuda_rows<W>(&op->out[OPTIMIZER_WEIGHT]),
                            (const float *)op->in[OPTIMIZER_SCALARS].data,
                            (const float *)op->in[OPTIMIZER_CLIP_FACTOR].data,
                            (const int32_t *)op->in[OPTIMIZER_SKIP_UPDATE].data,
                            cuda_rows<int32_t>(&op->in[OPTIMIZER_PART]).at,
                            cuda_rows<double>(&op->in[OPTIMIZER_DECAY]).at,
                            cuda_rows<double>(&op->in[OPTIMIZER_RNG_SITE]).at,
                            op->in[OPTIMIZER_GRADIENT].cols,
                            tensor_elements(&op->in[OPTIMIZER_GRADIENT]),
                            (float)(1.0 - at->beta1),
                            (float)(1.0 - at->beta2),
                            (float)at->beta2,
                            (float)at->eps,
                            at->weight_decay,
                            rng_key(at->seed, RNG_ROUNDING),
                            at->rng_site,
                            cuda_rows<upper16>(&op->in[OPTIMIZER_LOW]) };

    if (is_flat(&op->in[OPTIMIZER_GRADIENT]) && is_flat(&op->in[OPTIMIZER_MASTER]) &&
        is_flat(&op->in[OPTIMIZER_M]) && is_flat(&op->in[OPTIMIZER_V]) &&
        is_flat(&op->out[OPTIMIZER_WEIGHT]) && is_flat(&op->in[OPTIMIZER_LOW]))
        cuda_launch(kernels, call, shape, adamw_wide_kernel<G, P, S, W>, a);
    else
        cuda_launch(kernels, call, shape, adamw_plain_kernel<G, P, S, W>, a);
}

template <typename G>
static void adamw_choose(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;

    if (tensor_given(&op->in[OPTIMIZER_LOW])) {
        adamw_launch<G, upper16, float, float>(kernels, call);
        return;
    }
    if (tensor_given(&op->out[OPTIMIZER_WEIGHT]) && op->out[OPTIMIZER_WEIGHT].dtype == DTYPE_BF16 &&
        op->attributes.half_away && op->in[OPTIMIZER_M].dtype == DTYPE_F32) {
        adamw_launch<G, float, float, upper16>(kernels, call);
        return;
    }
    if (op->in[OPTIMIZER_MASTER].dtype == DTYPE_BF16) {
        adamw_launch<G, bf16, bf16, float>(kernels, call); /* it is the weight */
        return;
    }
    cuda_with_act(tensor_given(&op->out[OPTIMIZER_WEIGHT]) ? op->out[OPTIMIZER_WEIGHT].dtype
                                                           : DTYPE_F32,
                  [&](auto zero) {
                      typedef decltype(zero) W;

                      if (op->in[OPTIMIZER_M].dtype == DTYPE_BF16)
                          adamw_launch<G, float, bf16, W>(kernels, call);
                      else
                          adamw_launch<G, float, float, W>(kernels, call);
                  });
}

static void adamw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    if (call->op.in[OPTIMIZER_M].dtype == DTYPE_U8)
        cuda_update_by_blocks(kernels, call);
    else if (call->op.in[OPTIMIZER_GRADIENT].dtype == DTYPE_BF16)
        adamw_choose<bf16>(kernels, call);
    else
        adamw_choose<float>(kernels, call);
}

static void by_blocks_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cuda_update_by_blocks(kernels, call);
}

void cuda_register_optimizer(struct kernels_backend *table)
{
    table->entries[OP_ADAMW].run = adamw_run;
    for (int kind : { OP_LION, OP_SGD, OP_CADAM })
        table->entries[kind].run = by_blocks_run;
}
