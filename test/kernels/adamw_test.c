/*
 * adamw_test.c - the update: bits on every device, decays by block, states that are rounded to bf16
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/op_case.h"

typedef struct op_case *make_fn(const void *context);

/* Of every kind here each device has the CPU's bits. */
static void check_bits(make_fn *make, const void *context)
{
    struct op_case *c = make(context);

    op_case_check_cpu_bits(c, RUN_FIRST);
    op_case_destroy(c);
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

struct adamw_shape {
    int64_t rows, cols;
    enum dtype weight;
    int has_decays;
    enum dtype gradient;
};

/* The operand anew, in bf16. */
static void make_narrow(struct op_case *c, int i)
{
    struct tensor t = c->op.in[i];

    free((char *)t.data - 64);
    op_case_input(c, i, t.rows, t.cols, DTYPE_BF16, 1);
}

static struct op_case *make_adamw(const void *context)
{
    const struct adamw_shape *s = context;
    struct op_case *c = adamw_case(s->rows, s->cols, s->weight, 0);
    int64_t n_blocks = (s->rows * s->cols + OPS_NORM_BLOCK - 1) / OPS_NORM_BLOCK;

    if (s->gradient == DTYPE_BF16)
        make_narrow(c, 0);
    if (s->has_decays)
        op_case_input(c, 7, 1, n_blocks, DTYPE_F64, 0.1);
    return c;
}

/* Wide and plain, with ends of blocks inside of rows and rows' inside of blocks. */
static void test_adamw_bits(void **state)
{
    static const int64_t sizes[][2] = { { 1, 3 },     { 1, 4096 }, { 1, 4098 },
                                        { 1, 20479 }, { 300, 67 }, { 5, 4099 } };
    static const enum dtype weights[] = { DTYPE_F32, DTYPE_BF16, N_DTYPES };

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int w = 0; w < 3; w++)
            for (int k = 0; k < 4; k++) {
                struct adamw_shape shape = { sizes[s][0], sizes[s][1], weights[w], k & 1,
                                             k & 2 ? DTYPE_BF16 : DTYPE_F32 };
                struct op_case *c = make_adamw(&shape);

                check_bits(make_adamw, &shape);
                if (k == 2)
                    op_case_check(c, 5e-7);
                op_case_destroy(c);
            }
}

/* v of every magnitude, 0 and infinity among them; bias2 as beta2 and the number of updates have
 * it. */
struct roots {
    double beta2;
    int update;
};

static struct op_case *make_roots(const void *context)
{
    const struct roots *r = context;
    struct op_case *c = adamw_case(1, 4099, N_DTYPES, 0);

    c->op.attributes.beta2 = r->beta2;
    tensor_set(&c->op.in[1], 0, SCALAR_BIAS2, 1 - pow(r->beta2, r->update));
    for (int64_t i = 0; i < c->op.in[6].cols; i++) {
        double v = ldexp(1 + fabs(tensor_get(&c->op.in[6], 0, i)), (int)(i % 280) - 151);

        tensor_set(&c->op.in[0], 0, i, 0);
        tensor_set(&c->op.in[6], 0, i, i % 97 == 0 ? 0 : i % 89 == 0 ? INFINITY : v);
    }
    return c;
}

static void test_adamw_bits_of_roots(void **state)
{
    static const struct roots roots[] = { { 0.95, 1 },  { 0.95, 7 },   { 0.95, 3000 },  { 0, 1 },
                                          { 0.999, 2 }, { 0.999, 50 }, { 0.9999999, 1 } };

    (void)state;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++)
        check_bits(make_roots, &roots[i]);
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
        op_case_run(with[b], 2, RUN_AGAIN);
    }
    op_case_check(c, 5e-7);
    op_case_run(c, 3, RUN_AGAIN);
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
    op_case_run(c, 2, RUN_AGAIN);
    assert_true(tensor_get(&c->op.in[4], 2, 4) == master);
    assert_true(tensor_get(&c->op.out[0], 2, 4) == 1.5);
    op_case_destroy(c);
}

/* ---- states in bf16 ---- */

struct rounded_shape {
    int64_t rows, cols;
    enum dtype master;
    int has_tables, has_part, gradient16;
};

