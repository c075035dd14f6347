/*
 * linear_fp8_test.c - products of e4m3 against the reference: numbers at the borders of rounding,
 * blocks of zeros, of tiny numbers and with a NaN, and rows that are computed apart
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/coded_product.h"
#include "support/test_device.h"

/* T, k and n cross the edges of blocks, tiles and one another, in multiples of 16 where matrices of
 * weights have them. */
static const struct dims {
    int64_t tokens, k, n;
} all_dims[] = {
    { 1, 16, 16 },   { 3, 128, 32 },    { 130, 64, 272 }, { 17, 144, 128 },
    { 65, 400, 48 }, { 257, 128, 144 }, { 300, 272, 16 },
};

#define N_DIMS (int)(sizeof all_dims / sizeof *all_dims)

static const enum op_kind kinds[] = { OP_LINEAR_FP8, OP_LINEAR_DX_FP8, OP_LINEAR_DW_FP8 };
static const enum fp8_recipe recipes[] = { FP8_BLOCKWISE, FP8_TENSOR };

/* second: the dtype of the second operand. */
static struct op_case *make_of(enum op_kind kind, enum fp8_recipe recipe, struct dims d, bool bias,
                               enum dtype second)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ .fp8 = recipe });
    bool is_dw = kind == OP_LINEAR_DW_FP8;

    if (test_device_is_cuda())
        c->gap = 16; /* rows of multiples of 16 bytes */
    op_case_input(c, 0, d.tokens, kind == OP_LINEAR_FP8 ? d.k : d.n, DTYPE_BF16, 1);
    op_case_input(c, 1, is_dw ? d.tokens : d.n, d.k, second, 1);
    if (is_dw)
        op_case_output(c, LINEAR_DW_DW, d.n, d.k, DTYPE_F32);
    else
        op_case_output(c, 0, d.tokens, kind == OP_LINEAR_FP8 ? d.n : d.k, DTYPE_BF16);
    if (bias && kind == OP_LINEAR_FP8)
        op_case_input(c, LINEAR_B, 1, d.n, DTYPE_F32, 1);
    if (bias && is_dw)
        op_case_output(c, LINEAR_DW_DB, 1, d.n, DTYPE_F32);
    return c;
}

static struct op_case *make(enum op_kind kind, enum fp8_recipe recipe, struct dims d, bool bias)
{
    return make_of(kind, recipe, d, bias, DTYPE_BF16);
}

/* On a GPU a bias may be rounded before it is added (cuda/gemm.cuh). */
static double tolerance_of(const struct op_case *c)
{
    return test_device_is_cuda() && c->op.kind == OP_LINEAR_FP8 && tensor_given(&c->op.in[2])
               ? 0x1p-7
               : 4e-6;
}

static void test_products(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < N_DIMS; i++) {
                struct op_case *c = make(kinds[k], recipes[r], all_dims[i], i % 2);

                op_case_check(c, tolerance_of(c));
                op_case_destroy(c);
            }
}

/* Gradients of outputs in e5m2, of parts of tensors, too; the forward has none. */
static void test_e5m2(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < N_DIMS; i++) {
            struct op_case *c = make(kinds[k], FP8_TENSOR, all_dims[i], false);

            c->op.attributes.e5m2_dy = 1;
            if (i % 2) {
                op_case_input(c, ops_fp8_most(kinds[k], 0), 1, 1, DTYPE_F32, 1);
                tensor_set(&c->op.in[ops_fp8_most(kinds[k], 0)], 0, 0, 19.5);
            }
            op_case_check(c, 4e-6);
            op_case_destroy(c);
        }
}

/* x is rounded to what, of a tensor whose largest element is 57344, so that its scale is 1. */
static const struct {
    double x, code;
} e5m2_borders[] = {
    { 57344, 57344 },     { 53248, 49152 },       { 49152, 49152 }, /* a tie, to even */
    { 45056, 49152 },     { 0x1p-17, 0 },         { 0x1.8p-17, 0x1p-16 }, { 0x1.8p-16, 0x1p-15 },
    { 0x1p-14, 0x1p-14 }, { 0x1.ep-15, 0x1p-14 }, { -1.125, -1 },         { -1.375, -1.5 },
    { -0.0, 0 },          { 1.25, 1.25 },
};

