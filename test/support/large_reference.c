/*
 * large_reference.c - what a sample of a large op's results should be
 *
 * Most ops' samples are small ops: 16 rows of a norm are a norm of 16 rows, 16 x 16 elements of a
 * product are a product of 16 rows and 16 columns. These are given to the reference of the kernels'
 * tests (op_facts.h). Attention and the head are in large_softmax.c; tolerances: large_sample.h.
 */
#include <stdlib.h>

#include "base/num.h"
#include "support/large_case.h"
#include "support/large_sample.h"
#include "support/op_facts.h"

/* The reference's operands: inputs as restricted by masks of rows and of columns, outputs all of
 * their restricted size. */
struct restriction {
    unsigned in_rows, in_cols, out_rows, out_cols;
};

static void make_reference(const struct large_case *c, const struct restriction *r,
                           const struct large_picks *rows, const struct large_picks *cols,
                           struct op_shape *reference)
{
    *reference = (struct op_shape){ .kind = c->op.kind, .attributes = c->op.attributes };
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        reference->in[i] =
            large_part(c, i, r->in_rows >> i & 1 ? rows : NULL, r->in_cols >> i & 1 ? cols : NULL);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++) {
        const struct tensor *t = &c->op.out[i];

        if (tensor_given(t))
            reference->out[i] = zeros(r->out_rows >> i & 1 ? rows->n : t->rows,
                                      r->out_cols >> i & 1 ? cols->n : t->cols,
                                      t->dtype == DTYPE_I32 ? DTYPE_I32 : DTYPE_F64);
    }
}

static void compare_output(struct large_case *c, int output, const struct large_picks *rows,
                           const struct large_picks *cols, const struct op_shape *reference,
                           double tolerance)
{
    if (tensor_given(&c->op.out[output]))
        large_compare(c, op_info(c->op.kind)->outputs[output].name, &c->op.out[output], rows, cols,
                      &reference->out[output], tolerance, 1, 0);
}

/* ---- what goes row by row ---- */

/* in, out: operands of one row a token; sums: outputs that are sums over tokens, of each column. */
struct row_kind {
    enum op_kind kind;
    unsigned in, out, sums;
    double tolerance;
};

static const struct row_kind row_kinds[] = {
    { OP_RMSNORM, 1, 3, 0, 1e-4 },       { OP_ADD_RMSNORM, 3, 7, 0, 1e-4 },
    { OP_RMSNORM_GRAD, 27, 1, 2, 1e-4 }, { OP_ROPE, 3, 1, 0, 1e-4 },
    { OP_ROPE_GRAD, 3, 1, 0, 1e-4 },     { OP_SWIGLU, 1, 1, 0, 1e-4 },
    { OP_SWIGLU_GRAD, 3, 1, 0, 1e-4 },   { OP_CAST, 1, 1, 0, 1e-6 },
    { OP_ADD, 3, 1, 0, 1e-6 },           { OP_ADD_BIAS, 1, 1, 0, 1e-6 },
};

/* Sums over all tokens, of a few columns: the other results of that reference mean nothing. */
static void check_sums(struct large_case *c, const struct row_kind *kind, const struct sampled *s)
{
    struct restriction r = { .out_cols = ~0u };
    struct op_shape reference;

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        if (c->op.in[i].cols == c->op.in[0].cols)
            r.in_cols |= 1u << i;
    make_reference(c, &r, NULL, &s->cols, &reference);
    reference_run(&reference, RUN_FIRST);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        if (kind->sums >> i & 1)
            compare_output(c, i, NULL, &s->cols, &reference, kind->tolerance);
    reference_release(&reference);
}

static void check_rows(struct large_case *c, const struct row_kind *kind)
{
    struct restriction r = { .in_rows = kind->in, .out_rows = kind->out };
    struct op_shape reference;
    struct sampled s;

    choose_both(&s, &c->op.out[0], kind->kind);
    make_reference(c, &r, &s.rows, NULL, &reference);
    reference_run(&reference, RUN_FIRST);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        if (kind->out >> i & 1)
            compare_output(c, i, &s.rows, NULL, &reference, kind->tolerance);
    reference_release(&reference);
    if (kind->sums)
        check_sums(c, kind, &s);
}

/* ---- products ---- */

