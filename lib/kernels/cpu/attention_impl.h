/*
 * attention_impl.h - tiles of attention: fp32 blocks of rows in per-thread scratch, and their
 * products
 *
 * A tile has BLOCK rows of `width` floats: the wider head's, of keys or of values, rounded up to
 * WIDTH_STEP. Rows and columns beyond what exists are zero, so that products know no edges.
 */
#ifndef KERNELS_CPU_ATTENTION_IMPL_H
#define KERNELS_CPU_ATTENTION_IMPL_H

#include <math.h>

#include "kernels/cpu/dropout_impl.h"
#include "kernels/cpu/rows_impl.h"

/* The parts of cpu_register_attention that live in other files. */
void cpu_register_attention_grad(struct kernels_backend *table);
void cpu_register_attention_cached(struct kernels_backend *table);
void cpu_register_attention_end(struct kernels_backend *table);

#define BLOCK 64 /* queries, and keys, of a tile */
#define WIDTH_STEP 16
_Static_assert(BLOCK == OPS_KEY_TILE, "keys of windows begin with a tile");

/* values: the op's, whose heads may be wider or narrower than those of keys. */
static inline int64_t tile_width(const struct op_shape *op, const struct tensor *values)
{
    return round_up(max_int(op->attributes.head_dim, ops_value_dim(op, values)), WIDTH_STEP);
}

/* A rectangle of a row-major operand: one head's columns of some rows. */
struct head_columns {
    const struct tensor *tensor;
    int64_t row, col;
    int64_t n_rows, n_cols; /* n_rows <= BLOCK */
};

CPU_INLINE void load_rows_as(float *tile, int64_t width, const struct head_columns *p, float scale,
                             enum dtype act)
{
    for (int64_t r = 0; r < p->n_rows; r++) {
        const void *row = cpu_row(p->tensor, p->row + r);

        INDEPENDENT_TURNS
        for (int64_t i = 0; i < p->n_cols; i++)
            tile[r * width + i] = act_get(row, p->col + i, act) * scale;
        for (int64_t i = p->n_cols; i < width; i++)
            tile[r * width + i] = 0;
    }
}

/* The tile's first rows. */
CPU_INLINE void load_rows(float *tile, int64_t width, const struct head_columns *p, float scale)
{
    WITH_ACT(p->tensor->dtype, load_rows_as(tile, width, p, scale, act));
}

CPU_INLINE void load_tile(float *tile, int64_t width, const struct head_columns *p, float scale)
{
    load_rows(tile, width, p, scale);
    memset(tile + p->n_rows * width, 0, (size_t)((BLOCK - p->n_rows) * width) * sizeof *tile);
}

CPU_INLINE void store_tile_as(const struct head_columns *p, const float *tile, int64_t width,
                              float scale, enum dtype act)
{
    for (int64_t r = 0; r < p->n_rows; r++) {
        void *row = cpu_row(p->tensor, p->row + r);

        for (int64_t i = 0; i < p->n_cols; i++)
            act_put(row, p->col + i, tile[r * width + i] * scale, act);
    }
}

CPU_INLINE void store_tile(const struct head_columns *p, const float *tile, int64_t width,
                           float scale)
{
    WITH_ACT(p->tensor->dtype, store_tile_as(p, tile, width, scale, act));
}

/*
 * c = a b, or c += a b, with BLOCK rows of c and n columns. a's element (i, k) is at a + i * a_row
 * + k * a_col, so a may be read transposed. k is a multiple of 4, n of 16. Each element of c is one
 * chain of fused adds in increasing k, the same for every instruction set.
 *
 * On the diagonal, where k and n are BLOCK too or the other operand's width, what is zero or not
 * wanted is left out in steps of PRODUCT_ROWS rows.
 *
 * Where activations are bf16 and the CPU multiplies pairs of such, operands are rounded to bf16 and
 * k goes by pairs (attention_product_avx512bf16.c): that is another numerics.
 */
#define PRODUCT_ROWS 4

enum product_part {
    PART_ALL,
    PART_C_LOWER, /* of c only columns up to the row's number are wanted */
    PART_A_LOWER, /* a(i, k) is zero for k > i */
    PART_A_UPPER, /* a(i, k) is zero for k < i */
};