static void test_e5m2_borders(void **state)
{
    const int n = (int)(sizeof e5m2_borders / sizeof *e5m2_borders);
    struct op_case *c = make(OP_LINEAR_DX_FP8, FP8_TENSOR, (struct dims){ 1, 32, 32 }, false);

    (void)state;
    c->op.attributes.e5m2_dy = 1;
    for (int64_t i = 0; i < 32; i++) {
        tensor_set(&c->op.in[LINEAR_DX_DY], 0, i, i < n ? e5m2_borders[i].x : 0);
        for (int64_t j = 0; j < 32; j++)
            tensor_set(&c->op.in[LINEAR_DX_W], i, j, i == j ? 448 : 0);
    }
    op_case_run(c, 1, RUN_FIRST);
    for (int64_t i = 0; i < n; i++) {
        double got = tensor_get(&c->op.out[LINEAR_DX_DX], 0, i);

        if (got != 448 * e5m2_borders[i].code)
            fail_msg("%g is rounded to %g, wanted %g", e5m2_borders[i].x, got / 448,
                     e5m2_borders[i].code);
    }
    op_case_destroy(c);
}

/* Operands that are parts of tensors: the others have larger elements, or none. */
static void test_parts(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int larger = 0; larger < 2; larger++) {
            struct op_case *c = make(kinds[k], FP8_TENSOR, all_dims[4], false);

            for (int i = 0; i < OPS_FP8_OPERANDS; i++) {
                int most = ops_fp8_most(kinds[k], i);

                op_case_input(c, most, 3, 1, DTYPE_F32, 1);
                tensor_set(&c->op.in[most], 0, 0, 0.5);
                tensor_set(&c->op.in[most], 1, 0, larger ? 37.5 : 0.25);
                tensor_set(&c->op.in[most], 2, 0, 8);
            }
            op_case_check(c, 4e-6);
            op_case_destroy(c);
        }
}

/* A weight that was rounded before has the bits of one that the product rounds. */
static void check_codes(enum op_kind kind, enum fp8_recipe recipe, struct dims d)
{
    const struct coded_weight weight = { LINEAR_W,
                                         ops_fp8_most(kind, LINEAR_W),
                                         { 0, d.n, d.k, 0, 1 } };
    struct op_case *own = make(kind, recipe, d, false);
    struct op_case *coded = make_of(kind, recipe, d, false, DTYPE_U8);

    coded_product_fill(coded, own, &weight);
    coded_product_check(coded, own, "depends on what has rounded the weight");
}

static void test_codes(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < 2; r++)
            for (int i = 2; i < 6; i++)
                check_codes(kinds[k], recipes[r], all_dims[i]);
}

/* What e4m3 makes of them: of a block with 448 in it, whose scale is 1. */
static const struct {
    double x, code;
} borders[] = {
    { 448, 448 },          { 440, 448 },         { 432, 448 },   /* a tie, to even */
    { 400, 384 },          { 402, 416 },         { 0x1p-10, 0 }, /* likewise */
    { 0x1.8p-10, 0x1p-9 }, { 0x1.8p-9, 0x1p-8 }, { 0x1p-6, 0x1p-6 }, { 0x1.cp-7, 0x1.cp-7 },
    { 0x1.fp-7, 0x1p-6 },  { -17, -16 },         { -19, -20 },       { -0.0, 0 },
    { -448, -448 },        { 1.0625, 1 },        { 1.1875, 1.25 },
};

enum { N_BORDERS = sizeof borders / sizeof *borders };

/* x and w diagonal: each element of y is one code of x. */
static void test_borders(void **state)
{
    struct op_case *c = make(OP_LINEAR_FP8, FP8_BLOCKWISE, (struct dims){ 1, 32, 32 }, false);

    (void)state;
    for (int64_t i = 0; i < 32; i++) {
        tensor_set(&c->op.in[LINEAR_X], 0, i, i < N_BORDERS ? borders[i].x : 0);
        for (int64_t j = 0; j < 32; j++)
            tensor_set(&c->op.in[LINEAR_W], i, j, i == j ? 448 : 0);
    }
    op_case_run(c, 1, RUN_FIRST);
    for (int64_t i = 0; i < N_BORDERS; i++) {
        double got = tensor_get(&c->op.out[LINEAR_Y], 0, i);

        if (got != 448 * borders[i].code)
            fail_msg("%g is rounded to %g, wanted %g", borders[i].x, got / 448, borders[i].code);
    }
    op_case_destroy(c);
}

