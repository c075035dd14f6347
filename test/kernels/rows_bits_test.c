/*
 * rows_bits_test.c - bits of the kernels of rows
 *
 * Where an op's arithmetic is one sequence of IEEE operations an element, every device gives the
 * CPU's bits. And sums along rows and columns, whose order is a device's own, don't depend on how
 * operands lie: on gaps between rows, which decide whether 16 bytes can be read at a time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ops/op_info.h"
#include "support/op_case.h"

/* Odd ones, and rows of whole 16 bytes: one pack, one block's and a bit, many rows. */
static const int64_t sizes[][2] = { { 1, 1 },    { 5, 33 },  { 3, 8 },  { 2, 2056 },
                                    { 1, 9000 }, { 600, 7 }, { 70, 48 } };

#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

struct plan {
    enum op_kind kind;
    struct op_attributes attributes;
    int64_t rows, cols;
    enum dtype in[3], out; /* N_DTYPES: absent */
    int variant;
};

typedef struct op_case *make_fn(const struct plan *plan, bool dense);

static void check_cpu_bits(make_fn *make, const struct plan *plan)
{
    for (int dense = 0; dense < 2; dense++) {
        struct op_case *c = make(plan, dense);

        op_case_check_cpu_bits(c, RUN_FIRST);
        for (int i = 0; i < op_info(plan->kind)->n_outputs; i++)
            for (int64_t row = 0; row < c->op.out[i].rows; row++)
                for (int64_t col = 0; col < c->op.out[i].cols; col++)
                    tensor_set(&c->op.out[i], row, col,
                               (double)((row * 31 + col * 7) % 100) / 64 - 0.7);
        op_case_check_cpu_bits(c, RUN_AGAIN);
        op_case_destroy(c);
    }
}

/* ---- element by element ---- */

/* Up to two inputs of the output's shape; or, where variant is set, the second of one row. */
static struct op_case *make_plain(const struct plan *p, bool dense)
{
    struct op_case *c = op_case_create(p->kind, &p->attributes);

    c->dense = dense;
    op_case_input(c, 0, p->rows, p->cols, p->in[0], 1);
    if (p->in[1] != N_DTYPES)
        op_case_input(c, 1, p->variant ? 1 : p->rows, p->cols, p->in[1], 1);
    op_case_output(c, 0, p->rows, p->cols, p->out);
    return c;
}

static void test_elements(void **state)
{
    static const enum dtype f = DTYPE_F32, b = DTYPE_BF16, h = DTYPE_F16, none = N_DTYPES;
    const struct plan plans[] = {
        { .kind = OP_ADD, .in = { f, f }, .out = f },
        { .kind = OP_ADD, .in = { f, b }, .out = f },
        { .kind = OP_ADD, .in = { b, b }, .out = b },
        { .kind = OP_ADD, .in = { f, h }, .out = f },
        { .kind = OP_ADD, .in = { h, h }, .out = h },
        { .kind = OP_SCALE, .attributes = { .scale = 0.3 }, .in = { f, none }, .out = f },
        { .kind = OP_SCALE, .attributes = { .scale = 0.3 }, .in = { b, none }, .out = b },
        { .kind = OP_SCALE, .attributes = { .scale = 0.3 }, .in = { h, none }, .out = h },
        { .kind = OP_ADD_BIAS, .in = { f, f }, .out = f, .variant = 1 },
        { .kind = OP_ADD_BIAS, .in = { h, f }, .out = h, .variant = 1 },
        { .kind = OP_ADD_BIAS, .in = { b, f }, .out = b, .variant = 1 },
        { .kind = OP_CAST, .in = { f, none }, .out = b },
        { .kind = OP_CAST, .in = { b, none }, .out = f },
        { .kind = OP_CAST, .in = { f, none }, .out = h },
        { .kind = OP_CAST, .in = { h, none }, .out = f },
        { .kind = OP_ACCUMULATE, .in = { f, none }, .out = f },
    };

    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        for (int s = 0; s < N_SIZES; s++) {
            struct plan p = plans[i];

            p.rows = sizes[s][0];
            p.cols = sizes[s][1];
            check_cpu_bits(make_plain, &p);
        }
}

