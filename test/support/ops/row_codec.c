/*
 * row_codec.c - facts of rows of activations in fewer bytes
 *
 * References are in fp32: what a code is hangs on how a quotient is rounded.
 */
#include "ops/row_codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/op_case.h"
#include "support/ops/op_family.h"

/* The layout of codes of n rows; whether these are of 2 or 4 bytes follows from their length. */
static struct row_codes layout_of(const struct op_shape *op, const struct tensor *codes, int64_t n,
                                  int64_t cols)
{
    struct row_codes c = ops_row_codes(op->attributes.ratio, op->attributes.bits, n, cols, 2);

    return row_codes_bytes(&c) == codes->cols
               ? c
               : ops_row_codes(op->attributes.ratio, op->attributes.bits, n, cols, 4);
}

static uint8_t *code_row(const struct tensor *codes, int64_t row)
{
    return (uint8_t *)codes->data + row * codes->cols;
}

static float break_at(float s)
{
    static const float breaks[] = { ROW_BREAK_VALUES };
    int i = (int)fminf(fmaxf(s, 1), ROW_BREAKS) - 1;
    float part = fminf(fmaxf(s - 1, 0), ROW_BREAKS - 1) - (float)i;

    for (int k = 0; k < ROW_BREAKS; k++)
        assert_true(fabs(log(0.8614 * (k + 1) + 0.6079) / (k + 1) - (double)breaks[k]) < 1e-6);
    return breaks[i] + part * (breaks[i + 1 < ROW_BREAKS ? i + 1 : i] - breaks[i]);
}

/* How many rows of the part have a higher score, or the same and come first. */
static int64_t n_above(const struct tensor *scores, int64_t first, int64_t n, int64_t row)
{
    int64_t above = 0;

    for (int64_t k = 0; k < n; k++) {
        double own = *at(scores, first + row, 0), other = *at(scores, first + k, 0);

        above += other > own || (other == own && k < row);
    }
    return above;
}

static unsigned nearest_code(float x, const float scales[2], int bits)
{
    int n = row_code_levels(bits), is_outer = fabsf(x) > scales[0];
    float step = (is_outer ? scales[1] - scales[0] : scales[0]) / (float)n;
    float level = step > 0 ? floorf((fabsf(x) - (is_outer ? scales[0] : 0)) * (1.0f / step)) : 0;

    return (unsigned)fminf(level, (float)(n - 1)) + (unsigned)(is_outer ? n : 0) +
           (unsigned)(signbit(x) ? 2 * n : 0);
}

static void quantise(const struct tensor *x, int64_t row, const struct row_codes *c, uint8_t *to)
{
    double squares = 0;
    float scales[2] = { 0, 0 };

    for (int64_t i = 0; i < c->cols; i++) {
        scales[1] = fmaxf(scales[1], (float)fabs(*at(x, row, i)));
        squares += *at(x, row, i) * *at(x, row, i);
    }
    if (scales[1] > 0)
        scales[0] = scales[1] * break_at(scales[1] / (float)sqrt(squares / (double)c->cols));
    memcpy(to, scales, sizeof scales);
    memset(to + sizeof scales, 0, (size_t)(c->cols * c->bits / 8));
    for (int64_t i = 0; i < c->cols; i++) {
        unsigned code = nearest_code((float)*at(x, row, i), scales, c->bits);

        to[8 + i * c->bits / 8] |= (uint8_t)(code << (c->bits == 4 && i % 2 ? 4 : 0));
    }
}

static void copy_row(const struct tensor *x, int64_t row, const struct row_codes *c, uint8_t *to)
{
    for (int64_t i = 0; i < c->cols; i++) {
        float v = (float)*at(x, row, i);
        uint32_t bits;

        memcpy(&bits, &v, sizeof bits);
        bits >>= c->element_bytes == 2 ? 16 : 0; /* a bf16 has the upper half */
        memcpy(to + i * c->element_bytes, &bits, (size_t)c->element_bytes);
    }
}

