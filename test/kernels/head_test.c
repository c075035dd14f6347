/*
 * head_test.c - head_cross_entropy and head_loss against softmax and products in double
 *
 * Tolerances: a logit errs by at most (d + 2) u sum |x w|, so a probability by twice the largest of
 * these, relatively, plus a few u for exp and the sum; bf16 and fp16 round gradients of logits once more.
 * The products over them then err as any sum does.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/kernel_case.h"

/* vocab 2,100 crosses two blocks of the sum of exponentials; 9,001 and 40,003 are several steps of a
 * GPU's block, which writes over what it has read. */
static const struct dims {
    int64_t tokens, d, vocab;
    int chunk;
} all_dims[] = { { 1, 1, 1, 1 },      { 1, 8, 17, 4 },   { 5, 7, 33, 2 },
                 { 12, 16, 64, 4 },   { 9, 3, 31, 64 },  { 7, 12, 2100, 3 },
                 { 37, 24, 300, 16 }, { 3, 5, 9001, 2 }, { 1, 3, 40003, 1 } };

static const int thread_counts[] = { 2, 3, 7 };

#define SCALE 0.3125f
#define N(array) ((int)(sizeof(array) / sizeof *(array)))

/* Every third target is none. Loss weights of 8 make the softmax far from flat. */
static struct op_shape make_op(enum op_kind kind, struct dims dims, enum dtype act)
{
    struct op_shape op = { .kind = kind, .attributes = { .chunk = dims.chunk } };

    case_make(&op.in[0], dims.tokens, dims.d, 3, act);
    case_make(&op.in[1], dims.vocab, dims.d, 1, act);
    case_make(&op.in[2], dims.tokens, 1, 2, DTYPE_I32);
    case_fill(&op.in[0], 3);
    case_fill(&op.in[1], 4);
    for (int64_t row = 0; row < dims.tokens; row++) {
        case_set(&op.in[2], row, 0, row % 3 == 1 ? -1 : (double)(row * 7919 % dims.vocab));
        for (int64_t col = 0; col < dims.d; col++)
            case_set(&op.in[0], row, col, 8 * case_get(&op.in[0], row, col));
    }
    if (kind == OP_HEAD_LOSS) {
        case_make(&op.out[0], 1, 1, 0, DTYPE_F64);
        return op;
    }
    case_make(&op.in[3], 1, 1, 0, DTYPE_F32);
    case_set(&op.in[3], 0, 0, (double)SCALE);
    case_make(&op.out[0], dims.tokens, dims.d, 5, act);
    case_make(&op.out[1], dims.vocab, dims.d, 2, DTYPE_F32);
    case_make(&op.out[2], 1, 1, 0, DTYPE_F64);
    return op;
}

/* dlogits[T x V], a bound of each one's error, the loss and a bound of its error. */
struct reference {
    double *dlogits, *error;
    double loss, loss_error;
};

static void reference_row(struct reference *r, const struct op_shape *op, int64_t row)
{
    const struct tensor *x = &op->in[0], *w = &op->in[1];
    int64_t vocab = w->rows, target = (int64_t)case_get(&op->in[2], row, 0);
    double *dlogits = r->dlogits + row * vocab, *error = r->error + row * vocab;
    double max = -INFINITY, sum = 0, worst = 0, relative;

    if (target < 0)
        return;
    for (int64_t v = 0; v < vocab; v++) {
        double magnitude = 0;

        dlogits[v] = 0;
        for (int64_t i = 0; i < x->cols; i++) {
            dlogits[v] += case_get(x, row, i) * case_get(w, v, i);
            magnitude += fabs(case_get(x, row, i) * case_get(w, v, i));
        }
        max = fmax(max, dlogits[v]);
        worst = fmax(worst, (double)(x->cols + 2) * CASE_U32 * magnitude);
    }
    for (int64_t v = 0; v < vocab; v++)
        sum += exp(dlogits[v] - max);
    r->loss += log(sum) + max - dlogits[target];
    relative = 2.1 * worst + 100 * CASE_U32;
    r->loss_error += relative;
    for (int64_t v = 0; v < vocab; v++) {
        double p = exp(dlogits[v] - max) / sum;

        dlogits[v] = (double)SCALE * (p - (v == target));
        error[v] = (double)SCALE * p * relative + 2 * CASE_U32 * fabs(dlogits[v]);
        error[v] += 1.01 * act_rounding(x->dtype, dlogits[v]);
    }
}

static struct reference make_reference(const struct op_shape *op)
{
    size_t n = (size_t)(op->in[0].rows * op->in[1].rows);
    struct reference r = { .dlogits = calloc(n, sizeof(double)),
                           .error = calloc(n, sizeof(double)) };

    for (int64_t row = 0; row < op->in[0].rows; row++)
        reference_row(&r, op, row);
    return r;
}

static void assert_near(double got, double wanted, double tolerance, const char *what)
{
    if (!(fabs(got - wanted) <= tolerance))
        fail_msg("%s: %.9g, not %.9g +- %.2g", what, got, wanted, tolerance);
}

static void assert_dx(const struct op_shape *op, const struct reference *r)
{
    const struct tensor *w = &op->in[1], *dx = &op->out[0];

    for (int64_t row = 0; row < dx->rows; row++)
        for (int64_t col = 0; col < dx->cols; col++) {
            double value = 0, tolerance = 0x1p-140;

            for (int64_t v = 0; v < w->rows; v++) {
                double dlogit = r->dlogits[row * w->rows + v];

                value += dlogit * case_get(w, v, col);
                tolerance += (r->error[row * w->rows + v] +
                              (double)(w->rows + 2) * CASE_U32 * fabs(dlogit)) *
                             fabs(case_get(w, v, col));
            }
            tolerance += 1.02 * act_rounding(dx->dtype, fabs(value) + tolerance);
            assert_near(case_get(dx, row, col), value, tolerance, "dx");
        }
}

