/*
 * optimizer_blocks.c - Lion, SGD, Cadam, and AdamW on states with scales, block by block
 *
 * A tile is some norm blocks, and is taken OPS_STATE_BLOCK elements at a time, which stay in the
 * first cache: they are read into floats, updated, and written as the operands have them. So each
 * optimizer is one short loop over floats, whatever its states are kept as, and a scale is of
 * elements that one thread has. Bound by memory but for the codes of 8-bit states, which are looked
 * up. The order of IEEE operations is the contract with other backends; constants as in
 * optimizer.c, all float, no operation fused:
 *
 *   an element:  g = gradient * factor
 *   lion:        p = master * decay, u = m * beta1 + one_minus_beta1 * g,
 *                m = m * beta2 + one_minus_beta2 * g, p = p - (lr with u's sign, or 0)
 *   sgd:         p = master, g = g + weight_decay * p, m = beta1 * m + g,
 *                p = p - lr * (nesterov ? g + beta1 * m : m)
 *   cadam:       p = master * decay, m = m * beta1 + one_minus_beta1 * g,
 *                p = p - (lr with m's sign, or 0)
 *   adamw:       as in optimizer.c
 *   a block:     top = the largest |m|
 *   fp16:        scale = top / OPS_FP16_FULL + eps, x = m * (1 / scale), within OPS_FP16_FULL;
 *                read as x * scale
 *   u8:          scale = top, the code is of |m| / top (0 where top is 0); read as value * scale
 */
#include "kernels/cpu/optimizer_impl.h"

#include <math.h>

#include "ops/state_codes.h"

#define BLOCKS_A_TILE 4 /* norm blocks */

/* The exponent and 7 bits of the mantissa of a number from 0 to 1: at most one edge between two
 * values has it, and those below CODE_KEYS_FROM are below all edges. */
#define CODE_KEY_SHIFT 16
enum { CODE_KEYS_FROM = 13300, CODE_KEYS = 0x3f80 - CODE_KEYS_FROM + 1 };

struct code_map {
    float values[STATE_CODES_UNSIGNED]; /* by code */
    float
        edges[STATE_CODES_UNSIGNED]; /* of a magnitude: above it is the next; the last: infinite */
    int32_t below[CODE_KEYS];        /* edges of lower keys */
    int n;                           /* values that are not negative */
};

struct block_update {
    struct update_call call;
    const struct code_map *m_map, *v_map; /* of u8 states, else NULL */
    int64_t n;                            /* elements */
    float lr;
};

struct state_chunk {
    float g[OPS_STATE_BLOCK], p[OPS_STATE_BLOCK], m[OPS_STATE_BLOCK], v[OPS_STATE_BLOCK];
    int64_t first; /* element of the operands */
    int n;
};

/* ---- codes ---- */

static void build_map(struct code_map *map, const float *values, int n)
{
    int below = 0;

    map->n = n;
    for (int k = 0; k < STATE_CODES_UNSIGNED; k++)
        map->values[k] = k < n ? values[k] : -values[STATE_CODES_UNSIGNED - k];
    for (int k = 0; k < n; k++)
        map->edges[k] = k + 1 < n ? STATE_CODES_EDGE(values[k], values[k + 1]) : INFINITY;
    for (int key = 0; key < CODE_KEYS; key++) {
        uint32_t bits = (uint32_t)(key + CODE_KEYS_FROM) << CODE_KEY_SHIFT;
        float least;

        memcpy(&least, &bits, sizeof least);
        while (map->edges[below] < least)
            below++;
        map->below[key] = below;
    }
}

/* The number of the value that is nearest to a magnitude; NaN is as 1. */
CPU_INLINE int32_t nearest_value(const struct code_map *map, float x)
{
    float within = x <= 1.0f ? x : 1.0f;
    uint32_t bits;

    memcpy(&bits, &within, sizeof bits);
    int32_t key = (int32_t)(bits >> CODE_KEY_SHIFT) - CODE_KEYS_FROM;
    int32_t k = map->below[key > 0 ? key : 0];
    return k + (within > map->edges[k]);
}