static void encode_rows(const struct op_shape *op)
{
    const struct tensor *x = &op->in[ENCODE_ROWS_X], *codes = &op->out[ENCODE_ROWS_CODES];
    int64_t n = x->rows / codes->rows;
    struct row_codes c = layout_of(op, codes, n, x->cols);

    for (int64_t part = 0; part < codes->rows; part++) {
        uint8_t *to = code_row(codes, part);
        int32_t n_full = 0, n_other = 0;

        for (int64_t i = 0; i < n; i++)
            if (n_above(&op->in[ENCODE_ROWS_SCORES], part * n, n, i) < c.n_full) {
                int32_t number = (int32_t)i;

                memcpy(to + 4 * n_full, &number, 4);
                copy_row(x, part * n + i, &c, to + row_codes_full_at(&c, n_full++));
            } else {
                quantise(x, part * n + i, &c, to + row_codes_small_at(&c, n_other++));
            }
    }
}

/* Element i of a row of codes' n-th row. */
static float decoded(const uint8_t *from, const struct row_codes *c, int64_t row, int64_t i)
{
    int64_t n_before = 0, levels = row_code_levels(c->bits);
    float scales[2], v;

    for (int64_t k = 0; k < c->n_full; k++) {
        int32_t number;
        uint32_t bits = 0;

        memcpy(&number, from + 4 * k, 4);
        n_before += number < row;
        if (number != row)
            continue;
        memcpy(&bits, from + row_codes_full_at(c, k) + i * c->element_bytes,
               (size_t)c->element_bytes);
        bits <<= c->element_bytes == 2 ? 16 : 0;
        memcpy(&v, &bits, sizeof v);
        return v;
    }
    from += row_codes_small_at(c, row - n_before);
    memcpy(scales, from, sizeof scales);
    int64_t code = from[8 + i * c->bits / 8] >> (c->bits == 4 && i % 2 ? 4 : 0);
    bool is_outer = code & levels;
    float step = (is_outer ? scales[1] - scales[0] : scales[0]) / (float)levels;

    v = (is_outer ? scales[0] : 0) + ((float)(code % levels) + 0.5f) * step;
    return code & 2 * levels ? -v : v;
}

static float tree_sum(const struct op_shape *op, const struct row_codes *c, int64_t first,
                      int64_t n, int64_t row, int64_t i)
{
    int64_t half = 1;

    if (n == 1)
        return decoded(code_row(&op->in[DECODE_ROWS_CODES], first), c, row, i);
    while (2 * half < n)
        half *= 2;
    return tree_sum(op, c, first, half, row, i) + tree_sum(op, c, first + half, n - half, row, i);
}

static void decode_rows(const struct op_shape *op)
{
    const struct tensor *codes = &op->in[DECODE_ROWS_CODES], *y = &op->out[DECODE_ROWS_Y];
    bool is_joined = op->attributes.joined;
    int64_t n = y->rows / (is_joined ? codes->rows : 1);
    struct row_codes c = layout_of(op, codes, n, y->cols);

    for (int64_t row = 0; row < y->rows; row++)
        for (int64_t i = 0; i < y->cols; i++)
            OUT(DECODE_ROWS_Y, row, i) =
                (double)(is_joined ? tree_sum(op, &c, row / n, 1, row % n, i)
                                   : tree_sum(op, &c, 0, codes->rows, row, i));
}

static const struct {
    double ratio;
    int bits, parts, rows, cols;
} sizes[] = {
    { 0.1, 8, 1, 10, 40 }, { 0.5, 4, 2, 9, 264 },  { 0.01, 4, 4, 33, 8 },
    { 1, 8, 3, 5, 16 },    { 0.3, 8, 7, 20, 600 }, { 0.25, 4, 1, 70, 1024 },
};

static struct op_attributes attributes_of(size_t i)
{
    return (struct op_attributes){ .ratio = sizes[i].ratio, .bits = sizes[i].bits };
}