enum { N_PART = 3, N_UPDATE = 77 };

/* Places of blocks that are not one after the other. */
static double place_of_block(int64_t block)
{
    return (double)(ops_rng_site(rng_hash_name(block % 2 ? "one" : "other")) +
                    (uint64_t)(5 + block));
}

static struct op_case *make_rounded(const void *context)
{
    const struct rounded_shape *s = context;
    struct op_case *c = adamw_case(s->rows, s->cols, N_DTYPES, 0);
    int64_t n_blocks = (s->rows * s->cols + OPS_NORM_BLOCK - 1) / OPS_NORM_BLOCK;

    for (int i = s->master == DTYPE_BF16 ? 4 : 5; i < 7; i++)
        make_narrow(c, i);
    if (s->gradient16)
        make_narrow(c, 0);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t col = 0; col < s->cols; col++)
            tensor_set(&c->op.in[6], row, col, fabs(tensor_get(&c->op.in[6], row, col)));
    c->op.attributes.seed = 0x123456789abcdef;
    c->op.attributes.rng_site = ops_rng_site(rng_hash_name("layers.0.up.weight"));
    tensor_set(&c->op.in[1], 0, SCALAR_UPDATE, N_UPDATE);
    if (s->has_tables) {
        op_case_input(c, 7, 1, n_blocks, DTYPE_F64, 0.1);
        op_case_input(c, 8, 1, n_blocks, DTYPE_F64, 0);
        for (int64_t block = 0; block < n_blocks; block++)
            tensor_set(&c->op.in[8], 0, block, place_of_block(block));
    }
    if (s->has_part) {
        op_case_input(c, 9, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[9], 0, 0, N_PART);
    }
    return c;
}

static double round_up_by(float x, uint32_t word, int64_t element)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + (element % 2 ? word >> 16 : word & 0xffff)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* What ops.h says, element by element, one by one. */
struct rounded {
    double master, m, v;
};

static struct rounded expected(const struct op_shape *op, int64_t row, int64_t col)
{
    const struct op_attributes *a = &op->attributes;
    int64_t i = row * op->in[0].cols + col, block = i / OPS_NORM_BLOCK;
    double lr = tensor_get(&op->in[1], 0, SCALAR_LR), bias1 = tensor_get(&op->in[1], 0, 1);
    double wd = tensor_given(&op->in[7]) ? tensor_get(&op->in[7], 0, block) : a->weight_decay;
    uint64_t place = tensor_given(&op->in[8]) ? (uint64_t)tensor_get(&op->in[8], 0, block)
                                              : a->rng_site + (uint64_t)block;
    uint64_t part = tensor_given(&op->in[9]) ? N_PART : 0;
    struct rng_block noise = rng_at(a->seed, RNG_ROUNDING, N_UPDATE | part << 32,
                                    place << 11 | (uint64_t)(i % OPS_NORM_BLOCK) / 2);
    float one_minus_beta1 = (float)(1 - a->beta1), one_minus_beta2 = (float)(1 - a->beta2);
    float sqrt_bias2 = (float)sqrt(tensor_get(&op->in[1], 0, SCALAR_BIAS2));
    float g = (float)tensor_get(&op->in[0], row, col) * (float)tensor_get(&op->in[2], 0, 0);
    float p = (float)tensor_get(&op->in[4], row, col) * (float)(1 - lr * wd);
    float m = (float)tensor_get(&op->in[5], row, col), v = (float)tensor_get(&op->in[6], row, col);

    m = m + one_minus_beta1 * (g - m);
    v = v * (float)a->beta2 + one_minus_beta2 * g * g;
    p = p - (float)(lr / bias1) * (m / (sqrtf(v) / sqrt_bias2 + (float)a->eps));
    return (struct rounded){ op->in[4].dtype == DTYPE_BF16 ? round_up_by(p, noise.word[0], i) : p,
                             round_up_by(m, noise.word[1], i), round_up_by(v, noise.word[2], i) };
}