static struct op_case *make_select(const struct plan *p, bool dense)
{
    struct op_case *c = op_case_create(p->kind, &p->attributes);

    c->dense = dense;
    op_case_input(c, 0, 9, p->cols, p->in[0], 1);
    op_case_input(c, 1, p->rows, 1, DTYPE_I32, 0);
    op_case_output(c, 0, p->rows, p->cols, p->in[0]);
    for (int64_t row = 0; row < p->rows; row++)
        tensor_set(&c->op.in[1], row, 0, (double)(row * 5 % 9));
    return c;
}

/* variant: 1 from a row on, 2 from a column on, 3 numbered rows. */
static struct op_case *make_dropout(const struct plan *p, bool dense)
{
    enum { SEQ_LEN = 5, BEGIN = 10, BEGIN_COL = 6 };
    struct op_attributes a = p->attributes;
    struct op_case *c;
    int64_t rows = p->rows * SEQ_LEN;
    int part = p->variant == 1, numbered = p->variant == 3;

    a.seq_len = SEQ_LEN;
    a.by_columns = p->variant == 2;
    c = op_case_create(p->kind, &a);
    c->dense = dense;
    op_case_input(c, 0, part ? rows - 2 : rows, p->cols, p->in[0], 1);
    op_case_input(c, 1, p->rows + (part ? BEGIN / SEQ_LEN : 0), 1, DTYPE_I64, 0);
    if (numbered)
        op_case_input(c, 3, rows, 1, DTYPE_I32, 0);
    for (int64_t row = 0; numbered && row < rows; row++)
        tensor_set(&c->op.in[3], row, 0, (double)(rows - 1 - row));
    if (p->variant && !numbered) {
        op_case_input(c, 2, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[2], 0, 0, part ? BEGIN + 1 : BEGIN_COL);
    }
    op_case_output(c, 0, part ? rows - 2 : rows, p->cols, p->in[0]);
    for (int64_t s = 0; s < c->op.in[1].rows; s++)
        tensor_set(&c->op.in[1], s, 0, 1e15 + 77.0 * (double)s);
    return c;
}

/* variant: heads. */
static struct op_case *make_rope(const struct plan *p, bool dense)
{
    enum { POSITIONS = 11 };
    struct op_attributes a = { .n_heads = 1, .n_kv_heads = 1, .head_dim = (int)p->cols };
    struct op_case *c = op_case_create(p->kind, &a);

    c->dense = dense;
    op_case_input(c, 0, p->rows, p->variant * p->cols, p->in[0], 1);
    op_case_input(c, 1, p->rows, 1, DTYPE_I32, 0);
    op_case_input(c, 2, POSITIONS, p->cols, DTYPE_F32, 1);
    op_case_output(c, 0, p->rows, p->variant * p->cols, p->in[0]);
    for (int64_t row = 0; row < p->rows; row++)
        tensor_set(&c->op.in[1], row, 0, (double)(row * 5 % (POSITIONS + 1)) - 1);
    return c;
}

static void test_movements(void **state)
{
    static const int64_t widths[] = { 2, 64, 96, 128, 256 };

    (void)state;
    for (int t = 0; t < N_ACTS; t++) {
        for (int s = 0; s < N_SIZES; s++)
            check_cpu_bits(make_select, &(struct plan){ .kind = OP_SELECT_ROWS,
                                                        .rows = sizes[s][0],
                                                        .cols = sizes[s][1],
                                                        .in = { act_at(t) } });
        for (int w = 0; w < 5; w++)
            for (int heads = 3; heads < 9; heads += 5)
                for (int kind = OP_ROPE; kind <= OP_ROPE_GRAD; kind++)
                    check_cpu_bits(make_rope, &(struct plan){ .kind = (enum op_kind)kind,
                                                              .rows = 21,
                                                              .cols = widths[w],
                                                              .in = { act_at(t) },
                                                              .variant = heads });
        for (int s = 0; s < N_SIZES; s++)
            for (int variant = 0; variant < 4; variant++)
                check_cpu_bits(make_dropout,
                               &(struct plan){ .kind = OP_DROPOUT,
                                               .attributes = { .p = 0.3, .seed = 5, .rng_site = 3 },
                                               .rows = sizes[s][0] < 99 ? sizes[s][0] : 30,
                                               .cols = sizes[s][1],
                                               .in = { act_at(t) },
                                               .variant = variant });
    }
}