static struct op_case *create_encode(size_t i, enum dtype dtype)
{
    struct op_attributes a = attributes_of(i);
    struct op_case *c = op_case_create(OP_ENCODE_ROWS, &a);
    int rows = sizes[i].parts * sizes[i].rows;
    struct row_codes codes =
        ops_row_codes(a.ratio, a.bits, sizes[i].rows, sizes[i].cols, dtype_bytes(dtype));

    c->dense = true;
    op_case_input(c, ENCODE_ROWS_X, rows, sizes[i].cols, dtype, 1);
    op_case_input(c, ENCODE_ROWS_SCORES, rows, 1, DTYPE_F32, 1);
    op_case_output(c, ENCODE_ROWS_CODES, sizes[i].parts, row_codes_bytes(&codes), DTYPE_U8);
    for (int r = 0; r < rows; r++) {
        float *score = (float *)c->op.in[ENCODE_ROWS_SCORES].data + r;

        *score = r % 5 == 1 ? 1.0f : fabsf(*score); /* ties */
        for (int k = 0; k < sizes[i].cols && r % 4 == 2; k++)
            tensor_set(&c->op.in[ENCODE_ROWS_X], r, k, r % 8 == 2 ? 0 : k == 3 ? 100 : 0.001);
    }
    return c;
}

static void encode_rows_kernels(void)
{
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        struct op_case *c = create_encode(i / 2, i % 2 ? DTYPE_BF16 : DTYPE_F32);

        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

static void decode_rows_kernels(void)
{
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof *sizes; i++) {
        enum dtype dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        struct op_case *from = create_encode(i / 4, dtype);
        struct op_attributes a = attributes_of(i / 4);
        const struct tensor *codes = &from->op.out[ENCODE_ROWS_CODES];

        a.joined = i % 4 / 2;
        op_case_run(from, 1, RUN_FIRST);
        struct op_case *c = op_case_create(OP_DECODE_ROWS, &a);
        c->dense = true;
        op_case_input(c, DECODE_ROWS_CODES, codes->rows, codes->cols, DTYPE_U8, 0);
        op_case_output(c, DECODE_ROWS_Y, sizes[i / 4].rows * (a.joined ? codes->rows : 1),
                       sizes[i / 4].cols, dtype);
        memcpy(c->op.in[DECODE_ROWS_CODES].data, codes->data, (size_t)(codes->rows * codes->cols));
        op_case_check(c, dtype == DTYPE_F32 ? 0 : 1.0 / 256);
        op_case_destroy(c);
        op_case_destroy(from);
    }
}

/* ---- scores ---- */

/* The probability that a query of a sequence gives a key; rows of their operands. */
static double probability(const struct op_shape *op, int head, int64_t query, int64_t key,
                          int64_t distance)
{
    const struct op_attributes *a = &op->attributes;
    int number = head + begin_of(op, ATTENTION_RECEIVED_HEAD_OFFSET);
    int kv = head / (a->n_heads / a->n_kv_heads);
    double sum = 0;

    for (int i = 0; i < a->head_dim; i++)
        sum += IN(ATTENTION_RECEIVED_Q, query, head * a->head_dim + i) *
               IN(ATTENTION_RECEIVED_K, key, kv * a->head_dim + i);
    return exp(sum * a->scale -
               (a->alibi ? ops_alibi_slope(number, a->alibi) * (double)distance : 0) -
               IN(ATTENTION_RECEIVED_LSE, query, head));
}

static void attention_received(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *first = &op->in[ATTENTION_RECEIVED_FIRST];
    const struct tensor *last = &op->in[ATTENTION_RECEIVED_LAST];

    start(&op->out[ATTENTION_RECEIVED_SCORES]);
    for (int64_t row = 0; row < op->in[ATTENTION_RECEIVED_Q].rows; row++) {
        int64_t begin = row / a->seq_len * a->seq_len;
        int64_t own = tensor_given(last) ? int_at(last, row) : row - begin;
        int64_t from = tensor_given(first) ? int_at(first, row) : 0;

        if (a->window && own - a->window + 1 > from)
            from = own - a->window + 1;
        for (int64_t key = from; key <= own; key++)
            for (int head = 0; head < a->n_heads; head++)
                OUT(ATTENTION_RECEIVED_SCORES, begin + key, 0) +=
                    probability(op, head, row, begin + key, own - key);
    }
}

