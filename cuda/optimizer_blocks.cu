/*
 * optimizer_blocks.cu - Lion, SGD, Cadam, and AdamW on 8-bit states, with the bits of the CPU's
 *
 * lib/kernels/cpu/optimizer.c says which IEEE operations in which order; here the same ones
 * are spread over threads. A thread block takes OPS_NORM_BLOCK elements, which have one decay, four
 * side by side a thread and turn, so that two warps have the OPS_STATE_BLOCK elements that share a
 * scale. dtypes of operands are read at run time: branches on them are the same for all threads,
 * and what they lead to is bound by memory. Codes are found by bisection of the edges in shared
 * memory.
 *
 * lr, bias corrections, factor and skip are read by the kernels: a graph replays with new ones.
 */
#include "cuda/optimizer.cuh"
#include "cuda/rng.cuh"

extern "C" {
#include "base/rng.h"
#include "ops/state_codes.h"
}

enum { THREADS = 256, WIDTH = 4, TURNS = 4, STATE_THREADS = OPS_STATE_BLOCK / WIDTH };
static_assert(THREADS * WIDTH * TURNS == OPS_NORM_BLOCK, "a block's decay is one");
static_assert(STATE_THREADS == 64, "two warps have a scale's elements");

static __device__ const float signed_values[STATE_CODES_SIGNED] = {
#include "ops/state_codes_signed.inc"
};
static __device__ const float unsigned_values[STATE_CODES_UNSIGNED] = {
#include "ops/state_codes_unsigned.inc"
};

struct block_operand {
    void *at; /* NULL: there is none */
    int64_t stride;
    int dtype;
};

struct block_update {
    struct block_operand gradient, master, low, m, v, weight;
    float *m_scale, *v_scale;
    const float *scalars, *factor;
    const int32_t *skip, *part;    /* part NULL: 0 */
    const double *decays, *places; /* a block's each, or NULL: weight_decay, place */
    int64_t cols, n;
    bool is_flat; /* all operands are one dense row at addresses of 16 bytes */
    bool half_away, nesterov;
    float beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
    double weight_decay;
    uint64_t key, place;
};

/* What is the same for all elements of a norm block. decay: sgd's is in the gradient. */
struct block_factors {
    float factor, decay, lr, step, sqrt_bias2;
    uint64_t low, high; /* of the rounding's numbers; low: of the block's first */
};

/* A map of codes: values by code, and above which magnitudes the next value is nearer. */
struct code_table {
    float values[STATE_CODES_UNSIGNED], edges[STATE_CODES_UNSIGNED];
};

/* Four elements of a thread, and which they are: of the norm block, and of the operands. */
struct four {
    float g[WIDTH], p[WIDTH], m[WIDTH], v[WIDTH];
    int element, n; /* n: less at the end */
    int64_t first;
};

template <int KIND>
static __device__ __forceinline__ void make_factors(const block_update &a, block_factors *f)
{
    double lr = a.scalars[SCALAR_LR];
    double decay = a.decays ? a.decays[blockIdx.x] : a.weight_decay;
    uint64_t place = a.places ? (uint64_t)a.places[blockIdx.x] : a.place + blockIdx.x;
    uint64_t part = a.part ? (uint64_t)*a.part : 0;

    f->factor = *a.factor;
    f->lr = (float)lr;
    f->decay = (float)(KIND == OP_SGD ? decay : 1.0 - lr * decay);
    f->step = (float)(lr / (double)a.scalars[SCALAR_BIAS1]);
    f->sqrt_bias2 = (float)sqrt((double)a.scalars[SCALAR_BIAS2]);
    f->low = place << 11;
    f->high = (uint64_t)a.scalars[SCALAR_UPDATE] | part << 32;
}

/* ---- codes ---- */

static __device__ __forceinline__ void make_table(code_table *t, const float *values, int n)
{
    for (int k = (int)threadIdx.x; k < STATE_CODES_UNSIGNED; k += THREADS) {
        t->values[k] = k < n ? values[k] : -values[STATE_CODES_UNSIGNED - k];
        t->edges[k] = k + 1 < n ? STATE_CODES_EDGE(values[k], values[k + 1]) : CUDART_INF_F;
    }
}

/* How many edges are below a magnitude; NaN is as 1. */
static __device__ __forceinline__ int nearest_value(const code_table &t, float x)
{
    float within = x <= 1.0f ? x : 1.0f;
    int k = 0;

#pragma unroll
    for (int step = STATE_CODES_UNSIGNED / 2; step; step /= 2)
        k += t.edges[k + step - 1] < within ? step : 0;
    return k;
}

/* ---- operands ---- */

