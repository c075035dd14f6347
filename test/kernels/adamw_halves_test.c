/*
 * adamw_halves_test.c - masters in two operands have the bits of masters in one, on every device
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/halves.h"
#include "support/op_case.h"

struct halves_shape {
    int64_t rows, cols;
    int is_split, has_decays, gradient16, skip;
};

static uint16_t *word_at(const struct tensor *t, int64_t row, int64_t col)
{
    return (uint16_t *)t->data + row * t->stride + col;
}

/* The fp32 operand of the master in two words, which are in the row's places. */
static void split(struct op_case *c)
{
    struct tensor master = c->op.in[OPTIMIZER_MASTER];

    op_case_input(c, OPTIMIZER_MASTER, master.rows, master.cols, DTYPE_BF16, 0);
    op_case_input(c, OPTIMIZER_LOW, master.rows, master.cols, DTYPE_I16, 0);
    for (int64_t row = 0; row < master.rows; row++)
        for (int64_t col = 0; col < master.cols; col++) {
            float x = (float)tensor_get(&master, row, col);

            *word_at(&c->op.in[OPTIMIZER_MASTER], row, col) = halves_upper(x);
            *word_at(&c->op.in[OPTIMIZER_LOW], row, col) = halves_lower(x);
        }
    free((char *)master.data - 64);
}

/* Numbers of which many are halfway between two of bf16 after an update without gradients. */
static void set_masters(struct op_case *c)
{
    struct tensor *master = &c->op.in[OPTIMIZER_MASTER];

    for (int64_t row = 0; row < master->rows; row++)
        for (int64_t col = 0; col < master->cols; col++) {
            uint32_t at = (uint32_t)(row * master->cols + col);
            uint32_t bits = 0x3f000000u + at * 2654435761u % 0x800000u;
            float x;

            if (at % 4 == 0)
                bits = (bits & 0xffff0000u) | 0x8000u;
            bits |= at % 3 ? 0 : 0x80000000u;
            memcpy(&x, &bits, sizeof x);
            tensor_set(master, row, col, (double)x);
            if (at % 2 == 0) {
                tensor_set(&c->op.in[OPTIMIZER_GRADIENT], row, col, 0);
                tensor_set(&c->op.in[OPTIMIZER_M], row, col, 0);
            }
        }
}

static struct op_case *make(const void *context)
{
    const struct halves_shape *s = context;
    struct op_attributes a = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .half_away = 1 };
    struct op_case *c = op_case_create(OP_ADAMW, &a);
    int64_t n_blocks = (s->rows * s->cols + OPS_NORM_BLOCK - 1) / OPS_NORM_BLOCK;

    op_case_input(c, OPTIMIZER_GRADIENT, s->rows, s->cols, s->gradient16 ? DTYPE_BF16 : DTYPE_F32,
                  1);
    op_case_input(c, OPTIMIZER_SCALARS, 1, OPS_N_SCALARS, DTYPE_F32, 1);
    op_case_input(c, OPTIMIZER_CLIP_FACTOR, 1, 1, DTYPE_F32, 1);
    op_case_input(c, OPTIMIZER_SKIP_UPDATE, 1, 1, DTYPE_I32, 0);
    for (int i = OPTIMIZER_MASTER; i <= OPTIMIZER_V; i++)
        op_case_input(c, i, s->rows, s->cols, DTYPE_F32, 1);
    if (s->has_decays)
        op_case_input(c, OPTIMIZER_DECAY, 1, n_blocks, DTYPE_F64, 0.1);
    tensor_set(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_LR, 0.01);
    tensor_set(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_BIAS1, 1 - pow(0.9, 5));
    tensor_set(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_BIAS2, 1 - pow(0.95, 5));
    tensor_set(&c->op.in[OPTIMIZER_CLIP_FACTOR], 0, 0, 0.7);
    tensor_set(&c->op.in[OPTIMIZER_SKIP_UPDATE], 0, 0, s->skip);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t col = 0; col < s->cols; col++)
            tensor_set(&c->op.in[OPTIMIZER_V], row, col,
                       fabs(tensor_get(&c->op.in[OPTIMIZER_V], row, col)));
    set_masters(c);
    if (s->is_split)
        split(c);
    else
        op_case_output(c, OPTIMIZER_WEIGHT, s->rows, s->cols, DTYPE_BF16);
    return c;
}

