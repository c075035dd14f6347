/*
 * row_codec.c - rows of activations in fewer bytes, and back
 *
 * ops/row_codec.h says what codes stand for. One thread chooses rows to travel in full; a task
 * is then a row. Bound by memory. The order of IEEE operations is the contract with other
 * backends: squares are added in double, in SUM_LANES lanes, and these as a tree;
 *
 *   rms = sqrt(squares / columns), s = max / rms, t = max * break(s), inner = t / levels,
 *   outer = (max - t) / levels, level = floor(size * (1 / inner)), or floor((size - t) * (1 / outer)),
 *   at most levels - 1, decoded = (level + 1/2) * inner, or t + (level + 1/2) * outer
 */
#include "ops/row_codec.h"

#include "kernels/cpu/rows_impl.h"
#include "kernels/cpu/vec_math.h"

#include <math.h>
#include <stdlib.h>

static const float row_breaks[ROW_BREAKS] = { ROW_BREAK_VALUES };

CPU_INLINE uint32_t size_bits(float x)
{
    return vec_to_bits(x) & 0x7fffffffu;
}

/* t / max where max is s times the root mean square: at least 1 times. */
CPU_INLINE float row_break(float s)
{
    float at = s - 1 < ROW_BREAKS - 1 ? s - 1 : ROW_BREAKS - 1;
    int i = at > 0 ? (int)at : 0;
    float low = row_breaks[i], high = row_breaks[i + 1 < ROW_BREAKS ? i + 1 : i];

    return low + (at > 0 ? at - (float)i : 0) * (high - low);
}

static struct row_codes codes_of(const struct op_shape *op, const struct tensor *x, int64_t n_parts)
{
    return ops_row_codes(op->attributes.ratio, op->attributes.bits, x->rows / n_parts, x->cols,
                         dtype_bytes(x->dtype));
}

/* ---- which rows travel in full ---- */

struct ranked_row {
    uint32_t
        score; /* bits: of numbers that are not negative they are in order; NaN is the largest */
    int32_t row;
};

static int higher_first(const void *a, const void *b)
{
    const struct ranked_row *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->row - y->row;
}

static int by_row(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/*
 * The numbers of rows in full, ascending, to the codes; and place[row]: its place among those in
 * full, or -1 - its place among the others.
 */
static void choose_rows(const struct row_codes *c, const struct tensor *scores, int64_t first,
                        int32_t *full, struct ranked_row *ranked, int32_t *place)
{
    int32_t n_full = 0, n_other = 0;

    for (int64_t i = 0; i < c->n_rows; i++)
        ranked[i] = (struct ranked_row){ size_bits(*float_row(scores, first + i)), (int32_t)i };
    qsort(ranked, (size_t)c->n_rows, sizeof *ranked, higher_first);
    for (int64_t i = 0; i < c->n_full; i++)
        full[i] = ranked[i].row;
    qsort(full, (size_t)c->n_full, sizeof *full, by_row);
    for (int32_t i = 0; i < c->n_rows; i++)
        place[i] = n_full < c->n_full && full[n_full] == i ? n_full++ : -1 - n_other++;
}

/* ---- one row ---- */

#define ROW_PIECE 256 /* elements at a time in fp32 */

/* What both sides compute of a row's two scales. */
struct row_grid {
    float t, inner, outer;
    int n_levels;
};

CPU_INLINE struct row_grid grid_of(const float scales[2], int bits)
{
    int n = row_code_levels(bits);

    return (struct row_grid){ scales[0], scales[0] / (float)n, (scales[1] - scales[0]) / (float)n,
                              n };
}

/* Elements from `at` on, n of them. */
CPU_INLINE void load_piece(const void *row, int64_t at, int64_t n, float *x, enum dtype act)
{
    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++)
        x[i] = act_get(row, at + i, act);
}

/* t and max, NaN where an element is not finite. */
CPU_INLINE void row_scales(const void *row, int64_t n, float scales[2], enum dtype act)
{
    double lanes[SUM_LANES] = { 0 };
    uint32_t most[SUM_LANES] = { 0 };
    float x[ROW_PIECE], max;

    for (int64_t at = 0; at < n; at += ROW_PIECE) {
        int64_t end = min_i64(ROW_PIECE, n - at), filled = round_up(end, SUM_LANES);

        load_piece(row, at, end, x, act);
        for (int64_t i = end; i < filled; i++)
            x[i] = 0;
        for (int64_t i = 0; i < filled; i += SUM_LANES)
            for (int l = 0; l < SUM_LANES; l++) {
                uint32_t size = size_bits(x[i + l]);

                most[l] = size > most[l] ? size : most[l];
                lanes[l] += (double)x[i + l] * (double)x[i + l];
            }
    }
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) {
            lanes[l] += lanes[l + half];
            most[l] = most[l] > most[l + half] ? most[l] : most[l + half];
        }
    memcpy(&max, most, sizeof max);
    float rms = (float)sqrt(lanes[0] / (double)n);
    if (most[0] >= 0x7f800000u)
        max = NAN;
    scales[0] = most[0] ? max * row_break(max / rms) : 0;
    scales[1] = max;
}