static __device__ __forceinline__ int64_t place_of(const block_update &a, const block_operand &o,
                                                   int64_t i)
{
    return a.is_flat ? i : i / a.cols * o.stride + i % a.cols;
}

static __device__ __forceinline__ float word_to_float(uint16_t word, int dtype)
{
    return dtype == DTYPE_BF16 ? to_float(bf16{ word }) : to_float(fp16{ word });
}

static __device__ __forceinline__ void read_floats(const block_update &a, const block_operand &o,
                                                   const four &t, float (&x)[WIDTH])
{
    bool is_wide = a.is_flat && t.n == WIDTH;

    if (is_wide && o.dtype == DTYPE_F32) {
        float4 words = *(const float4 *)((const float *)o.at + t.first);

        x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
    } else if (is_wide) {
        uint2 words = *(const uint2 *)((const uint16_t *)o.at + t.first);

        x[0] = word_to_float((uint16_t)words.x, o.dtype);
        x[1] = word_to_float((uint16_t)(words.x >> 16), o.dtype);
        x[2] = word_to_float((uint16_t)words.y, o.dtype);
        x[3] = word_to_float((uint16_t)(words.y >> 16), o.dtype);
    } else {
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            if (e >= t.n)
                break;
            int64_t at = place_of(a, o, t.first + e);

            x[e] = o.dtype == DTYPE_F32 ? ((const float *)o.at)[at]
                                        : word_to_float(((const uint16_t *)o.at)[at], o.dtype);
        }
    }
}

static __device__ __forceinline__ void read_master(const block_update &a, four *t)
{
    if (!a.low.at) {
        read_floats(a, a.master, *t, t->p);
        return;
    }
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        if (e < t->n)
            t->p[e] = join(((const uint16_t *)a.master.at)[place_of(a, a.master, t->first + e)],
                           ((const uint16_t *)a.low.at)[place_of(a, a.low, t->first + e)]);
}

/* table: of u8 states. */
static __device__ __forceinline__ void read_state(const block_update &a, const block_operand &o,
                                                  const float *scales, const code_table &table,
                                                  const four &t, float (&x)[WIDTH])
{
    if (o.dtype == DTYPE_U8) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            if (e < t.n)
                x[e] = table.values[((const uint8_t *)o.at)[place_of(a, o, t.first + e)]];
    } else {
        read_floats(a, o, t, x);
    }
    if (!scales || !t.n)
        return;
    float scale = scales[t.first / OPS_STATE_BLOCK];
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        x[e] *= scale;
}

/* noise: of the first two elements, and of the others, by which bf16 is rounded. */
static __device__ __forceinline__ void write_rounded(const block_update &a, const block_operand &o,
                                                     const four &t, const float (&x)[WIDTH],
                                                     uint32_t noise, uint32_t noise_behind)
{
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        if (e >= t.n)
            break;
        uint32_t bits = (e < 2 ? noise : noise_behind) >> e % 2 * 16 & 0xffff;

        ((uint16_t *)o.at)[place_of(a, o, t.first + e)] = (uint16_t)(rounded(x[e], bits) >> 16);
    }
}

/* To nearest; is_upper: a bf16 as upper words are. */
static __device__ __forceinline__ void write_floats(const block_update &a, const block_operand &o,
                                                    const four &t, const float (&x)[WIDTH],
                                                    bool is_upper)
{
    if (a.is_flat && t.n == WIDTH && o.dtype == DTYPE_F32) {
        *(float4 *)((float *)o.at + t.first) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        if (e >= t.n)
            break;
        int64_t at = place_of(a, o, t.first + e);

        if (o.dtype == DTYPE_F32)
            ((float *)o.at)[at] = x[e];
        else if (o.dtype == DTYPE_F16)
            ((fp16 *)o.at)[at] = from_float<fp16>(x[e]);
        else if (is_upper)
            ((upper16 *)o.at)[at] = from_float<upper16>(x[e]);
        else
            ((bf16 *)o.at)[at] = from_float<bf16>(x[e]);
    }
}

static __device__ __forceinline__ void write_halves(const block_update &a, const four &t)
{
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        if (e >= t.n)
            break;
        ((upper16 *)a.master.at)[place_of(a, a.master, t.first + e)] = from_float<upper16>(t.p[e]);
        ((uint16_t *)a.low.at)[place_of(a, a.low, t.first + e)] = lower_of(t.p[e]);
    }
}

/* The largest magnitude of the elements that share a scale. All threads of the block call it;
 * tops: a float a warp, that nothing else uses between two calls. */