static void check_alike(const struct op_shape *whole, const struct op_shape *halves, int64_t row,
                        int64_t col)
{
    uint16_t upper = *word_at(&halves->in[OPTIMIZER_MASTER], row, col);
    float x = halves_join(upper, *word_at(&halves->in[OPTIMIZER_LOW], row, col));

    assert_true((double)x == tensor_get(&whole->in[OPTIMIZER_MASTER], row, col));
    assert_int_equal(upper, *word_at(&whole->out[OPTIMIZER_WEIGHT], row, col));
    assert_int_equal(upper, halves_upper(x));
    for (int i = OPTIMIZER_M; i <= OPTIMIZER_V; i++)
        assert_true(tensor_get(&whole->in[i], row, col) == tensor_get(&halves->in[i], row, col));
}

static void check_cpu_bits(const struct halves_shape *s)
{
    struct op_case *c = make(s);

    op_case_check_cpu_bits(c, RUN_FIRST);
    op_case_destroy(c);
}

/* Wide and plain, with ends of blocks inside of rows and rows' inside of blocks. */
static void test_split_is_whole(void **state)
{
    static const int64_t sizes[][2] = { { 1, 1 },     { 1, 3 },    { 1, 4096 }, { 1, 4098 },
                                        { 1, 20479 }, { 300, 67 }, { 5, 4099 } };

    (void)state;
    for (size_t k = 0; k < 4 * sizeof sizes / sizeof *sizes; k++) {
        struct halves_shape s = { sizes[k / 4][0], sizes[k / 4][1], 0, k & 1, k >> 1 & 1, 0 };
        struct op_case *whole = make(&s);

        check_cpu_bits(&s);
        s.is_split = 1;
        check_cpu_bits(&s);
        struct op_case *halves = make(&s);
        for (int turn = 0; turn < 2; turn++) {
            op_case_run(whole, 2, RUN_AGAIN);
            op_case_run(halves, 3, RUN_AGAIN);
            for (int64_t row = 0; row < s.rows; row++)
                for (int64_t col = 0; col < s.cols; col++)
                    check_alike(&whole->op, &halves->op, row, col);
        }
        op_case_destroy(whole);
        op_case_destroy(halves);
    }
}

/* Without gradients and decay a master stays, and its weight is rounded away from zero: to even it
 * would differ. */
static void test_halves_go_away_from_zero(void **state)
{
    struct halves_shape s = { 1, 4096, 0, 0, 0, 0 };
    struct op_case *c = make(&s);
    int n_unlike = 0;

    (void)state;
    op_case_run(c, 2, RUN_AGAIN);
    for (int64_t i = 0; i < s.cols; i++) {
        float x = (float)tensor_get(&c->op.in[OPTIMIZER_MASTER], 0, i);

        n_unlike += *word_at(&c->op.out[OPTIMIZER_WEIGHT], 0, i) != bf16_from_float(x);
    }
    assert_in_range(n_unlike, 400, 600); /* half of a quarter */
    op_case_destroy(c);
}

static void test_skips(void **state)
{
    struct halves_shape s = { 3, 5, 1, 0, 0, 1 };
    struct op_case *c = make(&s), *before = make(&s);

    (void)state;
    tensor_set(&c->op.in[OPTIMIZER_GRADIENT], 2, 4, NAN);
    op_case_run(c, 2, RUN_AGAIN);
    for (int64_t row = 0; row < s.rows; row++)
        for (int64_t col = 0; col < s.cols; col++)
            for (int i = OPTIMIZER_MASTER; i <= OPTIMIZER_LOW;
                 i += OPTIMIZER_LOW - OPTIMIZER_MASTER)
                assert_int_equal(*word_at(&c->op.in[i], row, col),
                                 *word_at(&before->op.in[i], row, col));
    op_case_destroy(c);
    op_case_destroy(before);
}

/* What an update makes of a gradient that is none stays visible in the weight. */
static void test_nan_stays(void **state)
{
    struct halves_shape s = { 1, 64, 1, 0, 0, 0 };
    struct op_case *c = make(&s);
    const uint32_t nan = 0x7fffffff;

    (void)state;
    for (int64_t i = 0; i < s.cols; i++)
        if (i % 2)
            memcpy((float *)c->op.in[OPTIMIZER_GRADIENT].data + i, &nan, sizeof nan);
        else
            tensor_set(&c->op.in[OPTIMIZER_GRADIENT], 0, i, INFINITY);
    op_case_run(c, 1, RUN_AGAIN);
    for (int64_t i = 0; i < s.cols; i++)
        assert_true(isnan(tensor_get(&c->op.in[OPTIMIZER_MASTER], 0, i)));
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_is_whole),
        cmocka_unit_test(test_halves_go_away_from_zero),
        cmocka_unit_test(test_skips),
        cmocka_unit_test(test_nan_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
