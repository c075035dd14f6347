/*
 * linear_test.c - linear, linear_dx, linear_dw against products in double
 *
 * Tolerances: a sum of k products in fp32 in any order errs by at most (k + 2) u sum |a b|; a bf16
 * or fp16 result by its own rounding besides.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/kernel_case.h"
#include "support/test_device.h"

/* T, k and n cross the edges of tiles, vectors and one another. */
static const struct dims {
    int64_t tokens, k, n;
} all_dims[] = { { 1, 1, 1 },     { 1, 64, 96 },   { 3, 5, 7 },    { 2, 300, 1 },
                 { 130, 1, 40 },  { 17, 33, 129 }, { 64, 64, 64 }, { 31, 515, 260 },
                 { 515, 40, 31 }, { 270, 48, 600 } };

static const int thread_counts[] = { 2, 3, 7 };

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

static struct op_shape make_op(enum op_kind kind, struct dims d, enum dtype act, enum dtype out,
                               int bias)
{
    struct op_shape op = { .kind = kind };

    if (kind == OP_LINEAR) {
        case_make(&op.in[0], d.tokens, d.k, 3, act);
        case_make(&op.in[1], d.n, d.k, 1, act);
        if (bias)
            case_make(&op.in[2], 1, d.n, 0, DTYPE_F32);
        case_make(&op.out[0], d.tokens, d.n, 5, out);
    } else if (kind == OP_LINEAR_DX) {
        case_make(&op.in[0], d.tokens, d.n, 3, act);
        case_make(&op.in[1], d.n, d.k, 1, act);
        case_make(&op.out[0], d.tokens, d.k, 5, act);
    } else {
        case_make(&op.in[0], d.tokens, d.n, 3, act);
        case_make(&op.in[1], d.tokens, d.k, 1, act);
        case_make(&op.out[0], d.n, d.k, 5, DTYPE_F32);
        if (bias)
            case_make(&op.out[1], 1, d.n, 0, DTYPE_F32);
    }
    for (int i = 0; i < 3; i++)
        case_fill(&op.in[i], (uint64_t)(7 + i));
    return op;
}

/* Element (row, col) of the op's product: its value, and the sum of its terms' magnitudes. */
static void reference(const struct op_shape *op, int64_t row, int64_t col, double *value,
                      double *magnitude)
{
    const struct tensor *a = &op->in[0], *b = &op->in[1];
    int64_t n_terms = op->kind == OP_LINEAR_DW ? a->rows : a->cols;

    *value = *magnitude = 0;
    for (int64_t i = 0; i < n_terms; i++) {
        double x = op->kind == OP_LINEAR_DW ? case_get(a, i, row) : case_get(a, row, i);
        double y = op->kind == OP_LINEAR ? case_get(b, col, i) : case_get(b, i, col);

        *value += x * y;
        *magnitude += fabs(x * y);
    }
    if (op->kind == OP_LINEAR && tensor_given(&op->in[2])) {
        *value += case_get(&op->in[2], 0, col);
        *magnitude += fabs(case_get(&op->in[2], 0, col));
    }
}

/*
 * Where the result has 16 bits a GPU rounds either the bias before it is added, or the product
 * (cuda/gemm.cuh), which is no more than value and bias.
 */
static double bias_error(const struct op_shape *op, int64_t col, double value)
{
    if (!test_device_is_cuda() || op->kind != OP_LINEAR || !tensor_given(&op->in[2]))
        return 0;
    return 1.02 * act_rounding(op->out[0].dtype, fabs(value) + fabs(case_get(&op->in[2], 0, col)));
}

static void assert_product(const struct op_shape *op)
{
    const struct tensor *out = &op->out[0];
    int64_t n_terms = op->kind == OP_LINEAR_DW ? op->in[0].rows : op->in[0].cols;

    for (int64_t row = 0; row < out->rows; row++)
        for (int64_t col = 0; col < out->cols; col++) {
            double got = case_get(out, row, col), value, magnitude, tolerance;

            reference(op, row, col, &value, &magnitude);
            tolerance = (double)(n_terms + 2) * CASE_U32 * magnitude;
            tolerance += 1.01 * act_rounding(out->dtype, value) + bias_error(op, col, value);
            if (!(fabs(got - value) <= tolerance))
                fail_msg("%s [%lld x %lld] of %lld at (%lld, %lld): %.9g, not %.9g +- %.2g",
                         op_info(op->kind)->name, (long long)out->rows, (long long)out->cols,
                         (long long)n_terms, (long long)row, (long long)col, got, value, tolerance);
        }
}