static __device__ __forceinline__ float largest(const float (&x)[WIDTH], int n, float *tops)
{
    int warp = (int)threadIdx.x / 32;
    float top = 0;

#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        top = e < n && fabsf(x[e]) > top ? fabsf(x[e]) : top;
    top = warp_max(top);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        tops[warp] = top;
    __syncthreads();
    return fmaxf(tops[warp & ~1], tops[warp | 1]);
}

static __device__ __forceinline__ void write_codes(const block_update &a, const block_operand &o,
                                                   const code_table &table, const four &t,
                                                   const float (&x)[WIDTH], float top,
                                                   bool is_signed)
{
    float divisor = top > 0 ? top : 1.0f;

#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        if (e >= t.n)
            break;
        int k = nearest_value(table, (is_signed ? fabsf(x[e]) : x[e]) / divisor);

        if (is_signed && !(x[e] >= 0))
            k = k < STATE_CODES_SIGNED - 1 ? -k : 2 - STATE_CODES_SIGNED;
        if (!is_signed && k == 0 && x[e] > 0)
            k = 1;
        ((uint8_t *)o.at)[place_of(a, o, t.first + e)] = (uint8_t)k;
    }
}

/* All threads of the block call it. */
static __device__ __forceinline__ void write_state(const block_update &a, const block_operand &o,
                                                   float *scales, const code_table &table,
                                                   const four &t, float (&x)[WIDTH],
                                                   const uint4 (&noise)[2], bool is_m, float *tops)
{
    bool is_first = t.element % OPS_STATE_BLOCK == 0 && t.n;

    if (o.dtype == DTYPE_BF16) {
        write_rounded(a, o, t, x, noise[0].y, noise[1].y);
        return;
    }
    if (!scales) {
        write_floats(a, o, t, x, false);
        return;
    }
    float top = largest(x, t.n, tops);
    if (o.dtype == DTYPE_U8) {
        write_codes(a, o, table, t, x, top, is_m);
        if (is_first)
            scales[t.first / OPS_STATE_BLOCK] = top;
        return;
    }
    float scale = top / OPS_FP16_FULL + a.eps, inverse = 1.0f / scale;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        float scaled = x[e] * inverse;

        scaled = scaled > OPS_FP16_FULL ? OPS_FP16_FULL : scaled;
        x[e] = scaled < -OPS_FP16_FULL ? -OPS_FP16_FULL : scaled;
    }
    write_floats(a, o, t, x, false);
    if (is_first)
        scales[t.first / OPS_STATE_BLOCK] = scale;
}

/* ---- the optimizers ---- */

/* lr with x's sign; 0 where x is 0. */
static __device__ __forceinline__ float signed_step(float x, float lr)
{
    return x > 0 ? lr : x < 0 ? -lr : 0.0f;
}

template <int KIND>
static __device__ __forceinline__ void update_one(const block_update &a, const block_factors &f,
                                                  float gradient, float *p, float *m, float *v)
{
    float g = gradient * f.factor;

    if constexpr (KIND == OP_LION) {
        float u = *m * a.beta1 + a.one_minus_beta1 * g;

        *m = *m * a.beta2 + a.one_minus_beta2 * g;
        *p = *p * f.decay - signed_step(u, f.lr);
    } else if constexpr (KIND == OP_SGD) {
        g = g + f.decay * *p;
        *m = a.beta1 * *m + g;
        *p = *p - f.lr * (a.nesterov ? g + a.beta1 * *m : *m);
    } else if constexpr (KIND == OP_CADAM) {
        *m = *m * a.beta1 + a.one_minus_beta1 * g;
        *p = *p * f.decay - signed_step(*m, f.lr);
    } else {
        float decayed = *p * f.decay;

        *m = *m + a.one_minus_beta1 * (g - *m);
        *v = *v * a.beta2 + a.one_minus_beta2 * g * g;
        *p = decayed - f.step * (*m / (sqrtf(*v) / f.sqrt_bias2 + a.eps));
    }
}