/* Documents of a third of a sequence. */
static void fill_ranges(struct op_case *c, int rows, int seq_len)
{
    op_case_input(c, ATTENTION_RECEIVED_FIRST, rows, 1, DTYPE_I32, 0);
    op_case_input(c, ATTENTION_RECEIVED_LAST, rows, 1, DTYPE_I32, 0);
    for (int r = 0; r < rows; r++) {
        int third = seq_len / 3 + 1;

        tensor_set(&c->op.in[ATTENTION_RECEIVED_FIRST], r, 0, r % seq_len / third * third);
        tensor_set(&c->op.in[ATTENTION_RECEIVED_LAST], r, 0, r % seq_len);
    }
}

static void attention_received_kernels(void)
{
    static const struct {
        int heads, kv_heads, head_dim, sequences, seq_len, window, alibi, has_documents;
    } forms[] = {
        { 1, 1, 1, 1, 1, 0, 0, 0 },   { 2, 1, 7, 3, 5, 0, 0, 1 },    { 4, 2, 16, 2, 64, 0, 4, 0 },
        { 3, 3, 20, 2, 65, 9, 0, 0 }, { 4, 2, 8, 1, 150, 70, 4, 1 },
    };

    for (size_t i = 0; i < 2 * sizeof forms / sizeof *forms; i++) {
        size_t f = i / 2;
        enum dtype act = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        int rows = forms[f].sequences * forms[f].seq_len;
        struct op_attributes a = { .n_heads = forms[f].heads,
                                   .n_kv_heads = forms[f].kv_heads,
                                   .head_dim = forms[f].head_dim,
                                   .seq_len = forms[f].seq_len,
                                   .scale = 1 / sqrt(forms[f].head_dim),
                                   .window = forms[f].window,
                                   .alibi = forms[f].alibi };
        struct op_case *c = op_case_create(OP_ATTENTION_RECEIVED, &a);

        op_case_input(c, ATTENTION_RECEIVED_Q, rows, a.n_heads * a.head_dim, act, 1);
        op_case_input(c, ATTENTION_RECEIVED_K, rows, a.n_kv_heads * a.head_dim, act, 1);
        op_case_input(c, ATTENTION_RECEIVED_LSE, rows, a.n_heads, DTYPE_F32, 1);
        if (forms[f].has_documents)
            fill_ranges(c, rows, a.seq_len);
        op_case_output(c, ATTENTION_RECEIVED_SCORES, rows, 1, DTYPE_F32);
        op_case_check(c, act == DTYPE_F32 ? 1e-5 : 2e-2);
        op_case_destroy(c);
    }
}

const struct op_facts row_codec_facts[N_OP_KINDS] = {
    [OP_ATTENTION_RECEIVED] = {
        .example = "attention_received 12x8 bf16, 12x4 bf16, 12x4 fp32, 1x1 i32, 12x1 i32, 12x1 "
                   "i32 : 12x1 fp32",
        .spreads = "ssssss > s; rrrsrr > r; ccccss > p",
        .reference = attention_received,
        .kernels = attention_received_kernels,
    },
    [OP_ENCODE_ROWS] = {
        .example = "encode_rows 8x16 fp32, 8x1 fp32 : 2x140 u8",
        .spreads = "ss > s; rr > r; ps > p",
        .reference = encode_rows,
        .kernels = encode_rows_kernels,
    },
    [OP_DECODE_ROWS] = {
        .example = "decode_rows *3x140 u8 : 4x16 fp32",
        .spreads = "s > s; r > r; c > r",
        .reference = decode_rows,
        .kernels = decode_rows_kernels,
    },
};