static void assert_db(const struct op_shape *op)
{
    for (int64_t col = 0; col < op->out[1].cols; col++) {
        double sum = 0;

        for (int64_t row = 0; row < op->in[0].rows; row++)
            sum += case_get(&op->in[0], row, col);
        assert_true(fabs(case_get(&op->out[1], 0, col) - sum) <= 1.01 * CASE_U32 * fabs(sum));
    }
}

/* Against the reference with one thread, then the same bits with others. */
static void check_op(struct op_shape *op)
{
    struct tensor alone[2] = { 0 };

    for (int i = 0; i < 2; i++)
        case_poison(&op->out[i]);
    case_run(op, 1, 1);
    assert_product(op);
    assert_db(op);
    for (int i = 0; i < 2; i++)
        case_copy(&alone[i], &op->out[i]);
    for (int t = 0; t < N(thread_counts); t++) {
        for (int i = 0; i < 2; i++)
            case_poison(&op->out[i]);
        case_run(op, thread_counts[t], 1);
        for (int i = 0; i < 2; i++)
            assert_true(case_equal(&op->out[i], &alone[i]));
    }
    for (int i = 0; i < 2; i++)
        case_free(&alone[i]);
}

static void check_kind(enum op_kind kind)
{
    static const enum dtype dtypes[][2] = { { DTYPE_F32, DTYPE_F32 },
                                            { DTYPE_BF16, DTYPE_BF16 },
                                            { DTYPE_F16, DTYPE_F16 },
                                            { DTYPE_BF16, DTYPE_F32 },
                                            { DTYPE_F16, DTYPE_F32 } };

    for (int i = 0; i < N(all_dims); i++)
        for (int j = 0; j < (kind == OP_LINEAR ? 5 : 3); j++) {
            struct op_shape op = make_op(kind, all_dims[i], dtypes[j][0], dtypes[j][1], i % 2);

            check_op(&op);
            case_free_op(&op);
        }
}

static void test_forward(void **state)
{
    (void)state;
    check_kind(OP_LINEAR);
}

static void test_dx(void **state)
{
    (void)state;
    check_kind(OP_LINEAR_DX);
}

static void test_dw(void **state)
{
    (void)state;
    check_kind(OP_LINEAR_DW);
}

/* out += contribution is the finished contribution, then one fp32 add: bit for bit. */
static void test_accumulates_finished_products(void **state)
{
    (void)state;
    for (int i = 0; i < N(all_dims); i++) {
        enum dtype act = act_at(i % N_ACTS);
        struct op_shape op = make_op(OP_LINEAR_DW, all_dims[i], act, DTYPE_F32, 1);
        struct tensor product[2], before[2];

        case_run(&op, 2, 1);
        for (int j = 0; j < 2; j++) {
            case_copy(&product[j], &op.out[j]);
            case_fill(&op.out[j], 99);
            case_copy(&before[j], &op.out[j]);
        }
        case_run(&op, 3, 0);
        for (int j = 0; j < 2; j++) {
            for (int64_t row = 0; row < before[j].rows; row++)
                for (int64_t col = 0; col < before[j].cols; col++)
                    case_set(&before[j], row, col,
                             (double)((float)case_get(&before[j], row, col) +
                                      (float)case_get(&product[j], row, col)));
            assert_true(case_equal(&op.out[j], &before[j]));
            case_free(&product[j]);
            case_free(&before[j]);
        }
        case_free_op(&op);
    }
}

/* bias_grad is linear_dw's db, to the bit, first and on top of what is there. */
static void test_bias_grad_is_db(void **state)
{
    (void)state;
    for (int i = 0; i < N(all_dims); i++) {
        enum dtype act = act_at(i % N_ACTS);
        struct op_shape dw = make_op(OP_LINEAR_DW, all_dims[i], act, DTYPE_F32, 1);
        struct op_shape alone = { .kind = OP_BIAS_GRAD, .in = { dw.in[0] } };

        case_make(&alone.out[0], 1, all_dims[i].n, 0, DTYPE_F32);
        case_poison(&dw.out[1]);
        case_poison(&alone.out[0]);
        for (int first = 1; first >= 0; first--) {
            case_run(&dw, 2, first);
            case_run(&alone, 3, first);
            assert_true(case_equal(&alone.out[0], &dw.out[1]));
        }
        case_free(&alone.out[0]);
        case_free_op(&dw);
    }
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_dx),
        cmocka_unit_test(test_dw),
        cmocka_unit_test(test_accumulates_finished_products),
        cmocka_unit_test(test_bias_grad_is_db),
    };

    return cmocka_run_group_tests_name("linear", tests, NULL, NULL);
}

int main(void)
{
    return case_each_isa(run_all);
}
