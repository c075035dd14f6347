/*
 * optimizer_test.c - the norm of gradients: sums of squares by block, sums of runs, the clip factor
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

typedef struct op_case *make_fn(const void *context);

/* Of every kind here each device has the CPU's bits. */
static void check_bits(make_fn *make, const void *context)
{
    struct op_case *c = make(context);

    op_case_check_cpu_bits(c, RUN_FIRST);
    op_case_destroy(c);
}

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
    op_case_run(flat, 1, RUN_FIRST);
    op_case_run(rows, 2, RUN_FIRST);
    assert_memory_equal(flat->op.out[0].data, rows->op.out[0].data, 3 * sizeof(double));
    op_case_destroy(flat);
    op_case_destroy(rows);
}

struct sumsq_case {
    int64_t rows, cols;
    int dense;
    enum dtype dtype;
    int skew;
};

static struct op_case *make_sumsq(const void *context)
{
    const struct sumsq_case *s = context;
    struct op_case *c = op_case_create(OP_SUMSQ, &(struct op_attributes){ 0 });
    int64_t n = s->rows * s->cols;

    c->dense = s->dense;
    c->skew = s->skew;
    op_case_input(c, 0, s->rows, s->cols, s->dtype, 1);
    c->skew = 0;
    op_case_output(c, 0, 1, (n + OPS_NORM_BLOCK - 1) / OPS_NORM_BLOCK, DTYPE_F64);
    return c;
}

static void test_sumsq_bits(void **state)
{
    static const struct sumsq_case cases[] = {
        { 1, 1, 1, DTYPE_F32, 0 },      { 1, 17, 1, DTYPE_F32, 0 },
        { 1, 4095, 1, DTYPE_F32, 0 },   { 1, 4096, 1, DTYPE_F32, 0 },
        { 1, 100000, 1, DTYPE_F32, 0 }, { 3, 4099, 1, DTYPE_F32, 0 },
        { 3, 4099, 0, DTYPE_F32, 0 },   { 2000, 7, 0, DTYPE_F32, 0 },
        { 100, 256, 0, DTYPE_F32, 0 },  { 65, 1000, 0, DTYPE_F32, 0 },
        { 1, 512, 1, DTYPE_F32, 0 },    { 1, 511, 1, DTYPE_F32, 0 },
        { 1, 8705, 1, DTYPE_F32, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct sumsq_case s = cases[i];
            struct op_case *c;

            s.dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
            check_bits(make_sumsq, &s);
            c = make_sumsq(&s);
            op_case_check(c, 1e-14);
            op_case_destroy(c);
        }
}

/* Where the elements lie changes no bit: shards begin anywhere. */
static void test_sumsq_at_any_address(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int skew = bf16 ? 2 : 4; skew <= 16; skew *= 2) {
            struct sumsq_case s = { 1, 10000, 1, bf16 ? DTYPE_BF16 : DTYPE_F32, skew };

            check_bits(make_sumsq, &s);
        }
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

/* One run longer than what is brought at once, one that ends where that does, one of one. */
static struct op_case *make_runs(const void *context)
{
    static const int ends[] = { 5000, 5000, 7048, 7049, 11145 };
    const int *with_order = context;
    struct op_case *c = op_case_create(OP_SUM_RUNS, &(struct op_attributes){ 0 });

    op_case_input(c, 0, 1, 12000, DTYPE_F64, 1);
    op_case_input(c, 1, 1, 5, DTYPE_I32, 0);
    for (int k = 0; k < 5; k++)
        tensor_set(&c->op.in[1], 0, k, ends[k]);
    if (*with_order) {
        op_case_input(c, 2, 1, 11145, DTYPE_I32, 0);
        for (int i = 0; i < 11145; i++)
            tensor_set(&c->op.in[2], 0, i, i * 7 % 12000);
    }
    op_case_output(c, 0, 1, 5, DTYPE_F64);
    return c;
}

static void test_sum_runs_bits(void **state)
{
    (void)state;
    for (int with_order = 0; with_order < 2; with_order++)
        check_bits(make_runs, &with_order);
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
    op_case_run(all, 2, RUN_FIRST);
    op_case_run(few, 1, RUN_FIRST);
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
            op_case_run(plain, 1, RUN_FIRST);
            op_case_run(scaled, 1, RUN_FIRST);
            assert_true(tensor_get(&scaled->op.out[0], 0, 0) ==
                        tensor_get(&plain->op.out[0], 0, 0));
            assert_true(tensor_get(&scaled->op.out[1], 0, 0) * scales[s] ==
                        tensor_get(&plain->op.out[1], 0, 0));
            op_case_destroy(plain);
            op_case_destroy(scaled);
        }
}

static struct op_case *make_norm(const void *context)
{
    const int64_t *n = context;
    struct op_case *c = norm_case(0.3, *n);

    if (*n == 2049) {
        op_case_input(c, 1, 1, 2000, DTYPE_I32, 0);
        for (int i = 0; i < 2000; i++)
            tensor_set(&c->op.in[1], 0, i, (i * 1001) % 2049);
    }
    return c;
}

static void test_gradient_norm_bits(void **state)
{
    static const int64_t sizes[] = { 1, 31, 2048, 2049, 9999 };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_bits(make_norm, &sizes[i]);
}

static void test_non_finite_skips(void **state)
{
    static const double bad[] = { INFINITY, NAN };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct op_case *c = norm_case(1, 3);

        tensor_set(&c->op.in[0], 0, 1, bad[i]);
        op_case_run(c, 1, RUN_FIRST);
        assert_int_equal(*(const int *)c->op.out[2].data, 1);
        op_case_destroy(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sumsq),
        cmocka_unit_test(test_sumsq_is_of_the_logical_tensor),
        cmocka_unit_test(test_sumsq_bits),
        cmocka_unit_test(test_sumsq_at_any_address),
        cmocka_unit_test(test_sum_runs),
        cmocka_unit_test(test_sum_runs_bits),
        cmocka_unit_test(test_gradient_norm),
        cmocka_unit_test(test_gradient_norm_of_scaled),
        cmocka_unit_test(test_gradient_norm_bits),
        cmocka_unit_test(test_non_finite_skips),
        cmocka_unit_test(test_gradient_norm_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
