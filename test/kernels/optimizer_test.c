#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

static void test_sumsq(void **state)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 1, 4096 }, { 3, 4099 }, { 900, 33 } };

    (void)state;
    for (int s = 0; s < 4; s++)
        for (int dense = 0; dense < 2; dense++) {
            struct op_case *c = op_case_create(OP_SUMSQ, &(struct op_attributes){ 0 });
            int64_t n = sizes[s][0] * sizes[s][1];

            c->dense = dense;
            op_case_input(c, 0, sizes[s][0], sizes[s][1], DTYPE_F32, 1);
            op_case_output(c, 0, 1, (n + OPS_NORM_BLOCK - 1) / OPS_NORM_BLOCK, DTYPE_F64);
            op_case_check(c, 1e-14);
            op_case_destroy(c);
        }
}

/* The same bits however the elements are laid out in rows: what sharding relies on. */
static void test_sumsq_is_of_the_logical_tensor(void **state)
{
    struct op_case *flat = op_case_create(OP_SUMSQ, &(struct op_attributes){ 0 });
    struct op_case *rows = op_case_create(OP_SUMSQ, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(flat, 0, 1, 9000, DTYPE_F32, 1);
    op_case_input(rows, 0, 72, 125, DTYPE_F32, 1);
    op_case_output(flat, 0, 1, 3, DTYPE_F64);
    op_case_output(rows, 0, 1, 3, DTYPE_F64);
    op_case_run(flat, 1, 1);
    op_case_run(rows, 2, 1);
    assert_memory_equal(flat->op.out[0].data, rows->op.out[0].data, 3 * sizeof(double));
    op_case_destroy(flat);
    op_case_destroy(rows);
}

/* Runs of x, or of what an order names; the second and the last are empty. */
static void test_sum_runs(void **state)
{
    static const int ends[] = { 3, 3, 8, 9, 9 };

    (void)state;
    for (int with_order = 0; with_order < 2; with_order++) {
        struct op_case *c = op_case_create(OP_SUM_RUNS, &(struct op_attributes){ 0 });

        op_case_input(c, 0, 1, 12, DTYPE_F64, 1);
        op_case_input(c, 1, 1, 5, DTYPE_I32, 0);
        for (int k = 0; k < 5; k++)
            tensor_set(&c->op.in[1], 0, k, ends[k]);
        if (with_order) {
            op_case_input(c, 2, 1, 9, DTYPE_I32, 0);
            for (int i = 0; i < 9; i++)
                tensor_set(&c->op.in[2], 0, i, i * 7 % 12);
        }
        op_case_output(c, 0, 1, 5, DTYPE_F64);
        op_case_check(c, 0); /* one after the other, as the reference */
        op_case_destroy(c);
    }
}

static struct op_case *norm_case(double clip, int64_t n)
{
    struct op_attributes a = { .clip = clip };
    struct op_case *c = op_case_create(OP_GRADIENT_NORM, &a);

    op_case_input(c, 0, 1, n, DTYPE_F64, 0);
    op_case_output(c, 0, 1, 1, DTYPE_F64);
    op_case_output(c, 1, 1, 1, DTYPE_F32);
    op_case_output(c, 2, 1, 1, DTYPE_I32);
    for (int64_t i = 0; i < n; i++)
        tensor_set(&c->op.in[0], 0, i, 1.0 / (double)(i + 1));
    return c;
}

static void test_gradient_norm(void **state)
{
    static const double clips[] = { 0, 0.5, 100 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct op_case *c = norm_case(clips[i], 1000);

        op_case_check(c, 1e-7);
        assert_int_equal(*(const int *)c->op.out[2].data, -1); /* restored: still poison */
        op_case_destroy(c);
    }
}

/* In another order than the sums', some left out: the bits of the same sums in that order. */
static void test_gradient_norm_in_order(void **state)
{
    static const int order[] = { 5, 0, 999, 3, 700, 41 };
    struct op_case *all = norm_case(0.5, 1000), *few = norm_case(0.5, 6);

    (void)state;
    op_case_input(all, 1, 1, 6, DTYPE_I32, 0);
    for (int i = 0; i < 6; i++) {
        tensor_set(&all->op.in[1], 0, i, order[i]);
        tensor_set(&few->op.in[0], 0, i, tensor_get(&all->op.in[0], 0, order[i]));
    }
    op_case_check(all, 1e-7);
    op_case_run(all, 2, 1);
    op_case_run(few, 1, 1);
    assert_memory_equal(all->op.out[0].data, few->op.out[0].data, sizeof(double));
    assert_memory_equal(all->op.out[1].data, few->op.out[1].data, sizeof(float));
    op_case_destroy(all);
    op_case_destroy(few);
}

/* Gradients that are a power of two too large: norm and factor, by their bits. */
static void test_gradient_norm_of_scaled(void **state)
{
    static const double clips[] = { 0, 0.5, 100 };
    static const double scales[] = { 1, 65536, 0x1p30, 0.25 };

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int s = 0; s < 4; s++) {
            struct op_case *plain = norm_case(clips[i], 1000), *scaled = norm_case(clips[i], 1000);

            for (int64_t k = 0; k < 1000; k++)
                tensor_set(&scaled->op.in[0], 0, k,
                           tensor_get(&plain->op.in[0], 0, k) * scales[s] * scales[s]);
            op_case_input(scaled, 2, 1, 1, DTYPE_F32, 0);
            tensor_set(&scaled->op.in[2], 0, 0, scales[s]);
            op_case_check(scaled, 1e-7);
            op_case_run(plain, 1, 1);
            op_case_run(scaled, 1, 1);
            assert_true(tensor_get(&scaled->op.out[0], 0, 0) ==
                        tensor_get(&plain->op.out[0], 0, 0));
            assert_true(tensor_get(&scaled->op.out[1], 0, 0) * scales[s] ==
                        tensor_get(&plain->op.out[1], 0, 0));
            op_case_destroy(plain);
            op_case_destroy(scaled);
        }
}