struct tile_product {
    float *c;
    const float *a, *b;
    int64_t c_stride, a_row, a_col, b_stride;
    int64_t n, k;
    int64_t n_rows; /* of c that are wanted; 0: BLOCK */
    int add;
    enum product_part part;
};

static inline int64_t product_rows(const struct tile_product *p)
{
    return p->n_rows ? p->n_rows : BLOCK;
}

/* What to do of rows i .. i + PRODUCT_ROWS - 1. */
struct product_range {
    int64_t n, k_start, k_end;
};

CPU_INLINE struct product_range product_range_of(const struct tile_product *p, int64_t i)
{
    struct product_range e = { .n = p->n, .k_end = p->k };

    if (p->part == PART_C_LOWER)
        e.n = min_i64(p->n, round_up(i + PRODUCT_ROWS, WIDTH_STEP));
    if (p->part == PART_A_LOWER)
        e.k_end = min_i64(p->k, i + PRODUCT_ROWS);
    if (p->part == PART_A_UPPER)
        e.k_start = i;
    return e;
}

/* What each instruction set does in its own way. */
struct tile_code {
    void (*product)(const struct tile_product *p);
    /* [BLOCK x width] to [width x BLOCK] */
    void (*transpose)(float *out, const float *tile, int64_t width);
};

/* Rows of n floats, for AddressSanitizer. */
static inline void tile_check(const float *rows, int64_t stride, int64_t n_rows, int64_t n)
{
    for (int64_t i = 0; i < n_rows; i++)
        cpu_check_range(rows + i * stride, n * (int64_t)sizeof *rows);
}

/* code->product and code->transpose, some of which are compiled without sanitizers. */
static inline void tile_product(const struct tile_code *code, const struct tile_product *p)
{
#if defined(__SANITIZE_ADDRESS__)
    int64_t n_rows = round_up(product_rows(p), PRODUCT_ROWS);

    tile_check(p->c, p->c_stride, n_rows, p->n);
    tile_check(p->b, p->b_stride, p->k, p->n);
    if (p->a_col == 1)
        tile_check(p->a, p->a_row, n_rows, p->k);
    else
        tile_check(p->a, p->a_col, p->k, n_rows);
#endif
    code->product(p);
}

static inline void tile_transpose(const struct tile_code *code, float *out, const float *tile,
                                  int64_t width)
{
    tile_check(tile, width, BLOCK, width);
    tile_check(out, BLOCK, width, BLOCK);
    code->transpose(out, tile, width);
}

/* act: of the op's activations. */
const struct tile_code *attention_tile_code(const struct cpu_kernels *cpu, enum dtype act);

/* Entered only where the CPU has AVX-512, and its bf16. */
void attention_product_avx512(const struct tile_product *p);
void attention_product_avx512bf16(const struct tile_product *p);
void attention_transpose_avx512(float *out, const float *tile, int64_t width);

/*
 * What each query of a block sees: keys from first[r] to own[r], its own position; none where
 * own[r] is negative. The block as a whole sees keys in [least, last], all of its queries those in
 * [most, fewest].
 */
struct sight {
    int64_t first[BLOCK], own[BLOCK];
    int64_t least, most, fewest, last;
};

static inline void sight_init(struct sight *s)
{
    s->least = s->fewest = INT64_MAX;
    s->most = s->last = -1;
}

/* Row r of the block sees keys first .. own, as far as the window allows. */
static inline void sight_add(struct sight *s, const struct op_attributes *a, int64_t r,
                             int64_t first, int64_t own)
{
    if (a->window)
        first = max_i64(first, own - a->window + 1);
    if (first > own)
        own = -1;
    s->first[r] = first;
    s->own[r] = own;
    s->fewest = min_i64(s->fewest, own);
    s->last = max_i64(s->last, own);
    if (own < 0)
        return;
    s->least = min_i64(s->least, first / BLOCK * BLOCK);
    s->most = max_i64(s->most, first);
}

/*
 * ranges: number of op's input `first`, behind which `last` is. query: the block's first, within
 * the sequence.
 */