/* Codes of n elements, a byte each. Choices are by masks of bits: gcc does not vectorize those of
 * floats that may trap. */
CPU_INLINE void codes_of_piece(const float *x, int64_t n, const struct row_grid *g, uint8_t *codes)
{
    int last = g->n_levels - 1;
    uint32_t t = vec_to_bits(g->t);
    uint32_t per_inner = vec_to_bits(g->inner > 0 ? 1.0f / g->inner : 0);
    uint32_t per_outer = vec_to_bits(g->outer > 0 ? 1.0f / g->outer : 0);

    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = vec_to_bits(x[i]) & 0x7fffffffu;
        uint32_t is_outer = (uint32_t) - (int32_t)(size > t);
        float begin = vec_from_bits(t & is_outer);
        float per = vec_from_bits((per_outer & is_outer) | (per_inner & ~is_outer));
        int level = (int)((vec_from_bits(size) - begin) * per);

        level = level < last ? level : last;
        codes[i] = (uint8_t)(level + (int)(is_outer & (uint32_t)(last + 1)) +
                             (int)(vec_to_bits(x[i]) >> 31) * 2 * (last + 1));
    }
}

CPU_INLINE void values_of_piece(const uint8_t *codes, int64_t n, const struct row_grid *g, float *y)
{
    int last = g->n_levels - 1;
    int sign_shift = last == 3 ? 28 : 24; /* from the code's first bit to a float's */
    uint32_t t = vec_to_bits(g->t), inner = vec_to_bits(g->inner), outer = vec_to_bits(g->outer);

    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = codes[i];
        uint32_t is_outer = (uint32_t) - (int32_t)((code & (uint32_t)(last + 1)) != 0);
        float step = vec_from_bits((outer & is_outer) | (inner & ~is_outer));
        float level = (float)(int)(code & (uint32_t)last) + 0.5f;
        float size = vec_from_bits(t & is_outer) + level * step;

        y[i] = vec_from_bits(vec_to_bits(size) | (code & 2 * (uint32_t)(last + 1)) << sign_shift);
    }
}

CPU_INLINE void pack_pairs(uint8_t *to, const uint8_t *codes, int64_t n)
{
    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++)
        to[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

CPU_INLINE void unpack_pairs(uint8_t *codes, const uint8_t *from, int64_t n)
{
    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++) {
        codes[2 * i] = from[i] & 0xfu;
        codes[2 * i + 1] = from[i] >> 4;
    }
}

CPU_INLINE void small_encode(const void *row, const struct row_codes *c, uint8_t *to,
                             enum dtype act)
{
    float scales[2], x[ROW_PIECE];
    uint8_t codes[ROW_PIECE];

    row_scales(row, c->cols, scales, act);
    memcpy(to, scales, sizeof scales);
    to += sizeof scales;
    if (isnan(scales[1])) {
        memset(to, 0, (size_t)(c->cols * c->bits / 8));
        return;
    }
    struct row_grid g = grid_of(scales, c->bits);
    for (int64_t at = 0; at < c->cols; at += ROW_PIECE) {
        int64_t n = min_i64(ROW_PIECE, c->cols - at);

        load_piece(row, at, n, x, act);
        codes_of_piece(x, n, &g, c->bits == 8 ? to + at : codes);
        if (c->bits == 4)
            pack_pairs(to + at / 2, codes, n / 2);
    }
}

/* Elements from `at` on, n <= ROW_PIECE of them, into y. */
CPU_INLINE void small_decode(const uint8_t *from, const struct row_codes *c, int64_t at, int64_t n,
                             float *y)
{
    float scales[2];
    uint8_t codes[ROW_PIECE];

    memcpy(scales, from, sizeof scales);
    from += sizeof scales;
    struct row_grid g = grid_of(scales, c->bits);
    if (c->bits == 4)
        unpack_pairs(codes, from + at / 2, n / 2);
    values_of_piece(c->bits == 8 ? from + at : codes, n, &g, y);
}

/* ---- all rows ---- */

struct row_coding {
    const struct op_shape *op;
    struct row_codes codes;
    const int32_t *place; /* [parts x rows] */
};

CPU_INLINE void encode_row_body(void *context, int64_t tile, int thread)
{
    const struct row_coding *r = context;
    const struct row_codes *c = &r->codes;
    const struct tensor *x = &r->op->in[ENCODE_ROWS_X];
    uint8_t *to = cpu_row(&r->op->out[ENCODE_ROWS_CODES], tile / c->n_rows);
    const void *row = cpu_row(x, tile);
    int32_t place = r->place[tile];

    (void)thread;
    if (place >= 0)
        memcpy(to + row_codes_full_at(c, place), row, (size_t)(c->cols * c->element_bytes));
    else
        WITH_ACT(x->dtype, small_encode(row, c, to + row_codes_small_at(c, -1 - place), act));
}

