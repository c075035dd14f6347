/*
 * optimizer.c - AdamW, Lion, SGD and Cadam, block by block
 *
 * A tile is some norm blocks, and is taken OPS_STATE_BLOCK elements at a time, which stay in the
 * first cache: updated in place or staged (state_chunk_impl.h), and then written as weights. So
 * each optimizer is one short loop over floats, whatever its states are kept as, and a scale is of
 * elements that one thread has. States of fp32 are bound by memory, fp16 nearly so; 8-bit ones by
 * looking up codes, those of bf16 by the numbers that round them. The order of IEEE operations is
 * the contract with other backends:
 *
 *   once a call, in double then rounded to float:
 *     decay = 1 - lr * weight_decay (or of each block's), one_minus_beta1 = 1 - beta1,
 *     one_minus_beta2 = 1 - beta2, step = lr / bias1, sqrt_bias2 = sqrt(bias2)
 *   an element, in float, each operation rounded, none fused:
 *     g = gradient * factor
 *     adamw:   p = master * decay, m = m + one_minus_beta1 * (g - m),
 *              v = v * beta2 + one_minus_beta2 * g * g           ((one_minus_beta2 * g) * g),
 *              p = p - step * (m / (sqrt(v) / sqrt_bias2 + eps))
 *     lion:    p = master * decay, u = m * beta1 + one_minus_beta1 * g,
 *              m = m * beta2 + one_minus_beta2 * g, p = p - (lr with u's sign, or 0)
 *     sgd:     p = master, g = g + weight_decay * p, m = beta1 * m + g,
 *              p = p - lr * (nesterov ? g + beta1 * m : m)
 *     cadam:   p = master * decay, m = m * beta1 + one_minus_beta1 * g,
 *              p = p - (lr with m's sign, or 0)
 *   a block of a state with a scale: top = the largest |m|
 *     fp16:    scale = top / OPS_FP16_FULL + eps, x = m * (1 / scale), within OPS_FP16_FULL;
 *              read as x * scale
 *     u8:      scale = top, the code is of |m| / top (0 where top is 0); read as value * scale
 *
 * Of states in bf16 these are the numbers before they are rounded (ops/ops.h says how), m and v of
 * the element's own line included. A master in two operands (base/halves.h) is one float between
 * them.
 */
#include <math.h>

#include "kernels/cpu/state_chunk_impl.h"
#include "kernels/cpu/state_codes_impl.h"

#define BLOCKS_A_TILE 4 /* norm blocks */

/* What is the same for all elements of a call. */
struct update_call {
    const struct op_shape *op;
    int64_t n;
    double lr;
    float lr32, factor, one_minus_beta1, one_minus_beta2, beta1, beta2, step, sqrt_bias2, eps;
    uint64_t key, high; /* of the rounding's numbers */
    const struct state_codec *codec;
    const struct code_map *m_map, *v_map; /* of u8 states, else NULL */
};

/* ---- states ---- */

static inline const float *scale_at(const struct tensor *scales, const struct state_chunk *c)
{
    return (const float *)scales->data + c->first / OPS_STATE_BLOCK;
}

CPU_INLINE float *read_state(const struct update_call *a, enum optimizer_in state,
                             enum optimizer_in scales, const struct code_map *map,
                             const struct state_chunk *c, float *staged)
{
    const struct tensor *t = &a->op->in[state];
    uint16_t buffer[OPS_STATE_BLOCK];

    if (!tensor_given(&a->op->in[scales]))
        return read_chunk(t, c, staged);
    float scale = *scale_at(&a->op->in[scales], c);
    if (map)
        a->codec->decode(map, read_bytes(t, c, buffer), c->n, scale, staged);
    else
        a->codec->from_fp16(read_bytes(t, c, buffer), c->n, scale, staged);
    return staged;
}

/* Of magnitudes, but for NaN. */
CPU_INLINE float largest(const float *x, int n)
{
    float lanes[SUM_LANES] = { 0 };
    int i = 0;

    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] = fabsf(x[i + l]) > lanes[l] ? fabsf(x[i + l]) : lanes[l];
    for (; i < n; i++)
        lanes[0] = fabsf(x[i]) > lanes[0] ? fabsf(x[i]) : lanes[0];