/* ---- operands as floats ---- */

/* How many of n elements from one on lie side by side, and where (in elements) they do. */
static inline int64_t side_by_side(const struct tensor *t, int64_t first, int64_t n, int64_t *at)
{
    int64_t row = first / t->cols, col = first % t->cols;

    *at = row * t->stride + col;
    return t->stride == t->cols ? n : min_i64(n, t->cols - col);
}

CPU_INLINE void read_floats(const struct tensor *t, int64_t at, int64_t n, float *to)
{
    const uint16_t *words = (const uint16_t *)t->data + at;

    if (t->dtype == DTYPE_F32)
        memcpy(to, (const float *)t->data + at, (size_t)n * sizeof *to);
    else if (t->dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = vec_from_bf16(words[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = vec_from_fp16(words[i]);
}

CPU_INLINE void read_chunk(const struct tensor *t, const struct state_chunk *c, float *to)
{
    int64_t at, n;

    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        read_floats(t, at, n, to + i);
    }
}

CPU_INLINE void read_codes(const struct tensor *t, const struct state_chunk *c,
                           const struct code_map *map, float *to)
{
    int64_t at, n;

    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        const uint8_t *codes = (const uint8_t *)t->data + at;
        INDEPENDENT_TURNS
        for (int64_t e = 0; e < n; e++)
            to[i + e] = map->values[codes[e]];
    }
}

CPU_INLINE void read_state(const struct tensor *t, const struct tensor *scales,
                           const struct code_map *map, const struct state_chunk *c, float *to)
{
    if (map)
        read_codes(t, c, map, to);
    else
        read_chunk(t, c, to);
    if (!tensor_given(scales))
        return;
    float scale = ((const float *)scales->data)[c->first / OPS_STATE_BLOCK];
    for (int i = 0; i < c->n; i++)
        to[i] *= scale;
}

CPU_INLINE void read_master(const struct op_shape *op, struct state_chunk *c)
{
    const struct tensor *upper = &op->in[OPTIMIZER_MASTER], *lower = &op->in[OPTIMIZER_LOW];
    int64_t at, below, n;

    if (!tensor_given(lower)) {
        read_chunk(upper, c, c->p);
        return;
    }
    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(upper, c->first + i, c->n - i, &at);
        n = side_by_side(lower, c->first + i, n, &below);
        for (int64_t e = 0; e < n; e++)
            c->p[i + e] = halves_join(((const uint16_t *)upper->data)[at + e],
                                      ((const uint16_t *)lower->data)[below + e]);
    }
}

/* ---- and back ---- */

/* bits: for each element those by which it is rounded to bf16; NULL: to nearest. */
CPU_INLINE void write_floats(const struct tensor *t, int64_t at, int64_t n, const float *from,
                             const uint32_t *bits)
{
    uint16_t *words = (uint16_t *)t->data + at;

    if (t->dtype == DTYPE_F32)
        memcpy((float *)t->data + at, from, (size_t)n * sizeof *from);
    else if (t->dtype == DTYPE_F16)
        for (int64_t i = 0; i < n; i++)
            words[i] = vec_to_fp16(from[i]);
    else if (bits)
        for (int64_t i = 0; i < n; i++)
            words[i] = round_by(from[i], bits[i]);
    else
        for (int64_t i = 0; i < n; i++)
            words[i] = vec_to_bf16(from[i]);
}

CPU_INLINE void write_chunk(const struct tensor *t, const struct state_chunk *c, const float *from,
                            const uint32_t *bits)
{
    int64_t at, n;

    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        write_floats(t, at, n, from + i, bits ? bits + i : NULL);
    }
}

CPU_INLINE void write_halves(const struct op_shape *op, const struct state_chunk *c)
{
    const struct tensor *upper = &op->in[OPTIMIZER_MASTER], *lower = &op->in[OPTIMIZER_LOW];
    int64_t at, below, n;

    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(upper, c->first + i, c->n - i, &at);
        n = side_by_side(lower, c->first + i, n, &below);
        for (int64_t e = 0; e < n; e++) {
            ((uint16_t *)upper->data)[at + e] = halves_upper(c->p[i + e]);
            ((uint16_t *)lower->data)[below + e] = halves_lower(c->p[i + e]);
        }
    }
}