CPU_VARIANTS(encode_row, (void *context, int64_t tile, int thread), (context, tile, thread));

/* What one row of codes says of a row's elements. */
CPU_INLINE void row_decode(const uint8_t *codes, const struct row_codes *c, int32_t place,
                           int64_t at, int64_t n, float *y, enum dtype act)
{
    if (place < 0) {
        small_decode(codes + row_codes_small_at(c, -1 - place), c, at, n, y);
        return;
    }
    load_piece(codes + row_codes_full_at(c, place), at, n, y, act);
}

#define WAITING_MAX 24 /* sums of the tree that wait for their neighbour */

/* The last two sums become one. Returns how many there are then. */
CPU_INLINE int add_last(float waiting[WAITING_MAX][ROW_PIECE], int n_waiting, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        waiting[n_waiting - 2][i] += waiting[n_waiting - 1][i];
    return n_waiting - 1;
}

CPU_INLINE void decode_elements(const struct row_coding *r, int64_t row, int64_t at, int64_t n,
                                enum dtype act)
{
    const struct row_codes *c = &r->codes;
    const struct tensor *codes = &r->op->in[DECODE_ROWS_CODES];
    bool is_joined = r->op->attributes.joined;
    int64_t first = is_joined ? row / c->n_rows : 0, of_part = row % c->n_rows;
    int64_t end = is_joined ? first + 1 : codes->rows;
    void *y = cpu_row(&r->op->out[DECODE_ROWS_Y], row);
    float waiting[WAITING_MAX][ROW_PIECE];
    int n_waiting = 0;

    for (int64_t part = first; part < end; part++) {
        row_decode(cpu_row(codes, part), c, r->place[part * c->n_rows + of_part], at, n,
                   waiting[n_waiting++], act);
        for (int64_t k = part - first + 1; k % 2 == 0; k /= 2)
            n_waiting = add_last(waiting, n_waiting, n);
    }
    while (n_waiting > 1)
        n_waiting = add_last(waiting, n_waiting, n);
    for (int64_t i = 0; i < n; i++)
        act_put(y, at + i, waiting[0][i], act);
}

CPU_INLINE void decode_row_body(void *context, int64_t tile, int thread)
{
    const struct row_coding *r = context;

    (void)thread;
    for (int64_t at = 0; at < r->codes.cols; at += ROW_PIECE)
        WITH_ACT(r->op->out[DECODE_ROWS_Y].dtype,
                 decode_elements(r, tile, at, min_i64(ROW_PIECE, r->codes.cols - at), act));
}

CPU_VARIANTS(decode_row, (void *context, int64_t tile, int thread), (context, tile, thread));

static size_t encode_rows_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    size_t rows = (size_t)op->in[ENCODE_ROWS_X].rows;

    (void)kernels;
    return rows * sizeof(int32_t) + rows * sizeof(struct ranked_row);
}

static void encode_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *codes = &op->out[ENCODE_ROWS_CODES];
    int64_t rows = op->in[ENCODE_ROWS_X].rows;
    struct ranked_row *ranked = call->scratch;
    int32_t *place = (int32_t *)(ranked + rows);
    struct row_coding r = { op, codes_of(op, &op->in[ENCODE_ROWS_X], codes->rows), place };

    (void)first;
    for (int64_t part = 0; part < codes->rows; part++)
        choose_rows(&r.codes, &op->in[ENCODE_ROWS_SCORES], part * r.codes.n_rows,
                    cpu_row(codes, part), ranked, place + part * r.codes.n_rows);
    pool_run(kernels->pool, rows, encode_row[cpu_of(kernels)->isa], &r);
}

static size_t decode_rows_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    int64_t n_parts = op->attributes.joined ? 1 : op->in[DECODE_ROWS_CODES].rows;

    (void)kernels;
    return (size_t)(n_parts * op->out[DECODE_ROWS_Y].rows) * sizeof(int32_t);
}

static void decode_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *codes = &op->in[DECODE_ROWS_CODES], *y = &op->out[DECODE_ROWS_Y];
    int32_t *place = call->scratch;
    struct row_coding r = { op, codes_of(op, y, op->attributes.joined ? codes->rows : 1), place };

    (void)first;
    for (int64_t part = 0; part < codes->rows; part++) {
        const int32_t *full = cpu_row(codes, part);
        int32_t n_full = 0, n_other = 0;

        for (int32_t i = 0; i < r.codes.n_rows; i++)
            *place++ = n_full < r.codes.n_full && full[n_full] == i ? n_full++ : -1 - n_other++;
    }
    pool_run(kernels->pool, y->rows, decode_row[cpu_of(kernels)->isa], &r);
}

void cpu_register_row_codec(struct kernels_backend *table)
{
    table->entries[OP_ENCODE_ROWS] =
        (struct kernel_entry){ .run = encode_rows_run, .scratch_bytes = encode_rows_scratch_bytes };
    table->entries[OP_DECODE_ROWS] =
        (struct kernel_entry){ .run = decode_rows_run, .scratch_bytes = decode_rows_scratch_bytes };
}