#pragma GCC unroll 8
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
    return lanes[0];
}

/* bits: by which elements of bf16 are rounded. */
CPU_INLINE void write_state(const struct update_call *a, enum optimizer_in state,
                            enum optimizer_in scales, const struct code_map *map,
                            const struct state_chunk *c, const float *x, const uint32_t *bits)
{
    const struct tensor *t = &a->op->in[state];
    uint16_t buffer[OPS_STATE_BLOCK];

    if (!tensor_given(&a->op->in[scales])) {
        write_chunk(t, c, x, bits);
        return;
    }
    float *scale = (float *)(uintptr_t)scale_at(&a->op->in[scales], c), top = largest(x, c->n);
    void *bytes = is_dense(t) ? read_bytes(t, c, NULL) : buffer;

    if (map) {
        *scale = top;
        a->codec->encode(map, x, c->n, top > 0 ? top : 1.0f, bytes);
    } else {
        *scale = top / OPS_FP16_FULL + a->eps;
        a->codec->to_fp16(x, c->n, 1.0f / *scale, bytes);
    }
    write_bytes(t, c, bytes);
}

/* ---- the optimizers ---- */

/* lr with x's sign, 0 where x is 0 or NaN. Compilers that heed what comparisons of floats may raise
 * have branches for these, and no vectors. */
CPU_INLINE float signed_step(float x, float lr)
{
    uint32_t bits = vec_to_bits(x);
    int32_t size = (int32_t)(bits & 0x7fffffffu);
    uint32_t is_number = (uint32_t)((size > 0) & (size <= 0x7f800000));

    return vec_from_bits((vec_to_bits(lr) ^ (bits & 0x80000000u)) & (0 - is_number));
}

CPU_INLINE void lion(const struct update_call *a, const struct state_chunk *c, float decay)
{
    float factor = a->factor, lr = a->lr32, beta1 = a->beta1, beta2 = a->beta2;
    float one_minus_beta1 = a->one_minus_beta1, one_minus_beta2 = a->one_minus_beta2;
    const float *gradient = c->g;
    float *master = c->p, *moment = c->m;
    int n = c->n;

    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++) {
        float g = gradient[i] * factor, p = master[i] * decay, m = moment[i];
        float u = m * beta1 + one_minus_beta1 * g;

        moment[i] = m * beta2 + one_minus_beta2 * g;
        master[i] = p - signed_step(u, lr);
    }
}

CPU_INLINE void sgd(const struct update_call *a, const struct state_chunk *c, float weight_decay)
{
    float factor = a->factor, lr = a->lr32, beta1 = a->beta1;
    bool nesterov = a->op->attributes.nesterov;
    const float *gradient = c->g;
    float *master = c->p, *moment = c->m;
    int n = c->n;

    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++) {
        float p = master[i], g = gradient[i] * factor + weight_decay * p;
        float m = beta1 * moment[i] + g;

        moment[i] = m;
        master[i] = p - lr * (nesterov ? g + beta1 * m : m);
    }
}

CPU_INLINE void cadam(const struct update_call *a, const struct state_chunk *c, float decay)
{
    float factor = a->factor, lr = a->lr32, beta1 = a->beta1;
    float one_minus_beta1 = a->one_minus_beta1;
    const float *gradient = c->g;
    float *master = c->p, *moment = c->m;
    int n = c->n;

    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++) {
        float g = gradient[i] * factor, p = master[i] * decay;
        float m = moment[i] * beta1 + one_minus_beta1 * g;

        moment[i] = m;
        master[i] = p - signed_step(m, lr);
    }
}