/* linear: rows of x and of w; dx: rows of dy, columns of w; dw: columns of dy and of x. */
static void check_product(struct large_case *c)
{
    static const struct restriction of_x = { .in_rows = 1, .out_rows = 1, .out_cols = 1 };
    const struct tensor *out = &c->op.out[0];
    struct op_shape reference = { .kind = c->op.kind };
    struct sampled s;

    choose_both(&s, out, c->op.kind);
    if (c->op.kind == OP_LINEAR_DX) {
        struct restriction r = of_x;

        r.in_cols = 2;
        make_reference(c, &r, &s.rows, &s.cols, &reference);
    } else {
        int is_dw = c->op.kind == OP_LINEAR_DW;

        reference.in[0] = large_part(c, 0, is_dw ? NULL : &s.rows, is_dw ? &s.rows : NULL);
        reference.in[1] = large_part(c, 1, is_dw ? NULL : &s.cols, is_dw ? &s.cols : NULL);
        reference.in[2] = large_part(c, 2, NULL, &s.cols);
        reference.out[0] = zeros(N_PICKS, N_PICKS, DTYPE_F64);
        if (is_dw && tensor_given(&c->op.out[1]))
            reference.out[1] = zeros(1, N_PICKS, DTYPE_F64);
    }
    reference_run(&reference, RUN_FIRST);
    /* A 16-bit result may have a rounded bias in it (cuda/gemm.cuh): 2e-3 of the largest. */
    compare_output(c, 0, &s.rows, &s.cols, &reference, tensor_given(&c->op.in[2]) ? 3e-3 : 1e-3);
    compare_output(c, 1, NULL, &s.rows, &reference, 1e-3);
    reference_release(&reference);
}

/* ---- the embedding ---- */

/* The picked tokens' rows of the table, one after the other, are the reference's. */
static void check_embed(struct large_case *c)
{
    struct op_shape reference = { .kind = OP_EMBED };
    struct sampled s;
    int64_t tokens[N_PICKS];

    choose_both(&s, &c->op.out[0], OP_EMBED);
    reference.in[0] = large_part(c, 0, &s.rows, NULL);
    for (int i = 0; i < N_PICKS; i++) {
        tokens[i] = (int64_t)tensor_get(&reference.in[0], i, 0);
        tensor_set(&reference.in[0], i, 0, i);
    }
    reference.in[1] = large_part(c, 1, &(struct large_picks){ N_PICKS, tokens }, NULL);
    reference.in[2] = large_part(c, 2, &s.rows, NULL);
    reference.out[0] = zeros(N_PICKS, c->op.out[0].cols, DTYPE_F64);
    reference_run(&reference, RUN_FIRST);
    compare_output(c, 0, &s.rows, NULL, &reference, 1e-6);
    reference_release(&reference);
}

/* Rows of the table of some tokens' own, of some that may be nowhere; dx of those tokens alone. */
static void check_embed_dw(struct large_case *c)
{
    int64_t n_rows = c->op.in[1].rows, *at = malloc(sizeof *at * (size_t)n_rows);
    int64_t *row_of = malloc(sizeof *row_of * (size_t)n_rows);
    struct large_picks found = { 0, at };
    struct op_shape reference = { .kind = OP_EMBED_DW };
    struct sampled s;
    double token;

    CHECK(at && row_of);
    choose_both(&s, &c->op.out[0], OP_EMBED_DW);
    for (int i = 1; i < N_PICKS / 2; i++) {
        large_input_row(c, 1, i * n_rows / N_PICKS, 0, 1, &token);
        s.rows_at[i] = (int64_t)token;
    }
    for (int64_t t = 0; t < n_rows; t++) {
        large_input_row(c, 1, t, 0, 1, &token);
        for (int i = 0; i < N_PICKS; i++)
            if (s.rows_at[i] == (int64_t)token) {
                row_of[found.n] = i;
                at[found.n++] = t;
                break;
            }
    }
    reference.in[0] = large_part(c, 0, &found, &s.cols);
    reference.in[1] = zeros(found.n, 1, DTYPE_I32);
    reference.out[0] = zeros(N_PICKS, N_PICKS, DTYPE_F64);
    for (int64_t i = 0; i < found.n; i++)
        tensor_set(&reference.in[1], i, 0, (double)row_of[i]);
    reference_run(&reference, RUN_FIRST);
    /* A token that was picked twice has its sum in the first of its rows. */
    for (int i = 0; i < N_PICKS; i++)
        for (int k = 0; k < i; k++)
            if (s.rows_at[i] == s.rows_at[k])
                for (int col = 0; col < N_PICKS; col++)
                    tensor_set(&reference.out[0], i, col, tensor_get(&reference.out[0], k, col));
    compare_output(c, 0, &s.rows, &s.cols, &reference, 1e-5);
    reference_release(&reference);
    free(at);
    free(row_of);
}

