/*
 * experts_fp8_test.c - products of experts in e4m3 against the reference; each expert's against
 * linear_fp8 of its rows alone, bit for bit (on the CPU); codes against weights that the product
 * rounds; and whatever other rows and groups of experts there are
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/coded_product.h"
#include "support/test_device.h"

enum { LISTED = 6 };

/* Rows of experts, some of which have none, and their products' extents: rows, n and k cross the
 * edges of blocks and of tiles. */
static const struct size {
    int m;
    int rows[LISTED];
    int64_t n, k;
} sizes[] = {
    { 1, { 1 }, 16, 16 },
    { 3, { 0, 5, 0 }, 32, 128 },
    { 4, { 17, 0, 1, 140 }, 48, 144 },
    { 6, { 3, 130, 2, 0, 257, 8 }, 144, 32 },
    { 2, { 128, 129 }, 272, 48 },
};

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

static const enum op_kind kinds[] = { OP_EXPERT_LINEAR_FP8, OP_EXPERT_LINEAR_DX_FP8,
                                      OP_EXPERT_LINEAR_DW_FP8 };

static int64_t n_rows(const struct size *s)
{
    int64_t n = 0;

    for (int e = 0; e < s->m; e++)
        n += s->rows[e];
    return n;
}

static const enum fp8_recipe recipes[] = { FP8_BLOCKWISE, FP8_TENSOR };

/* more: rows behind those of the last expert. */
static struct op_case *products(enum op_kind kind, enum fp8_recipe recipe, const struct size *s,
                                enum dtype w, int more)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ .fp8 = recipe });
    int is_dw = kind == OP_EXPERT_LINEAR_DW_FP8, ends = is_dw ? 2 : 1, end = 0;
    int64_t rows = n_rows(s) + more;

    c->gap = test_device_is_cuda() ? 16 : 3;
    op_case_input(c, 0, rows, kind == OP_EXPERT_LINEAR_FP8 ? s->k : s->n, DTYPE_BF16, 1);
    op_case_input(c, ends, 1, s->m, DTYPE_I32, 0);
    op_case_input(c, is_dw ? 1 : 2, is_dw ? rows : s->m * s->n, s->k, w, 1);
    if (is_dw)
        op_case_output(c, 0, s->m * s->n, s->k, DTYPE_F32);
    else
        op_case_output(c, 0, rows, kind == OP_EXPERT_LINEAR_FP8 ? s->n : s->k, DTYPE_BF16);
    for (int e = 0; e < s->m; e++)
        tensor_set(&c->op.in[ends], 0, e, end += s->rows[e]);
    return c;
}

static void test_products(void **state)
{
    (void)state;
    for (int kind = 0; kind < COUNT(kinds); kind++)
        for (int s = 0; s < COUNT(sizes); s++)
            for (int r = 0; r < COUNT(recipes); r++) {
                struct op_case *c = products(kinds[kind], recipes[r], &sizes[s], DTYPE_BF16, 0);

                op_case_check(c, 4e-6);
                op_case_destroy(c);
            }
}

/* ---- codes ---- */

static void check_codes(enum op_kind kind, enum fp8_recipe recipe, const struct size *s)
{
    const struct coded_weight weight = { EXPERT_LINEAR_W,
                                         EXPERT_LINEAR_FP8_W_MOST,
                                         { 0, s->n, s->k, 0, s->m } };
    struct op_case *own = products(kind, recipe, s, DTYPE_BF16, 0);
    struct op_case *coded = products(kind, recipe, s, DTYPE_U8, 0);

    coded_product_fill(coded, own, &weight);
    coded_product_check(coded, own, "depends on what has rounded w");
}

static void test_codes(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int i = 1; i < COUNT(sizes); i++)
            for (int r = 0; r < COUNT(recipes); r++)
                check_codes(kinds[kind], recipes[r], &sizes[i]);
}

/* ---- experts apart ---- */

static struct tensor rows_at(const struct tensor *t, int64_t row, int64_t n)
{
    struct tensor rows = *t;

    rows.data = (char *)t->data + (size_t)(row * t->stride) * dtype_bytes(t->dtype);
    rows.rows = n;
    return rows;
}

/* Expert e's product is linear_fp8's of its rows, from `begin` on. */
static void check_alone(const struct op_case *all, const struct size *s, int e, int64_t begin)
{
    bool is_dw = all->op.kind == OP_EXPERT_LINEAR_DW_FP8;
    bool is_forward = all->op.kind == OP_EXPERT_LINEAR_FP8;
    enum op_kind kind = is_dw ? OP_LINEAR_DW_FP8 : is_forward ? OP_LINEAR_FP8 : OP_LINEAR_DX_FP8;
    struct op_case *c = op_case_create(kind, &all->op.attributes);
    const struct tensor *other = &all->op.in[is_dw ? 1 : 2];
    struct tensor x = rows_at(&all->op.in[0], begin, s->rows[e]);
    struct tensor w = is_dw ? rows_at(other, begin, s->rows[e]) : rows_at(other, e * s->n, s->n);
    struct tensor y = is_dw ? rows_at(&all->op.out[0], e * s->n, s->n)
                            : rows_at(&all->op.out[0], begin, s->rows[e]);

    op_case_input(c, 0, x.rows, x.cols, DTYPE_BF16, 1);
    op_case_copy(&c->op.in[0], &x);
    op_case_input(c, 1, w.rows, w.cols, DTYPE_BF16, 1);
    op_case_copy(&c->op.in[1], &w);
    op_case_output(c, 0, y.rows, y.cols, y.dtype);
    op_case_run(c, 3, RUN_FIRST);
    op_case_same(&c->op.out[0], &y, "is not linear_fp8's");
    op_case_destroy(c);
}