template <int KIND> __global__ void __launch_bounds__(THREADS) blocks_kernel(block_update a)
{
    __shared__ struct block_factors factors;
    __shared__ struct code_table m_table, v_table;
    __shared__ float tops[THREADS / 32];

    if (*a.skip)
        return;
    if (threadIdx.x == 0)
        make_factors<KIND>(a, &factors);
    if (a.m.dtype == DTYPE_U8) {
        make_table(&m_table, signed_values, STATE_CODES_SIGNED);
        make_table(&v_table, unsigned_values, STATE_CODES_UNSIGNED);
    }
    __syncthreads();
    struct block_factors f = factors;
    for (int turn = 0; turn < TURNS; turn++) {
        struct four t = {};
        uint4 noise[2] = {};

        t.element = (turn * THREADS + (int)threadIdx.x) * WIDTH;
        t.first = (int64_t)blockIdx.x * OPS_NORM_BLOCK + t.element;
        t.n = a.n - t.first >= WIDTH ? WIDTH : a.n > t.first ? (int)(a.n - t.first) : 0;
        read_floats(a, a.gradient, t, t.g);
        read_master(a, &t);
        read_state(a, a.m, a.m_scale, m_table, t, t.m);
        if (a.v.at)
            read_state(a, a.v, a.v_scale, v_table, t, t.v);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            if (e < t.n)
                update_one<KIND>(a, f, t.g[e], &t.p[e], &t.m[e], &t.v[e]);
        if (a.m.dtype == DTYPE_BF16)
            cuda_philox_row(a.key, f.low | (unsigned)t.element / 2, f.high, noise);
        if (a.low.at)
            write_halves(a, t);
        else if (a.master.dtype == DTYPE_BF16)
            write_rounded(a, a.master, t, t.p, noise[0].x, noise[1].x);
        else
            write_floats(a, a.master, t, t.p, false);
        if (a.weight.at)
            write_floats(a, a.weight, t, t.p, a.half_away);
        write_state(a, a.m, a.m_scale, m_table, t, t.m, noise, true, tops);
        if (a.v.at)
            write_state(a, a.v, a.v_scale, v_table, t, t.v, noise, false, tops);
    }
}

static struct block_operand operand_of(const struct tensor *t)
{
    return { tensor_given(t) ? t->data : NULL, t->stride, (int)t->dtype };
}

static bool is_flat(const struct tensor *t)
{
    return !tensor_given(t) || (cuda_is_dense(t) && (uintptr_t)t->data % 16 == 0);
}

static bool are_flat(const struct op_shape *op)
{
    for (int k : { OPTIMIZER_GRADIENT, OPTIMIZER_MASTER, OPTIMIZER_M, OPTIMIZER_V, OPTIMIZER_LOW })
        if (!is_flat(&op->in[k]))
            return false;
    return is_flat(&op->out[OPTIMIZER_WEIGHT]);
}

static block_update update_of(const struct op_shape *op)
{
    const struct op_attributes *at = &op->attributes;

    return { operand_of(&op->in[OPTIMIZER_GRADIENT]),
             operand_of(&op->in[OPTIMIZER_MASTER]),
             operand_of(&op->in[OPTIMIZER_LOW]),
             operand_of(&op->in[OPTIMIZER_M]),
             operand_of(&op->in[OPTIMIZER_V]),
             operand_of(&op->out[OPTIMIZER_WEIGHT]),
             cuda_rows<float>(&op->in[OPTIMIZER_M_SCALE]).at,
             cuda_rows<float>(&op->in[OPTIMIZER_V_SCALE]).at,
             (const float *)op->in[OPTIMIZER_SCALARS].data,
             (const float *)op->in[OPTIMIZER_CLIP_FACTOR].data,
             (const int32_t *)op->in[OPTIMIZER_SKIP_UPDATE].data,
             cuda_rows<int32_t>(&op->in[OPTIMIZER_PART]).at,
             cuda_rows<double>(&op->in[OPTIMIZER_DECAY]).at,
             cuda_rows<double>(&op->in[OPTIMIZER_RNG_SITE]).at,
             op->in[OPTIMIZER_GRADIENT].cols,
             tensor_elements(&op->in[OPTIMIZER_GRADIENT]),
             are_flat(op),
             at->half_away != 0,
             at->nesterov != 0,
             (float)at->beta1,
             (float)at->beta2,
             (float)(1.0 - at->beta1),
             (float)(1.0 - at->beta2),
             (float)at->eps,
             at->weight_decay,
             rng_key(at->seed, RNG_ROUNDING),
             at->rng_site };
}

void cuda_update_by_blocks(struct kernels *kernels, const struct kernel_call *call)
{
    block_update a = update_of(&call->op);
    struct cuda_shape shape = cuda_shape_of(ceil_div(a.n, OPS_NORM_BLOCK), THREADS);

    switch (call->op.kind) {
    case OP_LION:
        cuda_launch(kernels, call, shape, blocks_kernel<OP_LION>, a);
        return;
    case OP_SGD:
        cuda_launch(kernels, call, shape, blocks_kernel<OP_SGD>, a);
        return;
    case OP_CADAM:
        cuda_launch(kernels, call, shape, blocks_kernel<OP_CADAM>, a);
        return;
    default:
        cuda_launch(kernels, call, shape, blocks_kernel<OP_ADAMW>, a);
    }
}