CPU_INLINE void write_weight(const struct op_shape *op, const struct state_chunk *c)
{
    const struct tensor *weight = &op->out[OPTIMIZER_WEIGHT];
    int64_t at, n;

    if (!op->attributes.half_away || !is_bf16(weight)) {
        write_chunk(weight, c, c->p, NULL);
        return;
    }
    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(weight, c->first + i, c->n - i, &at);
        for (int64_t e = 0; e < n; e++)
            ((uint16_t *)weight->data)[at + e] = halves_upper(c->p[i + e]);
    }
}

CPU_INLINE float largest(const float *x, int n)
{
    float lanes[SUM_LANES] = { 0 };
    int i = 0;

    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] = fabsf(x[i + l]) > lanes[l] ? fabsf(x[i + l]) : lanes[l];
    for (; i < n; i++)
        lanes[0] = fabsf(x[i]) > lanes[0] ? fabsf(x[i]) : lanes[0];
    for (int l = 1; l < SUM_LANES; l++)
        lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
    return lanes[0];
}

/* In place of x, what fp16 then holds. Returns the scale. */
CPU_INLINE float scale_fp16(float *x, int n, float eps)
{
    float scale = largest(x, n) / OPS_FP16_FULL + eps, inverse = 1.0f / scale;

    for (int i = 0; i < n; i++) {
        float scaled = x[i] * inverse;

        scaled = scaled > OPS_FP16_FULL ? OPS_FP16_FULL : scaled;
        x[i] = scaled < -OPS_FP16_FULL ? -OPS_FP16_FULL : scaled;
    }
    return scale;
}

/* Of numbers with a sign; divisor: of their magnitudes. */
CPU_INLINE void signed_codes(const struct code_map *map, const float *x, int n, float divisor,
                             int32_t *codes)
{
    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++) {
        int32_t k = nearest_value(map, fabsf(x[i]) / divisor);

        codes[i] = x[i] >= 0 ? k : k < STATE_CODES_SIGNED - 1 ? -k : 2 - STATE_CODES_SIGNED;
    }
}

CPU_INLINE void unsigned_codes(const struct code_map *map, const float *x, int n, float divisor,
                               int32_t *codes)
{
    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++) {
        int32_t k = nearest_value(map, x[i] / divisor);

        codes[i] = k + ((k == 0) & (x[i] > 0));
    }
}

/* Returns the scale. */
CPU_INLINE float write_codes(const struct tensor *t, const struct state_chunk *c,
                             const struct code_map *map, const float *x)
{
    float top = largest(x, c->n), divisor = top > 0 ? top : 1.0f;
    int32_t codes[OPS_STATE_BLOCK];
    int64_t at, n;

    if (map->n == STATE_CODES_SIGNED)
        signed_codes(map, x, c->n, divisor, codes);
    else
        unsigned_codes(map, x, c->n, divisor, codes);
    for (int64_t i = 0; i < c->n; i += n) {
        n = side_by_side(t, c->first + i, c->n - i, &at);
        for (int64_t e = 0; e < n; e++)
            ((uint8_t *)t->data)[at + e] = (uint8_t)codes[i + e];
    }
    return top;
}

CPU_INLINE void write_state(const struct block_update *b, const struct tensor *t,
                            const struct tensor *scales, const struct code_map *map,
                            const struct state_chunk *c, float *x, const uint32_t *bits)
{
    float *scale = tensor_given(scales) ? (float *)scales->data + c->first / OPS_STATE_BLOCK : NULL;

    if (map) {
        *scale = write_codes(t, c, map, x);
        return;
    }
    if (scale)
        *scale = scale_fp16(x, c->n, b->call.eps);
    write_chunk(t, c, x, bits);
}

/* ---- the optimizers ---- */