static void assert_dw(const struct op_shape *op, const struct reference *r)
{
    const struct tensor *x = &op->in[0], *dw = &op->out[1];

    for (int64_t v = 0; v < dw->rows; v++)
        for (int64_t col = 0; col < dw->cols; col++) {
            double value = 0, tolerance = 0x1p-140;

            for (int64_t row = 0; row < x->rows; row++) {
                double dlogit = r->dlogits[row * dw->rows + v];

                value += dlogit * case_get(x, row, col);
                tolerance += (r->error[row * dw->rows + v] +
                              (double)(2 * x->rows + 2) * CASE_U32 * fabs(dlogit)) *
                             fabs(case_get(x, row, col));
            }
            assert_near(case_get(dw, v, col), value, tolerance, "dw");
        }
}

static void check_head(struct dims dims, enum dtype act)
{
    struct op_shape op = make_op(OP_HEAD_CROSS_ENTROPY, dims, act);
    struct op_shape only_loss = make_op(OP_HEAD_LOSS, dims, act);
    struct reference r = make_reference(&op);
    struct tensor alone[3];

    for (int i = 0; i < 3; i++)
        case_poison(&op.out[i]);
    case_run(&op, 1, 1);
    assert_dx(&op, &r);
    assert_dw(&op, &r);
    assert_near(case_get(&op.out[2], 0, 0), r.loss, r.loss_error, "loss");
    for (int i = 0; i < 3; i++)
        case_copy(&alone[i], &op.out[i]);
    for (int t = 0; t < N(thread_counts); t++) {
        for (int i = 0; i < 3; i++)
            case_poison(&op.out[i]);
        case_run(&op, thread_counts[t], 1);
        for (int i = 0; i < 3; i++)
            assert_true(case_equal(&op.out[i], &alone[i]));
        case_poison(&only_loss.out[0]);
        case_run(&only_loss, thread_counts[t], 1);
        assert_true(case_equal(&only_loss.out[0], &alone[2]));
    }
    for (int i = 0; i < 3; i++)
        case_free(&alone[i]);
    free(r.dlogits);
    free(r.error);
    case_free_op(&op);
    case_free_op(&only_loss);
}

static void test_fp32(void **state)
{
    (void)state;
    for (int i = 0; i < N(all_dims); i++)
        check_head(all_dims[i], DTYPE_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    for (int i = 0; i < N(all_dims); i++)
        check_head(all_dims[i], DTYPE_BF16);
}

static void test_fp16(void **state)
{
    (void)state;
    for (int i = 0; i < N(all_dims); i++)
        check_head(all_dims[i], DTYPE_F16);
}

/* With one chunk, dw += is the finished product and one add; so is the loss. */
static void test_accumulates_finished_products(void **state)
{
    struct dims dims = { 12, 16, 64, 12 };
    struct op_shape op = make_op(OP_HEAD_CROSS_ENTROPY, dims, DTYPE_F32);
    struct tensor product, before;
    double loss;

    (void)state;
    case_run(&op, 2, 1);
    loss = case_get(&op.out[2], 0, 0);
    case_copy(&product, &op.out[1]);
    case_fill(&op.out[1], 99);
    case_copy(&before, &op.out[1]);
    case_set(&op.out[2], 0, 0, 1234.5);
    case_run(&op, 3, 0);
    for (int64_t row = 0; row < before.rows; row++)
        for (int64_t col = 0; col < before.cols; col++)
            case_set(
                &before, row, col,
                (double)((float)case_get(&before, row, col) + (float)case_get(&product, row, col)));
    assert_true(case_equal(&op.out[1], &before));
    assert_true(case_get(&op.out[2], 0, 0) == 1234.5 + loss);
    case_free(&product);
    case_free(&before);
    case_free_op(&op);
}

/* Logits of +-1e4 neither overflow nor lose the loss. */
static void test_large_logits(void **state)
{
    struct dims dims = { 2, 1, 3, 2 };
    struct op_shape op = make_op(OP_HEAD_CROSS_ENTROPY, dims, DTYPE_F32);
    static const double w[] = { 1e4, -1e4, 0 };

    (void)state;
    for (int64_t v = 0; v < 3; v++)
        case_set(&op.in[1], v, 0, w[v]);
    for (int64_t row = 0; row < 2; row++) {
        case_set(&op.in[0], row, 0, 1);
        case_set(&op.in[2], row, 0, (double)row);
    }
    case_run(&op, 1, 1);
    assert_true(case_get(&op.out[2], 0, 0) == 2e4);
    assert_true(case_get(&op.out[0], 0, 0) == 0);
    assert_true(case_get(&op.out[0], 1, 0) == 2e4 * (double)SCALE);
    case_free_op(&op);
}

/* A NaN must reach the loss, not be skipped by the search for the largest logit. */
static void test_nan_reaches_the_loss(void **state)
{
    struct dims dims = { 3, 8, 40, 2 };
    struct op_shape op = make_op(OP_HEAD_CROSS_ENTROPY, dims, DTYPE_F32);

    (void)state;
    case_set(&op.in[1], 21, 3, (double)NAN);
    case_run(&op, 2, 1);
    assert_true(isnan(case_get(&op.out[2], 0, 0)));
    case_free_op(&op);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),         cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp16),         cmocka_unit_test(test_accumulates_finished_products),
        cmocka_unit_test(test_large_logits), cmocka_unit_test(test_nan_reaches_the_loss),
    };

    return cmocka_run_group_tests_name("head", tests, NULL, NULL);
}

int main(void)
{
    return case_each_isa(run_all);
}