CPU_INLINE void adamw(const struct update_call *a, const struct state_chunk *c, float decay)
{
    float factor = a->factor, one_minus_beta1 = a->one_minus_beta1, beta2 = a->beta2;
    float one_minus_beta2 = a->one_minus_beta2, step = a->step, sqrt_bias2 = a->sqrt_bias2;
    float eps = a->eps;
    const float *gradient = c->g;
    float *master = c->p, *first = c->m, *second = c->v;
    int n = c->n;

    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++) {
        float g = gradient[i] * factor, p = master[i] * decay;
        float m = first[i] + one_minus_beta1 * (g - first[i]);
        float v = second[i] * beta2 + one_minus_beta2 * g * g;

        first[i] = m;
        second[i] = v;
        master[i] = p - step * (m / (sqrtf(v) / sqrt_bias2 + eps));
    }
}

CPU_INLINE void update_floats(const struct update_call *a, const struct state_chunk *c, float decay)
{
    switch (a->op->kind) {
    case OP_LION:
        lion(a, c, decay);
        return;
    case OP_SGD:
        sgd(a, c, decay);
        return;
    case OP_CADAM:
        cadam(a, c, decay);
        return;
    default:
        adamw(a, c, decay);
    }
}

/* ---- blocks ---- */

/* The constant of the decay of a norm block: sgd's is in the gradient. */
static inline float decay_of(const struct update_call *a, int64_t block)
{
    const struct op_shape *op = a->op;
    const double *decays = op->in[OPTIMIZER_DECAY].data;
    double decay = decays ? decays[block] : op->attributes.weight_decay;

    return (float)(op->kind == OP_SGD ? decay : 1.0 - a->lr * decay);
}

CPU_INLINE void read_all(const struct update_call *a, struct state_chunk *c)
{
    const struct op_shape *op = a->op;

    c->g = read_chunk(&op->in[OPTIMIZER_GRADIENT], c, c->staged[0]);
    c->p = tensor_given(&op->in[OPTIMIZER_LOW])
               ? read_halves(&op->in[OPTIMIZER_MASTER], &op->in[OPTIMIZER_LOW], c, c->staged[1])
               : read_chunk(&op->in[OPTIMIZER_MASTER], c, c->staged[1]);
    c->m = read_state(a, OPTIMIZER_M, OPTIMIZER_M_SCALE, a->m_map, c, c->staged[2]);
    if (tensor_given(&op->in[OPTIMIZER_V]))
        c->v = read_state(a, OPTIMIZER_V, OPTIMIZER_V_SCALE, a->v_map, c, c->staged[3]);
}

#define STREAMED_BYTES ((int64_t)4 << 20) /* a weight larger than this leaves the caches anyway */

CPU_INLINE void write_weight(const struct update_call *a, const struct state_chunk *c)
{
    const struct tensor *weight = &a->op->out[OPTIMIZER_WEIGHT];
    uint16_t *words = (uint16_t *)weight->data + c->first;

    if (!is_bf16(weight))
        write_chunk(weight, c, c->p, NULL);
    else if (a->op->attributes.half_away)
        write_upper(weight, c, c->p);
    else if (a->codec->stream_bf16 && a->n * (int64_t)sizeof *words >= STREAMED_BYTES &&
             is_dense(weight) && c->n == OPS_STATE_BLOCK && (uintptr_t)words % 64 == 0)
        a->codec->stream_bf16(c->p, c->n, words);
    else
        write_chunk(weight, c, c->p, NULL);
}

/* noise: NULL where nothing is rounded stochastically. */
CPU_INLINE void write_all(const struct update_call *a, const struct state_chunk *c,
                          const struct noise *noise)
{
    const struct op_shape *op = a->op;

    if (tensor_given(&op->in[OPTIMIZER_LOW])) {
        write_upper(&op->in[OPTIMIZER_MASTER], c, c->p);
        write_lower(&op->in[OPTIMIZER_LOW], c, c->p);
    } else {
        write_chunk(&op->in[OPTIMIZER_MASTER], c, c->p, noise ? noise->master : NULL);
    }
    if (tensor_given(&op->out[OPTIMIZER_WEIGHT]))
        write_weight(a, c);
    write_state(a, OPTIMIZER_M, OPTIMIZER_M_SCALE, a->m_map, c, c->m, noise ? noise->m : NULL);
    if (tensor_given(&op->in[OPTIMIZER_V]))
        write_state(a, OPTIMIZER_V, OPTIMIZER_V_SCALE, a->v_map, c, c->v, noise ? noise->v : NULL);
}