static void check_rounded(const struct rounded_shape *s)
{
    struct op_case *c = make_rounded(s), *before = make_rounded(s);

    op_case_run(c, 3, RUN_AGAIN);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t col = 0; col < s->cols; col++) {
            struct rounded wanted = expected(&before->op, row, col);

            assert_true(tensor_get(&c->op.in[4], row, col) == wanted.master);
            assert_true(tensor_get(&c->op.in[5], row, col) == wanted.m);
            assert_true(tensor_get(&c->op.in[6], row, col) == wanted.v);
        }
    op_case_destroy(c);
    op_case_destroy(before);
}

static void test_adamw_rounds(void **state)
{
    static const int64_t sizes[][2] = { { 1, 1 },     { 1, 3 },    { 1, 4096 }, { 1, 4099 },
                                        { 1, 20481 }, { 300, 67 }, { 5, 4099 } };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int k = 0; k < 8; k++) {
            struct rounded_shape s = { sizes[i][0], sizes[i][1], k & 1 ? DTYPE_BF16 : DTYPE_F32,
                                       k >> 1 & 1,  k >> 2,      (k ^ (int)i) & 1 };

            check_rounded(&s);
            check_bits(make_rounded, &s);
        }
}

/* Of threads, instruction sets and orders of threads; and near what is not rounded. */
static void test_adamw_rounds_alike(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct rounded_shape s = {
            k & 1 ? 1 : 130, k & 1 ? 40001 : 301, k & 2 ? DTYPE_BF16 : DTYPE_F32, k & 1, k & 1, 0
        };
        struct op_case *c = make_rounded(&s);

        op_case_check(c, 0x1p-7); /* a unit of the last of 8 bits */
        op_case_destroy(c);
    }
}

/* Three parameters in one bucket, each from a block's edge, have the bits that they have alone. */
static void test_rounding_is_the_parameter_s(void **state)
{
    static const char *const names[] = { "a", "b", "c" };
    static const int64_t sizes[] = { 5000, 4096, 77 }, starts[] = { 0, 8192, 12288 };
    struct rounded_shape all = { 1, 12288 + 77, DTYPE_BF16, 1, 0, 0 };
    struct op_case *bucket = make_rounded(&all);

    (void)state;
    for (int b = 0; b < 4; b++) {
        int k = b < 2 ? 0 : b - 1;

        tensor_set(&bucket->op.in[7], 0, b, 0.25);
        tensor_set(&bucket->op.in[8], 0, b,
                   (double)(ops_rng_site(rng_hash_name(names[k])) + (uint64_t)(b == 1)));
    }
    struct op_case *before = make_rounded(&all);
    op_case_run(bucket, 2, RUN_AGAIN);
    for (int k = 0; k < 3; k++) {
        /* Of another shape, too. */
        struct rounded_shape shape = {
            sizes[k] == 5000 ? 50 : 1, sizes[k] == 5000 ? 100 : sizes[k], DTYPE_BF16, 0, 0, 0
        };
        struct op_case *alone = make_rounded(&shape);

        alone->op.attributes.rng_site = ops_rng_site(rng_hash_name(names[k]));
        alone->op.attributes.weight_decay = 0.25;
        for (int i = 0; i < 7; i += i ? 1 : 4)
            for (int64_t e = 0; e < sizes[k]; e++)
                tensor_set(&alone->op.in[i], e / shape.cols, e % shape.cols,
                           tensor_get(&before->op.in[i], 0, starts[k] + e));
        op_case_run(alone, 1, RUN_AGAIN);
        for (int i = 4; i < 7; i++)
            for (int64_t e = 0; e < sizes[k]; e++)
                assert_true(tensor_get(&alone->op.in[i], e / shape.cols, e % shape.cols) ==
                            tensor_get(&bucket->op.in[i], 0, starts[k] + e));
        op_case_destroy(alone);
    }
    op_case_destroy(bucket);
    op_case_destroy(before);
}

/* Elements of 1 that decay to x, without gradients: how many are rounded up, of n. */
static int64_t count_up(struct op_case *c, double update, int parity, double *sum)
{
    int64_t n = c->op.in[4].cols, up = 0;

    tensor_set(&c->op.in[1], 0, SCALAR_UPDATE, update);
    for (int64_t i = 0; i < n; i++)
        tensor_set(&c->op.in[4], 0, i, 1);
    op_case_run(c, 3, RUN_AGAIN);
    for (int64_t i = 0; i < n; i++) {
        double x = tensor_get(&c->op.in[4], 0, i);

        *sum += x;
        if (i % 2 == parity)
            up += x == 1;
    }
    return up;
}