/* lr with x's sign; 0 where x is 0. */
CPU_INLINE float signed_step(float x, float lr)
{
    return x > 0 ? lr : x < 0 ? -lr : 0;
}

CPU_INLINE void lion(const struct block_update *b, struct state_chunk *c, float decay)
{
    float factor = b->call.factor, lr = b->lr, beta1 = b->call.beta1, beta2 = b->call.beta2;
    float one_minus_beta1 = b->call.one_minus_beta1, one_minus_beta2 = b->call.one_minus_beta2;

    for (int i = 0; i < c->n; i++) {
        float g = c->g[i] * factor, p = c->p[i] * decay, m = c->m[i];
        float u = m * beta1 + one_minus_beta1 * g;

        c->m[i] = m * beta2 + one_minus_beta2 * g;
        c->p[i] = p - signed_step(u, lr);
    }
}

CPU_INLINE void sgd(const struct block_update *b, struct state_chunk *c, float weight_decay)
{
    float factor = b->call.factor, lr = b->lr, beta1 = b->call.beta1;
    bool nesterov = b->call.op->attributes.nesterov;

    for (int i = 0; i < c->n; i++) {
        float p = c->p[i], g = c->g[i] * factor + weight_decay * p;
        float m = beta1 * c->m[i] + g;

        c->m[i] = m;
        c->p[i] = p - lr * (nesterov ? g + beta1 * m : m);
    }
}

CPU_INLINE void cadam(const struct block_update *b, struct state_chunk *c, float decay)
{
    float factor = b->call.factor, lr = b->lr, beta1 = b->call.beta1;
    float one_minus_beta1 = b->call.one_minus_beta1;

    for (int i = 0; i < c->n; i++) {
        float g = c->g[i] * factor, p = c->p[i] * decay;
        float m = c->m[i] * beta1 + one_minus_beta1 * g;

        c->m[i] = m;
        c->p[i] = p - signed_step(m, lr);
    }
}

CPU_INLINE void adamw(const struct block_update *b, struct state_chunk *c, float decay)
{
    const struct update_call *a = &b->call;
    float factor = a->factor, one_minus_beta1 = a->one_minus_beta1, beta2 = a->beta2;
    float one_minus_beta2 = a->one_minus_beta2, step = a->step, sqrt_bias2 = a->sqrt_bias2;
    float eps = a->eps;

    for (int i = 0; i < c->n; i++) {
        float g = c->g[i] * factor, p = c->p[i] * decay;
        float mean = c->m[i] + one_minus_beta1 * (g - c->m[i]);
        float square = c->v[i] * beta2 + one_minus_beta2 * g * g;

        c->m[i] = mean;
        c->v[i] = square;
        c->p[i] = p - step * (mean / (sqrtf(square) / sqrt_bias2 + eps));
    }
}

/* ---- blocks ---- */

/* The constant of the decay of a norm block: sgd's is in the gradient. */
static inline float decay_of(const struct block_update *b, int64_t block)
{
    const struct op_shape *op = b->call.op;
    const double *decays = op->in[OPTIMIZER_DECAY].data;
    double decay = decays ? decays[block] : op->attributes.weight_decay;

    return (float)(op->kind == OP_SGD ? decay : 1.0 - b->call.lr * decay);
}

CPU_INLINE void update_floats(const struct block_update *b, struct state_chunk *c, float decay)
{
    switch (b->call.op->kind) {
    case OP_LION:
        lion(b, c, decay);
        return;
    case OP_SGD:
        sgd(b, c, decay);
        return;
    case OP_CADAM:
        cadam(b, c, decay);
        return;
    default:
        adamw(b, c, decay);
    }
}