static void fill_rows(const struct tensor *t, int64_t row, int64_t end, double x)
{
    for (; row < end; row++)
        for (int64_t col = 0; col < t->cols; col++)
            tensor_set(t, row, col, x);
}

/* Rows of zeros and of numbers whose scale is 0 or not normal, beside usual ones. */
static void test_small(void **state)
{
    struct dims d = { 260, 144, 160 };

    (void)state;
    for (int k = 0; k < 3; k++)
        for (int r = 0; r < 2; r++) {
            struct op_case *c = make(kinds[k], recipes[r], d, false);

            fill_rows(&c->op.in[0], 0, 2, 0);
            fill_rows(&c->op.in[0], 2, 3, 0x1p-133);
            fill_rows(&c->op.in[0], 3, 4, 0x1p-120);
            fill_rows(&c->op.in[0], 128, 256, 0);
            fill_rows(&c->op.in[1], 128, c->op.in[1].rows, 0);
            op_case_check(c, 4e-6);
            op_case_destroy(c);
        }
}

static int64_t count_nans(const struct tensor *t, int64_t row, int64_t end)
{
    int64_t n = 0;

    for (; row < end; row++)
        for (int64_t col = 0; col < t->cols; col++)
            n += isnan(tensor_get(t, row, col));
    return n;
}

/* Of a row whose block has one, all of it; with one scale, everything. */
static void check_not_finite(double x)
{
    for (int r = 0; r < 2; r++) {
        struct op_case *c = make(OP_LINEAR_FP8, recipes[r], (struct dims){ 7, 256, 64 }, false);
        const struct tensor *y = &c->op.out[LINEAR_Y];

        tensor_set(&c->op.in[LINEAR_X], 3, 200, x);
        op_case_run(c, 2, RUN_FIRST);
        assert_int_equal(count_nans(y, 3, 4), y->cols);
        assert_int_equal(count_nans(y, 0, 7), recipes[r] == FP8_TENSOR ? 7 * y->cols : y->cols);
        op_case_destroy(c);
    }
}

static void test_not_finite(void **state)
{
    (void)state;
    check_not_finite(NAN);
    check_not_finite(-INFINITY);
}

/* Rows from `first` on have the bits that they have among all, in the forward and in dx. */
static void check_rows_apart(enum op_kind kind, int64_t first, int64_t n)
{
    struct dims d = { 300, 272, 144 };
    struct op_case *all = make(kind, FP8_BLOCKWISE, d, false);
    struct op_case *some = make(kind, FP8_BLOCKWISE, (struct dims){ n, d.k, d.n }, false);
    struct tensor x = all->op.in[0], y = all->op.out[0];

    x.rows = y.rows = n;
    x.data = (uint16_t *)x.data + first * x.stride;
    y.data = (uint16_t *)y.data + first * y.stride;
    op_case_copy(&some->op.in[0], &x);
    op_case_copy(&some->op.in[1], &all->op.in[1]);
    op_case_run(all, 2, RUN_FIRST);
    op_case_run(some, 3, RUN_FIRST);
    op_case_same(&some->op.out[0], &y, "depends on other rows");
    op_case_destroy(all);
    op_case_destroy(some);
}

static void test_rows_apart(void **state)
{
    (void)state;
    if (test_device_is_cuda()) /* its library chooses by shape */
        skip();
    for (int k = 0; k < 2; k++) {
        check_rows_apart(kinds[k], 0, 1);
        check_rows_apart(kinds[k], 3, 129);
        check_rows_apart(kinds[k], 256, 44);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),     cmocka_unit_test(test_parts),
        cmocka_unit_test(test_codes),        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_small),        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_rows_apart),   cmocka_unit_test(test_e5m2),
        cmocka_unit_test(test_e5m2_borders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