static void test_non_finite_skips(void **state)
{
    static const double bad[] = { INFINITY, NAN };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct op_case *c = norm_case(1, 3);

        tensor_set(&c->op.in[0], 0, 1, bad[i]);
        op_case_run(c, 1, 1);
        assert_int_equal(*(const int *)c->op.out[2].data, 1);
        op_case_destroy(c);
    }
}

static struct op_case *adamw_case(int64_t rows, int64_t cols, enum dtype weight, int skip)
{
    struct op_attributes a = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1 };
    struct op_case *c = op_case_create(OP_ADAMW, &a);

    op_case_input(c, 0, rows, cols, DTYPE_F32, 1);
    op_case_input(c, 1, 1, OPS_N_SCALARS, DTYPE_F32, 1);
    op_case_input(c, 2, 1, 1, DTYPE_F32, 1);
    op_case_input(c, 3, 1, 1, DTYPE_I32, 0);
    for (int i = 4; i < 7; i++)
        op_case_input(c, i, rows, cols, DTYPE_F32, 1);
    if (weight != N_DTYPES)
        op_case_output(c, 0, rows, cols, weight);
    tensor_set(&c->op.in[1], 0, SCALAR_LR, 0.01);
    tensor_set(&c->op.in[1], 0, SCALAR_BIAS1, 1 - pow(0.9, 5));
    tensor_set(&c->op.in[1], 0, SCALAR_BIAS2, 1 - pow(0.95, 5));
    tensor_set(&c->op.in[2], 0, 0, 0.7);
    tensor_set(&c->op.in[3], 0, 0, skip);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++)
            tensor_set(&c->op.in[6], row, col, fabs(tensor_get(&c->op.in[6], row, col)));
    return c;
}

static void test_adamw(void **state)
{
    static const enum dtype weights[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, N_DTYPES };
    static const int64_t sizes[][2] = { { 1, 1 }, { 1, 40001 }, { 300, 67 } };

    (void)state;
    for (int w = 0; w < 4; w++)
        for (int s = 0; s < 3; s++) {
            struct op_case *c = adamw_case(sizes[s][0], sizes[s][1], weights[w], 0);

            op_case_check(c, 5e-7);
            op_case_destroy(c);
        }
}

/* A decay a block has the bits of calls by block that each have it as their attribute. */
static void test_adamw_of_blocks(void **state)
{
    static const double decays[] = { 0.1, 0, 0.3 };
    int64_t n = 3 * OPS_NORM_BLOCK - 77;
    struct op_case *c = adamw_case(1, n, DTYPE_BF16, 0), *with[3];

    (void)state;
    op_case_input(c, 7, 1, 3, DTYPE_F64, 0);
    for (int b = 0; b < 3; b++) {
        tensor_set(&c->op.in[7], 0, b, decays[b]);
        with[b] = adamw_case(1, n, DTYPE_BF16, 0);
        with[b]->op.attributes.weight_decay = decays[b];
        op_case_run(with[b], 2, 0);
    }
    op_case_check(c, 5e-7);
    op_case_run(c, 3, 0);
    for (int64_t i = 0; i < n; i++) {
        const struct op_shape *other = &with[i / OPS_NORM_BLOCK]->op;

        assert_true(tensor_get(&c->op.in[4], 0, i) == tensor_get(&other->in[4], 0, i));
        assert_true(tensor_get(&c->op.in[5], 0, i) == tensor_get(&other->in[5], 0, i));
        assert_true(tensor_get(&c->op.in[6], 0, i) == tensor_get(&other->in[6], 0, i));
        assert_true(tensor_get(&c->op.out[0], 0, i) == tensor_get(&other->out[0], 0, i));
    }
    op_case_destroy(c);
    for (int b = 0; b < 3; b++)
        op_case_destroy(with[b]);
}

static void test_adamw_skips(void **state)
{
    struct op_case *c = adamw_case(3, 5, DTYPE_BF16, 1);
    double master = tensor_get(&c->op.in[4], 2, 4);

    (void)state;
    tensor_set(&c->op.in[0], 2, 4, NAN);
    tensor_set(&c->op.out[0], 2, 4, 1.5);
    op_case_run(c, 2, 0);
    assert_true(tensor_get(&c->op.in[4], 2, 4) == master);
    assert_true(tensor_get(&c->op.out[0], 2, 4) == 1.5);
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sumsq),
        cmocka_unit_test(test_sumsq_is_of_the_logical_tensor),
        cmocka_unit_test(test_sum_runs),
        cmocka_unit_test(test_gradient_norm),
        cmocka_unit_test(test_gradient_norm_of_scaled),
        cmocka_unit_test(test_non_finite_skips),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_skips),
        cmocka_unit_test(test_adamw_of_blocks),
        cmocka_unit_test(test_gradient_norm_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