/* Between 1 - 2^-8 and 1: the mean is x, over elements and over updates, within 5 deviations. */
static void test_rounding_is_unbiased(void **state)
{
    static const double decays[] = { 0.1, 0.3, 0.0001 };
    struct rounded_shape s = { 1, 30000, DTYPE_BF16, 0, 0, 0 };

    (void)state;
    for (int d = 0; d < 3; d++) {
        struct op_case *c = make_rounded(&s);
        double lr = tensor_get(&c->op.in[1], 0, SCALAR_LR), sum = 0;
        double x = (double)(float)(1 - lr * decays[d]), share = 1 - (1 - x) * 256;
        double deviation = sqrt(share * (1 - share) / (double)s.cols);
        int64_t even, odd;

        c->op.attributes.weight_decay = decays[d];
        for (int i = 0; i < 7; i += i ? 1 : 5)
            for (int64_t e = 0; e < s.cols; e++)
                tensor_set(&c->op.in[i], 0, e, 0);
        even = count_up(c, 1, 0, &sum);
        odd = count_up(c, 2, 1, &sum);
        assert_true(fabs(sum / (2 * (double)s.cols) - x) <= 5 * deviation / 256);
        assert_true(fabs(2 * (double)even / (double)s.cols - share) <= 8 * deviation);
        assert_true(fabs(2 * (double)odd / (double)s.cols - share) <= 8 * deviation);
        for (int64_t e = 0; e < s.cols; e++) /* what is 0 stays so */
            assert_true(tensor_get(&c->op.in[5], 0, e) == 0 && tensor_get(&c->op.in[6], 0, e) == 0);
        op_case_destroy(c);
    }
}

/* One element, over updates: each has numbers of its own. */
static void test_rounding_changes_with_the_update(void **state)
{
    enum { N = 400 };
    struct rounded_shape s = { 1, 2, DTYPE_BF16, 0, 0, 0 };
    struct op_case *c = make_rounded(&s);
    double lr = tensor_get(&c->op.in[1], 0, SCALAR_LR), sum = 0;
    double x = (double)(float)(1 - lr * 0.1), share = 1 - (1 - x) * 256;
    int64_t up = 0;

    (void)state;
    for (int i = 0; i < 7; i += i ? 1 : 5)
        for (int64_t e = 0; e < s.cols; e++)
            tensor_set(&c->op.in[i], 0, e, 0);
    for (int update = 1; update <= N; update++)
        up += count_up(c, update, 0, &sum);
    assert_true(fabs((double)up / N - share) <= 5 * sqrt(share * (1 - share) / N));
    op_case_destroy(c);
}

static void test_rounding_keeps_what_is_not_finite(void **state)
{
    struct rounded_shape s = { 1, 64, DTYPE_BF16, 0, 0, 0 };
    struct op_case *c = make_rounded(&s);
    const uint32_t nan = 0x7fffffff; /* one more, and it were none */

    (void)state;
    for (int64_t i = 0; i < s.cols; i++)
        if (i % 2)
            memcpy((float *)c->op.in[0].data + i, &nan, sizeof nan);
        else
            tensor_set(&c->op.in[0], 0, i, INFINITY);
    op_case_run(c, 1, RUN_AGAIN);
    for (int64_t i = 0; i < s.cols; i++) {
        assert_true(i % 2 ? isnan(tensor_get(&c->op.in[5], 0, i))
                          : isinf(tensor_get(&c->op.in[5], 0, i)));
        assert_true(isnan(tensor_get(&c->op.in[4], 0, i)));
    }
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_bits),
        cmocka_unit_test(test_adamw_bits_of_roots),
        cmocka_unit_test(test_adamw_rounds),
        cmocka_unit_test(test_adamw_rounds_alike),
        cmocka_unit_test(test_rounding_is_the_parameter_s),
        cmocka_unit_test(test_rounding_is_unbiased),
        cmocka_unit_test(test_rounding_changes_with_the_update),
        cmocka_unit_test(test_rounding_keeps_what_is_not_finite),
        cmocka_unit_test(test_adamw_skips),
        cmocka_unit_test(test_adamw_of_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