CPU_INLINE void write_all(const struct block_update *b, struct state_chunk *c, uint64_t place)
{
    const struct op_shape *op = b->call.op;
    struct noise noise[OPS_STATE_BLOCK / NOISE_ELEMENTS];
    uint32_t bits[2][OPS_STATE_BLOCK];
    bool is_rounded = op->in[OPTIMIZER_M].dtype == DTYPE_BF16;

    for (int k = 0; k < OPS_STATE_BLOCK / NOISE_ELEMENTS && is_rounded; k++) {
        make_noise(&noise[k], b->call.key, b->call.high,
                   ops_rounding_low(place, c->first % OPS_NORM_BLOCK + k * NOISE_ELEMENTS));
        memcpy(&bits[0][k * NOISE_ELEMENTS], noise[k].master, sizeof noise[k].master);
        memcpy(&bits[1][k * NOISE_ELEMENTS], noise[k].m, sizeof noise[k].m);
    }
    if (tensor_given(&op->in[OPTIMIZER_LOW]))
        write_halves(op, c);
    else
        write_chunk(&op->in[OPTIMIZER_MASTER], c, c->p, is_rounded ? bits[0] : NULL);
    if (tensor_given(&op->out[OPTIMIZER_WEIGHT]))
        write_weight(op, c);
    write_state(b, &op->in[OPTIMIZER_M], &op->in[OPTIMIZER_M_SCALE], b->m_map, c, c->m,
                is_rounded ? bits[1] : NULL);
    if (tensor_given(&op->in[OPTIMIZER_V]))
        write_state(b, &op->in[OPTIMIZER_V], &op->in[OPTIMIZER_V_SCALE], b->v_map, c, c->v, NULL);
}

CPU_INLINE void norm_block(const struct block_update *b, int64_t block)
{
    const struct op_shape *op = b->call.op;
    const double *places = op->in[OPTIMIZER_RNG_SITE].data;
    uint64_t place = places ? (uint64_t)places[block] : op->attributes.rng_site + (uint64_t)block;
    int64_t end = min_i64((block + 1) * OPS_NORM_BLOCK, b->n);
    float decay = decay_of(b, block);
    struct state_chunk c;

    for (c.first = block * OPS_NORM_BLOCK; c.first < end; c.first += OPS_STATE_BLOCK) {
        c.n = (int)min_i64(OPS_STATE_BLOCK, end - c.first);
        read_chunk(&op->in[OPTIMIZER_GRADIENT], &c, c.g);
        read_master(op, &c);
        read_state(&op->in[OPTIMIZER_M], &op->in[OPTIMIZER_M_SCALE], b->m_map, &c, c.m);
        if (tensor_given(&op->in[OPTIMIZER_V]))
            read_state(&op->in[OPTIMIZER_V], &op->in[OPTIMIZER_V_SCALE], b->v_map, &c, c.v);
        update_floats(b, &c, decay);
        write_all(b, &c, place);
    }
}

CPU_INLINE void block_tile_body(void *context, int64_t tile)
{
    const struct block_update *b = context;
    int64_t n_blocks = ceil_div(b->n, OPS_NORM_BLOCK);
    int64_t end = min_i64((tile + 1) * BLOCKS_A_TILE, n_blocks);

    for (int64_t block = tile * BLOCKS_A_TILE; block < end; block++)
        norm_block(b, block);
}

CPU_TILES(block_tile);

void update_by_blocks(struct kernels *kernels, const struct op_shape *op)
{
    static const float signed_values[] = {
#include "ops/state_codes_signed.inc"
    };
    static const float unsigned_values[] = {
#include "ops/state_codes_unsigned.inc"
    };
    struct block_update b = { .call = update_call_of(op),
                              .n = tensor_elements(&op->in[OPTIMIZER_GRADIENT]) };
    struct code_map maps[2];

    b.lr = (float)b.call.lr;
    if (op->in[OPTIMIZER_M].dtype == DTYPE_U8) {
        build_map(&maps[0], signed_values, STATE_CODES_SIGNED);
        build_map(&maps[1], unsigned_values, STATE_CODES_UNSIGNED);
        b.m_map = &maps[0];
        b.v_map = &maps[1];
    }
    pool_run(kernels->pool, ceil_div(ceil_div(b.n, OPS_NORM_BLOCK), BLOCKS_A_TILE),
             block_tile[cpu_of(kernels)->isa], &b);
}