static void check_each_alone(enum op_kind kind, enum fp8_recipe recipe, const struct size *s)
{
    struct op_case *all = products(kind, recipe, s, DTYPE_BF16, 0);
    int64_t begin = 0;

    op_case_run(all, 2, RUN_FIRST);
    for (int e = 0; e < s->m; begin += s->rows[e++])
        if (s->rows[e])
            check_alone(all, s, e, begin);
    op_case_destroy(all);
}

static void test_is_the_plain_product(void **state)
{
    (void)state;
    if (test_device_is_cuda()) /* whose plain product is a library's */
        skip();
    for (int kind = 0; kind < COUNT(kinds); kind++)
        for (int i = 0; i < COUNT(sizes); i++)
            for (int r = 0; r < COUNT(recipes); r++)
                check_each_alone(kinds[kind], recipes[r], &sizes[i]);
}

/* One group of experts after the other writes what all at once do, and no other rows. */
static void check_groups(enum op_kind kind, enum fp8_recipe recipe, const struct size *s)
{
    struct op_case *all = products(kind, recipe, s, DTYPE_BF16, 0);
    struct op_case *some = products(kind, recipe, s, DTYPE_BF16, 0);
    int n = (s->m + 1) / 2;

    op_case_run(all, 2, RUN_FIRST);
    for (int first = 0; first < s->m; first += n) {
        some->op.attributes.first = first;
        some->op.attributes.experts = n < s->m - first ? n : s->m - first;
        op_case_run(some, 2, first ? RUN_AGAIN : RUN_FIRST);
        int64_t end = (int64_t)tensor_get(&some->op.in[EXPERT_LINEAR_ENDS], 0, n - 1);
        for (int64_t row = end; !first && row < n_rows(s); row++)
            assert_true(isnan(tensor_get(&some->op.out[0], row, 0)));
    }
    op_case_same_outputs(all, some, "groups of experts");
    op_case_destroy(all);
    op_case_destroy(some);
}

static void test_groups_of_experts(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int r = 0; r < COUNT(recipes); r++) {
            check_groups(OP_EXPERT_LINEAR_FP8, recipes[r], &sizes[s]);
            check_groups(OP_EXPERT_LINEAR_DX_FP8, recipes[r], &sizes[s]);
        }
}

/* Rows that no expert has are neither read nor written; a NaN in one expert's rows stays there. */
static void check_left_over(enum op_kind kind, enum fp8_recipe recipe)
{
    const struct size *s = &sizes[3];
    bool is_dw = kind == OP_EXPERT_LINEAR_DW_FP8;
    struct op_case *c = products(kind, recipe, s, DTYPE_BF16, 70);
    struct op_case *all = products(kind, recipe, s, DTYPE_BF16, 0);
    const struct tensor *out = &c->op.out[0];

    c->leaves = 1;
    for (int i = 0; i < 1 + is_dw; i++) {
        struct tensor had = rows_at(&c->op.in[i], 0, n_rows(s));

        for (int64_t row = n_rows(s); row < c->op.in[i].rows; row++)
            for (int64_t col = 0; col < c->op.in[i].cols; col++)
                tensor_set(&c->op.in[i], row, col, (double)NAN);
        op_case_copy(&had, &all->op.in[i]);
        tensor_set(&c->op.in[i], 1, 5, (double)NAN); /* of expert 0, which has three rows */
        tensor_set(&all->op.in[i], 1, 5, (double)NAN);
    }
    if (!is_dw)
        op_case_copy(&c->op.in[2], &all->op.in[2]);
    op_case_run(all, 1, RUN_FIRST);
    op_case_run(c, 2, RUN_FIRST);
    for (int64_t row = 0; row < out->rows; row++)
        for (int64_t col = 0; col < out->cols; col++) {
            double got = tensor_get(out, row, col);
            bool is_left = !is_dw && row >= n_rows(s), is_bad = row < (is_dw ? s->n : 3);

            if (is_left)
                assert_true(isnan(got));
            else if (!is_bad)
                assert_true(got == tensor_get(&all->op.out[0], row, col));
        }
    assert_true(isnan(tensor_get(out, is_dw ? 5 : 1, is_dw ? 5 : 0)));
    op_case_destroy(c);
    op_case_destroy(all);
}

static void test_left_over_rows(void **state)
{
    (void)state;
    for (int kind = 0; kind < COUNT(kinds); kind++)
        for (int r = 0; r < COUNT(recipes); r++)
            check_left_over(kinds[kind], recipes[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_is_the_plain_product),
        cmocka_unit_test(test_groups_of_experts),
        cmocka_unit_test(test_left_over_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