/* ---- the embedding ---- */

/* rows: of the table. variant: tokens; some have no row, and many the same. */
static struct op_case *make_embed(const struct plan *p, bool dense)
{
    struct op_case *c = op_case_create(p->kind, &p->attributes);
    int dw = p->kind == OP_EMBED_DW;
    int64_t n = p->variant;

    c->dense = dense;
    op_case_input(c, dw, n, 1, DTYPE_I32, 0);
    op_case_input(c, !dw, dw ? n : p->rows, p->cols, p->in[0], 1);
    if (p->in[1] != N_DTYPES)
        op_case_input(c, 2, n, p->cols, p->in[1], 1);
    op_case_output(c, 0, dw ? p->rows : n, p->cols, DTYPE_F32);
    for (int64_t t = 0; t < n; t++) {
        int64_t row = t % 3 ? t * 40503 % p->rows : p->rows / 2;

        tensor_set(&c->op.in[dw], t, 0, t % 13 == 5 ? -1 : (double)row);
    }
    return c;
}

/* Rows of up to one, two and three bytes; a row's chain over several warps' places. */
static void test_embed(void **state)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },    { 30, 33, 100 },    { 255, 136, 7 },
                                         { 256, 4, 40 }, { 70000, 4, 2500 }, { 9, 3, 4500 } };

    (void)state;
    for (int s = 0; s < 6; s++) {
        struct plan p = { .kind = OP_EMBED_DW,
                          .rows = shapes[s][0],
                          .cols = shapes[s][1],
                          .in = { DTYPE_F32, N_DTYPES },
                          .variant = (int)shapes[s][2] };

        check_cpu_bits(make_embed, &p);
        p.kind = OP_EMBED;
        for (int t = 0; t < N_ACTS; t++)
            for (int base = 0; base < 2; base++) {
                p.in[0] = act_at(t);
                p.in[1] = base ? DTYPE_F32 : N_DTYPES;
                check_cpu_bits(make_embed, &p);
            }
    }
}

/* ---- sums, wherever operands lie ---- */

/* variant: also the optional operands. */
static struct op_case *make_norm(const struct plan *p, bool dense)
{
    struct op_case *c = op_case_create(p->kind, &p->attributes);
    int layer = p->kind == OP_ADD_LAYERNORM;

    c->dense = dense;
    op_case_input(c, 0, p->rows, p->cols, DTYPE_F32, 2);
    op_case_input(c, 1, p->rows, p->cols, p->in[0], 1);
    op_case_input(c, 2, 1, p->cols, DTYPE_F32, 1);
    if (layer)
        op_case_input(c, 3, 1, p->cols, DTYPE_F32, 1);
    op_case_output(c, 0, p->rows, p->cols, p->in[0]);
    for (int i = 1; i < 2 + layer; i++)
        op_case_output(c, i, p->rows, 1, DTYPE_F32);
    op_case_output(c, 2 + layer, p->rows, p->cols, DTYPE_F32);
    return c;
}

static struct op_case *make_norm_grad(const struct plan *p, bool dense)
{
    struct op_case *c = op_case_create(p->kind, &p->attributes);
    int layer = p->kind == OP_LAYERNORM_GRAD;

    c->dense = dense;
    op_case_input(c, 0, p->rows, p->cols, p->in[0], 1);
    op_case_input(c, 1, p->rows, p->cols, DTYPE_F32, 1);
    op_case_input(c, 2, 1, p->cols, DTYPE_F32, 1);
    for (int i = 3; i < 4 + layer; i++)
        op_case_input(c, i, p->rows, 1, DTYPE_F32, 1);
    op_case_input(c, 4 + layer, p->rows, p->cols, DTYPE_F32, 1);
    op_case_output(c, 0, p->rows, p->cols, DTYPE_F32);
    for (int i = 1; i < 2 + layer; i++)
        op_case_output(c, i, 1, p->cols, DTYPE_F32);
    return c;
}