static inline void sight_of(struct sight *s, const struct op_shape *op, int ranges,
                            int64_t sequence, int64_t query)
{
    const struct tensor *first = &op->in[ranges], *last = &op->in[ranges + 1];
    int64_t seq_len = op->attributes.seq_len, n = min_i64(BLOCK, seq_len - query);
    int64_t row = sequence * seq_len + query;

    sight_init(s);
    for (int64_t r = 0; r < n; r++)
        sight_add(s, &op->attributes, r,
                  tensor_given(first) ? *(const int32_t *)cpu_row(first, row + r) : 0,
                  tensor_given(last) ? *(const int32_t *)cpu_row(last, row + r) : query + r);
}

/* Number of a head among all ranks'. head_offset: number of that input. */
static inline int head_number(const struct op_shape *op, int head_offset, int head)
{
    const struct tensor *first = &op->in[head_offset];

    return tensor_given(first) ? head + *(const int32_t *)first->data : head;
}

static inline float slope_of(const struct op_shape *op, int begin, int head)
{
    int n_heads = op->attributes.alibi;

    return n_heads ? (float)ops_alibi_slope(head_number(op, begin, head), n_heads) : 0.0f;
}

/* Whether query r sees one of keys key .. key + BLOCK - 1. */
CPU_INLINE int sees_block(const struct sight *s, int64_t r, int64_t key)
{
    return s->first[r] < key + BLOCK && s->own[r] >= key;
}

/* Its scaled scores of these get the slope's bias, and -infinity where they are before its
 * first. */
CPU_INLINE void score_row(float *scores, float slope, const struct sight *s, int64_t r, int64_t key)
{
    int64_t n_hidden = min_i64(BLOCK, s->first[r] - key);

    if (slope > 0)
        for (int j = 0; j < BLOCK; j++)
            scores[j] = __builtin_fmaf(slope, (float)(int)(key - s->own[r] + j), scores[j]);
    for (int64_t j = 0; j < n_hidden; j++)
        scores[j] = -INFINITY;
}

/* One row of scores becomes probabilities up to a factor; the row's maximum, sum and output follow.
 */
CPU_INLINE void softmax_row(float *scores, int64_t n_valid, float *max, float *sum, float *out,
                            int64_t width)
{
    float lanes[SUM_LANES], top = *max, rescale;

    for (int l = 0; l < SUM_LANES; l++)
        lanes[l] = -INFINITY;
    for (int j = 0; j < BLOCK; j++)
        scores[j] = j < n_valid ? scores[j] : -INFINITY;
    for (int j = 0; j < BLOCK; j += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] = lanes[l] > scores[j + l] ? lanes[l] : scores[j + l];
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] = lanes[l] > lanes[l + half] ? lanes[l] : lanes[l + half];
    top = top > lanes[0] ? top : lanes[0];
    for (int j = 0; j < BLOCK; j++)
        scores[j] = vec_exp(scores[j] - top);
    for (int l = 0; l < SUM_LANES; l++)
        lanes[l] = 0;
    for (int j = 0; j < BLOCK; j += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] += scores[j + l];
    rescale = vec_exp(*max - top);
    *sum = __builtin_fmaf(*sum, rescale, sum_lanes(lanes));
    *max = top;
    for (int64_t i = 0; i < width; i++)
        out[i] *= rescale;
}

/* Where dropout of one head's probabilities draws its numbers. */
struct mask {
    struct dropout_series series; /* p 0: nothing is dropped */
    int head;                     /* its number among all ranks' heads */
};

/* sample: this op's input number, that of head_offset being the next. head: of those that are
 * here. */
static inline struct mask mask_of(const struct op_shape *op, int sample, int64_t sequence, int head)
{
    const struct op_attributes *a = &op->attributes;
    struct mask mask = { .series = { .seed = a->seed, .p = (float)a->p }, .head = head };

    mask.series.scale = (float)(1.0 / (1.0 - a->p));
    if (a->p > 0) {
        mask.series.place_high =
            dropout_place_high(a->rng_site, *(const int64_t *)cpu_row(&op->in[sample], sequence));
        mask.head = head_number(op, sample + 1, head);
    }
    return mask;
}

/* 0 or scale for keys key .. key + BLOCK - 1 of a query; key is a multiple of 4. */
CPU_INLINE void mask_row(float *row, const struct mask *mask, int64_t query, int64_t key)
{
    for (int j = 0; j < BLOCK; j += DROPOUT_ELEMENTS)
        dropout_factors(row + j, &mask->series,
                        dropout_attention_place_low(mask->head, query, (key + j) / 4));
}

#endif