/* ---- the update ---- */

/* Elements know nothing of one another where decay and place are attributes. */
static int check_adamw(struct large_case *c)
{
    static const struct restriction r = {
        .in_rows = 0x71, .in_cols = 0x71, .out_rows = 1, .out_cols = 1
    };
    const struct op_info *info = op_info(OP_ADAMW);
    struct op_shape reference;
    struct sampled s;

    if (tensor_given(&c->op.in[7]) || tensor_given(&c->op.in[8]) || tensor_given(&c->op.in[9]))
        return -1;
    choose_both(&s, &c->op.in[4], OP_ADAMW);
    make_reference(c, &r, &s.rows, &s.cols, &reference);
    reference_run(&reference, RUN_FIRST);
    /* States of two bytes are rounded by chance: by up to a whole step. */
    for (int i = 4; i < 7; i++)
        large_compare(c, info->inputs[i].name, &c->op.in[i], &s.rows, &s.cols, &reference.in[i],
                      1e-5, 2, 0);
    if (tensor_given(&c->op.out[0]))
        large_compare(c, "weight", &c->op.out[0], &s.rows, &s.cols, &reference.out[0], 1e-5, 2, 0);
    reference_release(&reference);
    return 0;
}

static void check_sumsq(struct large_case *c)
{
    const struct tensor *x = &c->op.in[0];
    struct sampled s;
    int64_t n_elements = tensor_elements(x);

    CHECK(x->stride == x->cols);
    choose_both(&s, &c->op.out[0], OP_SUMSQ);
    struct tensor wanted = zeros(1, N_PICKS, DTYPE_F64);
    for (int i = 0; i < N_PICKS; i++) {
        int64_t begin = s.cols_at[i] * OPS_NORM_BLOCK;
        int64_t end = min_i64(begin + OPS_NORM_BLOCK, n_elements);
        double sum = 0, value;

        for (int64_t k = begin; k < end; k++) {
            large_input_row(c, 0, k / x->cols, k % x->cols, 1, &value);
            sum += value * value;
        }
        tensor_set(&wanted, 0, i, sum);
    }
    large_compare(c, "sums", &c->op.out[0], NULL, &s.cols, &wanted, 1e-12, 0, 0);
    free(wanted.data);
}

/* sum_runs and gradient_norm are small. */
static void check_whole(struct large_case *c)
{
    static const struct restriction nothing = { 0 };
    struct op_shape reference;

    make_reference(c, &nothing, NULL, NULL, &reference);
    reference_run(&reference, RUN_FIRST);
    for (int i = 0; i < op_info(c->op.kind)->n_outputs; i++)
        compare_output(c, i, NULL, NULL, &reference,
                       c->op.out[i].dtype == DTYPE_F32 ? 1e-6 : 1e-12);
    reference_release(&reference);
}

int large_check(struct large_case *c)
{
    const struct op_attributes *a = &c->op.attributes;

    for (size_t i = 0; i < sizeof row_kinds / sizeof *row_kinds; i++)
        if (row_kinds[i].kind == c->op.kind) {
            check_rows(c, &row_kinds[i]);
            return 0;
        }
    switch (c->op.kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
        check_product(c);
        return 0;
    case OP_EMBED:
        check_embed(c);
        return 0;
    case OP_EMBED_DW:
        check_embed_dw(c);
        return 0;
    case OP_ADAMW:
        return check_adamw(c);
    case OP_SUMSQ:
        check_sumsq(c);
        return 0;
    case OP_SUM_RUNS:
    case OP_GRADIENT_NORM:
        check_whole(c);
        return 0;
    case OP_ATTENTION:
        large_check_attention(c);
        return a->window || a->alibi || a->p > 0 || tensor_given(&c->op.in[5]) ? -1 : 0;
    case OP_ATTENTION_GRAD:
        large_check_attention_grad(c);
        return a->window || a->alibi || a->p > 0 || tensor_given(&c->op.in[8]) ? -1 : 0;
    case OP_HEAD_CROSS_ENTROPY:
    case OP_HEAD_LOSS:
        large_check_head(c);
        return 0;
    default:
        return -1;
    }
}