static struct op_case *make_normalize(const struct plan *p, bool dense)
{
    struct op_case *c = op_case_create(p->kind, &p->attributes);
    int grad = p->kind == OP_NORMALIZE_ROWS_GRAD;

    c->dense = dense;
    op_case_input(c, grad, p->rows, p->cols, p->in[0], 1);
    if (grad) {
        op_case_input(c, 0, p->rows, p->cols, DTYPE_F32, 1);
        op_case_input(c, 2, p->rows, 1, DTYPE_F32, 1);
    }
    op_case_output(c, 0, p->rows, p->cols, grad ? DTYPE_F32 : p->in[0]);
    if (!grad)
        op_case_output(c, 1, p->rows, 1, DTYPE_F32);
    return c;
}

static struct op_case *make_bias_grad(const struct plan *p, bool dense)
{
    struct op_case *c = op_case_create(p->kind, &p->attributes);

    c->dense = dense;
    op_case_input(c, 0, p->rows, p->cols, p->in[0], 1);
    op_case_output(c, 0, 1, p->cols, DTYPE_F32);
    return c;
}

/* cols: of a head. */
static struct op_case *make_head_norm(const struct plan *p, bool dense)
{
    enum { Q = 3, KV = 1 };
    struct op_attributes a = {
        .n_heads = Q, .n_kv_heads = KV, .head_dim = (int)p->cols, .eps = 1e-5
    };
    struct op_case *c = op_case_create(p->kind, &a);
    int grad = p->kind == OP_HEAD_NORM_GRAD;
    int64_t width = (Q + KV) * p->cols;

    c->dense = dense;
    for (int i = 0; i < 1 + grad; i++)
        op_case_input(c, i, p->rows, width, p->in[0], 1);
    for (int i = 1 + grad; i < 3 + grad; i++)
        op_case_input(c, i, 1, p->cols, DTYPE_F32, 1);
    if (grad)
        op_case_input(c, 4, p->rows, Q + KV, DTYPE_F32, 1);
    op_case_output(c, 0, p->rows, width, p->in[0]);
    for (int i = 1; i < 3 && grad; i++)
        op_case_output(c, i, 1, p->cols, DTYPE_F32);
    if (!grad)
        op_case_output(c, 1, p->rows, Q + KV, DTYPE_F32);
    return c;
}

static void check_layouts(make_fn *make, const struct plan *plan)
{
    struct op_case *gaps = make(plan, 0), *dense = make(plan, 1);

    op_case_run(gaps, 2, RUN_FIRST);
    op_case_run(dense, 2, RUN_FIRST);
    op_case_same_outputs(gaps, dense, "depends on gaps between rows");
    op_case_destroy(gaps);
    op_case_destroy(dense);
}

/* Rows that a warp takes, and blocks of each size, and that are too long for one; rows of whole 16
 * bytes, which gaps misalign. */
static void test_layouts(void **state)
{
    static const struct {
        enum op_kind kind;
        make_fn *make;
    } kinds[] = {
        { OP_ADD_RMSNORM, make_norm },         { OP_ADD_LAYERNORM, make_norm },
        { OP_RMSNORM_GRAD, make_norm_grad },   { OP_LAYERNORM_GRAD, make_norm_grad },
        { OP_NORMALIZE_ROWS, make_normalize }, { OP_NORMALIZE_ROWS_GRAD, make_normalize },
        { OP_BIAS_GRAD, make_bias_grad },
    };
    static const int64_t shapes[][2] = { { 70, 72 }, { 9, 520 }, { 5, 2056 }, { 3, 8200 } };

    (void)state;
    for (int t = 0; t < N_ACTS; t++) {
        struct plan p = { .attributes = { .eps = 1e-5 }, .in = { act_at(t) } };

        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (int s = 0; s < 4; s++) {
                p.kind = kinds[k].kind;
                p.rows = shapes[s][0];
                p.cols = shapes[s][1];
                check_layouts(kinds[k].make, &p);
            }
        for (int kind = OP_HEAD_NORM; kind <= OP_HEAD_NORM_GRAD; kind++)
            for (int e = 64; e <= 256; e *= 2) {
                p.kind = (enum op_kind)kind;
                p.rows = 13;
                p.cols = e;
                check_layouts(make_head_norm, &p);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_movements),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_layouts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