CPU_INLINE void norm_block(const struct update_call *a, int64_t block)
{
    const struct op_shape *op = a->op;
    const double *places = op->in[OPTIMIZER_RNG_SITE].data;
    uint64_t place = places ? (uint64_t)places[block] : op->attributes.rng_site + (uint64_t)block;
    int64_t begin = block * OPS_NORM_BLOCK, end = min_i64(begin + OPS_NORM_BLOCK, a->n);
    bool is_rounded = is_bf16(&op->in[OPTIMIZER_M]);
    float decay = decay_of(a, block);
    struct state_chunk c;
    struct noise noise;

    for (c.first = begin; c.first < end; c.first += OPS_STATE_BLOCK) {
        c.n = (int)min_i64(OPS_STATE_BLOCK, end - c.first);
        read_all(a, &c);
        update_floats(a, &c, decay);
        if (is_rounded)
            a->codec->make_noise(&noise, a->key, a->high, ops_rounding_low(place, c.first - begin));
        write_all(a, &c, is_rounded ? &noise : NULL);
    }
}

CPU_INLINE void block_tile_body(void *context, int64_t tile)
{
    const struct update_call *a = context;
    int64_t n_blocks = ceil_div(a->n, OPS_NORM_BLOCK);
    int64_t end = min_i64((tile + 1) * BLOCKS_A_TILE, n_blocks);

    for (int64_t block = tile * BLOCKS_A_TILE; block < end; block++)
        norm_block(a, block);
}

CPU_TILES(block_tile);

/* ---- a call ---- */

static struct update_call update_call_of(const struct op_shape *op)
{
    const struct op_attributes *at = &op->attributes;
    const float *scalars = op->in[OPTIMIZER_SCALARS].data;
    const int32_t *part = op->in[OPTIMIZER_PART].data;
    double lr = scalars[SCALAR_LR];

    return (struct update_call){
        .op = op,
        .n = tensor_elements(&op->in[OPTIMIZER_GRADIENT]),
        .lr = lr,
        .lr32 = (float)lr,
        .factor = *(const float *)op->in[OPTIMIZER_CLIP_FACTOR].data,
        .one_minus_beta1 = (float)(1.0 - at->beta1),
        .one_minus_beta2 = (float)(1.0 - at->beta2),
        .beta1 = (float)at->beta1,
        .beta2 = (float)at->beta2,
        .step = (float)(lr / (double)scalars[SCALAR_BIAS1]),
        .sqrt_bias2 = (float)sqrt((double)scalars[SCALAR_BIAS2]),
        .eps = (float)at->eps,
        .key = rng_key(at->seed, RNG_ROUNDING),
        .high = ops_rounding_high((uint64_t)scalars[SCALAR_UPDATE], part ? (uint64_t)*part : 0),
    };
}

static void optimizer_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct update_call a = update_call_of(op);
    enum cpu_isa isa = cpu_of(kernels)->isa;
    struct code_map maps[2];

    (void)first;
    if (*(const int32_t *)op->in[OPTIMIZER_SKIP_UPDATE].data)
        return;
    a.codec = state_codec_of(cpu_of(kernels));
    if (op->in[OPTIMIZER_M].dtype == DTYPE_U8) {
        code_map_build(&maps[0], true, a.codec->has_keys);
        code_map_build(&maps[1], false, a.codec->has_keys);
        a.m_map = &maps[0];
        a.v_map = &maps[1];
    }
    pool_run(kernels->pool, ceil_div(ceil_div(a.n, OPS_NORM_BLOCK), BLOCKS_A_TILE), block_tile[isa],
             &a);
}

void cpu_register_optimizer(struct kernels_backend *table)
{
    table->entries[OP_ADAMW] = (struct kernel_entry){ .run = optimizer_run };
    table->entries[OP_LION] = (struct kernel_entry){ .run = optimizer_run };
    table->entries[OP_SGD] = (struct kernel_entry){ .run = optimizer_run };
    table->entries[OP_CADAM] = (struct kernel_entry){ .run = optimizer_run };
}
