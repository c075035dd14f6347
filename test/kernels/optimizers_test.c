/*
 * optimizers_test.c - Lion, SGD, Cadam, and states of 8 bits: what ops.h says element by element,
 * with the CPU's bits on every device; codes; blocks that know nothing of one another
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/halves.h"
#include "base/num.h"
#include "base/rng.h"
#include "ops/optimizers.h"
#include "ops/state_codes.h"
#include "support/op_case.h"

enum { N_UPDATE = 77, N_PART = 3 };

static const float signed_values[] = {
#include "ops/state_codes_signed.inc"
};
static const float unsigned_values[] = {
#include "ops/state_codes_unsigned.inc"
};

struct shape {
    enum op_kind kind;
    enum dtype state; /* of m and v */
    int64_t rows, cols;
    enum dtype gradient;
    bool has_weight, is_split, is_narrow; /* is_split: master in two words; is_narrow: of bf16 */
    bool has_tables;
    int variant; /* of sgd: 1: Nesterov's */
};

/* ---- cases ---- */

static void set_all(const struct tensor *t, double (*value)(int64_t i))
{
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        tensor_set(t, i / t->cols, i % t->cols, value(i));
}

static double magnitude_of(int64_t i)
{
    return 0.25 + (double)(i * 37 % 101) / 60;
}

static double code_of(int64_t i)
{
    return (double)(i * 89 % 256);
}

static double word_of(int64_t i)
{
    return (double)(int16_t)(uint16_t)(i * 40503);
}

static void add_state(struct op_case *c, int place, int scale, const struct shape *s)
{
    op_case_input(c, place, s->rows, s->cols, s->state, s->state == DTYPE_F16 ? 2000 : 1);
    if (s->state == DTYPE_U8)
        set_all(&c->op.in[place], code_of);
    else if (place == OPTIMIZER_V)
        for (int64_t i = 0; i < s->rows * s->cols; i++)
            tensor_set(&c->op.in[place], i / s->cols, i % s->cols,
                       fabs(tensor_get(&c->op.in[place], i / s->cols, i % s->cols)));
    if (!optimizer_is_scaled(s->state))
        return;
    op_case_input(c, scale, 1, ceil_div(s->rows * s->cols, OPS_STATE_BLOCK), DTYPE_F32, 1);
    set_all(&c->op.in[scale], magnitude_of);
    for (int64_t i = 0; i < c->op.in[scale].cols && s->state == DTYPE_F16; i++)
        tensor_set(&c->op.in[scale], 0, i, magnitude_of(i) / 4000);
}

static void add_tables(struct op_case *c, const struct shape *s)
{
    int64_t n = ceil_div(s->rows * s->cols, OPS_NORM_BLOCK);

    op_case_input(c, OPTIMIZER_DECAY, 1, n, DTYPE_F64, 0.1);
    op_case_input(c, OPTIMIZER_RNG_SITE, 1, n, DTYPE_F64, 0);
    for (int64_t block = 0; block < n; block++)
        tensor_set(&c->op.in[OPTIMIZER_RNG_SITE], 0, block,
                   (double)(ops_rng_site(rng_hash_name("one")) + (uint64_t)(5 + 2 * block)));
}

static struct op_case *make(const void *context)
{
    const struct shape *s = context;
    struct op_attributes a = { .beta1 = 0.9,
                               .beta2 = s->kind == OP_ADAMW || s->kind == OP_LION ? 0.97 : 0,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .nesterov = s->variant,
                               .seed = 0x123456789abcdef,
                               .rng_site = ops_rng_site(rng_hash_name("layers.0.up.weight")) };
    struct op_case *c = op_case_create(s->kind, &a);

    op_case_input(c, OPTIMIZER_GRADIENT, s->rows, s->cols, s->gradient, 1);
    op_case_input(c, OPTIMIZER_SCALARS, 1, OPS_N_SCALARS, DTYPE_F32, 1);
    op_case_input(c, OPTIMIZER_CLIP_FACTOR, 1, 1, DTYPE_F32, 1);
    op_case_input(c, OPTIMIZER_SKIP_UPDATE, 1, 1, DTYPE_I32, 0);
    op_case_input(c, OPTIMIZER_MASTER, s->rows, s->cols,
                  s->is_split || s->is_narrow ? DTYPE_BF16 : DTYPE_F32, 1);
    add_state(c, OPTIMIZER_M, OPTIMIZER_M_SCALE, s);
    if (s->kind == OP_ADAMW)
        add_state(c, OPTIMIZER_V, OPTIMIZER_V_SCALE, s);
    if (s->has_tables)
        add_tables(c, s);
    if (s->is_narrow) {
        op_case_input(c, OPTIMIZER_PART, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[OPTIMIZER_PART], 0, 0, N_PART);
    }
    if (s->is_split) {
        op_case_input(c, OPTIMIZER_LOW, s->rows, s->cols, DTYPE_I16, 1);
        set_all(&c->op.in[OPTIMIZER_LOW], word_of);
    }
    if (s->has_weight)
        op_case_output(c, OPTIMIZER_WEIGHT, s->rows, s->cols, DTYPE_BF16);
    tensor_set(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_LR, 0.01);
    tensor_set(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_BIAS1, 1 - pow(0.9, 5));
    tensor_set(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_BIAS2, 1 - pow(0.97, 5));
    tensor_set(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_UPDATE, N_UPDATE);
    tensor_set(&c->op.in[OPTIMIZER_CLIP_FACTOR], 0, 0, 0.7);
    return c;
}

/* ---- what ops.h says, one element after the other ---- */

struct expected {
    float *p, *m, *v; /* as they are computed, dense */
    int64_t n, cols;
};

static float value_of(double code, bool is_signed)
{
    int k = (int)code;

    if (!is_signed)
        return unsigned_values[k];
    return k < STATE_CODES_SIGNED ? signed_values[k] : -signed_values[256 - k];
}

static float state_at(const struct op_shape *op, int place, int scale, int64_t i)
{
    const struct tensor *t = &op->in[place];
    double x = tensor_get(t, i / t->cols, i % t->cols);
    float value = t->dtype == DTYPE_U8 ? value_of(x, place == OPTIMIZER_M) : (float)x;

    return optimizer_is_scaled(t->dtype)
               ? value * (float)tensor_get(&op->in[scale], 0, i / OPS_STATE_BLOCK)
               : value;
}

static float master_at(const struct op_shape *op, int64_t row, int64_t col)
{
    const struct tensor *t = &op->in[OPTIMIZER_MASTER], *low = &op->in[OPTIMIZER_LOW];
    float x = (float)tensor_get(t, row, col);
    uint32_t bits;

    if (!tensor_given(low))
        return x;
    memcpy(&bits, &x, sizeof bits);
    return halves_join((uint16_t)(bits >> 16), (uint16_t)(int16_t)tensor_get(low, row, col));
}

static float step_of(float x, float lr)
{
    return x > 0 ? lr : x < 0 ? -lr : 0;
}

static void expect_one(const struct op_shape *op, struct expected *e, int64_t i)
{
    const struct op_attributes *a = &op->attributes;
    int64_t row = i / e->cols, col = i % e->cols;
    double lr = tensor_get(&op->in[OPTIMIZER_SCALARS], 0, SCALAR_LR);
    double wd = tensor_given(&op->in[OPTIMIZER_DECAY])
                    ? tensor_get(&op->in[OPTIMIZER_DECAY], 0, i / OPS_NORM_BLOCK)
                    : a->weight_decay;
    float beta1 = (float)a->beta1, beta2 = (float)a->beta2, rest1 = (float)(1 - a->beta1);
    float rest2 = (float)(1 - a->beta2), step = (float)lr, decay = (float)(1 - lr * wd);
    float g = (float)tensor_get(&op->in[OPTIMIZER_GRADIENT], row, col) *
              (float)tensor_get(&op->in[OPTIMIZER_CLIP_FACTOR], 0, 0);
    float p = master_at(op, row, col), m = state_at(op, OPTIMIZER_M, OPTIMIZER_M_SCALE, i);

    switch (op->kind) {
    case OP_LION:
        e->p[i] = p * decay - step_of(m * beta1 + rest1 * g, step);
        e->m[i] = m * beta2 + rest2 * g;
        return;
    case OP_SGD:
        g = g + (float)wd * p;
        e->m[i] = beta1 * m + g;
        e->p[i] = p - step * (a->nesterov ? g + beta1 * e->m[i] : e->m[i]);
        return;
    case OP_CADAM:
        e->m[i] = m * beta1 + rest1 * g;
        e->p[i] = p * decay - step_of(e->m[i], step);
        return;
    default:
        e->m[i] = m + rest1 * (g - m);
        e->v[i] = state_at(op, OPTIMIZER_V, OPTIMIZER_V_SCALE, i) * beta2 + rest2 * g * g;
        step = (float)(lr / tensor_get(&op->in[OPTIMIZER_SCALARS], 0, SCALAR_BIAS1));
        float root = (float)sqrt(tensor_get(&op->in[OPTIMIZER_SCALARS], 0, SCALAR_BIAS2));
        e->p[i] = p * decay - step * (e->m[i] / (sqrtf(e->v[i]) / root + (float)a->eps));
    }
}

static struct expected expect(const struct op_shape *op)
{
    int64_t n = tensor_elements(&op->in[OPTIMIZER_GRADIENT]);
    struct expected e = { calloc((size_t)n, sizeof(float)), calloc((size_t)n, sizeof(float)),
                          calloc((size_t)n, sizeof(float)), n, op->in[OPTIMIZER_GRADIENT].cols };

    assert_true(e.p && e.m && e.v);
    for (int64_t i = 0; i < n; i++)
        expect_one(op, &e, i);
    return e;
}

static void expected_release(struct expected *e)
{
    free(e->p);
    free(e->m);
    free(e->v);
}

/* The nearest value, by looking at all of them. */
static int nearest_code(float x, float top, bool is_signed)
{
    int n = is_signed ? STATE_CODES_SIGNED : STATE_CODES_UNSIGNED, k = 0;
    const float *values = is_signed ? signed_values : unsigned_values;
    float part = fabsf(x) / (top > 0 ? top : 1);

    while (k + 1 < n && part > 0.5f * (values[k] + values[k + 1]))
        k++;
    if (x < 0 && k == n - 1)
        k--;
    if (!is_signed && k == 0 && x > 0)
        k = 1;
    return x < 0 && k ? 256 - k : k;
}

static uint16_t round_up_by(float x, uint32_t word, int64_t element)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + (element % 2 ? word >> 16 : word & 0xffff)) >> 16);
}

static struct rng_block noise_of(const struct op_shape *op, int64_t i)
{
    int64_t block = i / OPS_NORM_BLOCK;
    uint64_t place = tensor_given(&op->in[OPTIMIZER_RNG_SITE])
                         ? (uint64_t)tensor_get(&op->in[OPTIMIZER_RNG_SITE], 0, block)
                         : op->attributes.rng_site + (uint64_t)block;
    uint64_t part = tensor_given(&op->in[OPTIMIZER_PART]) ? N_PART : 0;

    return rng_at(op->attributes.seed, RNG_ROUNDING, N_UPDATE | part << 32,
                  place << 11 | (uint64_t)(i % OPS_NORM_BLOCK) / 2);
}

static void check_state(const struct op_shape *op, int place, int scale, const float *x,
                        const struct expected *e)
{
    const struct tensor *t = &op->in[place];

    for (int64_t begin = 0; begin < e->n; begin += OPS_STATE_BLOCK) {
        int64_t end = min_i64(begin + OPS_STATE_BLOCK, e->n);
        float top = 0, wanted = 0;

        for (int64_t i = begin; i < end; i++)
            top = fmaxf(top, fabsf(x[i]));
        wanted = t->dtype == DTYPE_F16 ? top / OPS_FP16_FULL + (float)op->attributes.eps : top;
        if (optimizer_is_scaled(t->dtype))
            assert_true(tensor_get(&op->in[scale], 0, begin / OPS_STATE_BLOCK) == wanted);
        for (int64_t i = begin; i < end; i++) {
            double got = tensor_get(t, i / t->cols, i % t->cols);
            struct rng_block noise = noise_of(op, i);

            if (t->dtype == DTYPE_U8)
                assert_int_equal((int)got, nearest_code(x[i], top, place == OPTIMIZER_M));
            else if (t->dtype == DTYPE_F16)
                assert_true(got ==
                            fp16_to_float(fp16_from_float(fmaxf(
                                -OPS_FP16_FULL, fminf(OPS_FP16_FULL, x[i] * (1.0f / wanted))))));
            else if (t->dtype == DTYPE_BF16)
                assert_true(got == bf16_to_float(round_up_by(x[i], noise.word[1], i)));
            else
                assert_true(got == x[i]);
        }
    }
}

static void check_master(const struct op_shape *op, const struct expected *e)
{
    bool is_narrow =
        op->in[OPTIMIZER_MASTER].dtype == DTYPE_BF16 && !tensor_given(&op->in[OPTIMIZER_LOW]);

    for (int64_t i = 0; i < e->n; i++) {
        int64_t row = i / e->cols, col = i % e->cols;
        float got = master_at(op, row, col);
        struct rng_block noise = noise_of(op, i);

        if (is_narrow)
            assert_true(got == bf16_to_float(round_up_by(e->p[i], noise.word[0], i)));
        else
            assert_true(got == e->p[i]);
        if (tensor_given(&op->out[OPTIMIZER_WEIGHT]))
            assert_true(tensor_get(&op->out[OPTIMIZER_WEIGHT], row, col) ==
                        bf16_to_float(bf16_from_float(e->p[i])));
    }
}

static void check(const struct shape *s)
{
    struct op_case *c = make(s), *bits = make(s);
    struct expected e = expect(&c->op);

    op_case_check_cpu_bits(bits, RUN_FIRST);
    op_case_run(c, 3, RUN_AGAIN);
    check_master(&c->op, &e);
    check_state(&c->op, OPTIMIZER_M, OPTIMIZER_M_SCALE, e.m, &e);
    if (s->kind == OP_ADAMW)
        check_state(&c->op, OPTIMIZER_V, OPTIMIZER_V_SCALE, e.v, &e);
    expected_release(&e);
    op_case_destroy(c);
    op_case_destroy(bits);
}

/* ---- tests ---- */

static const struct {
    enum op_kind kind;
    enum dtype state;
    int variant;
} forms[] = {
    { OP_LION, DTYPE_F32, 0 },  { OP_LION, DTYPE_BF16, 0 }, { OP_LION, DTYPE_U8, 0 },
    { OP_SGD, DTYPE_F32, 0 },   { OP_SGD, DTYPE_F32, 1 },   { OP_SGD, DTYPE_BF16, 1 },
    { OP_CADAM, DTYPE_F16, 0 }, { OP_ADAMW, DTYPE_U8, 0 },
};

static void each_form(void **state)
{
    static const int64_t sizes[][2] = { { 1, 1 },     { 1, 255 },  { 1, 4096 },
                                        { 1, 12547 }, { 300, 67 }, { 5, 4099 } };

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int k = 0; k < 6; k++) {
            bool is_bf16 = forms[f].state == DTYPE_BF16;

            check(&(struct shape){ forms[f].kind, forms[f].state, sizes[k][0], sizes[k][1],
                                   k % 2 ? DTYPE_BF16 : DTYPE_F32, .has_weight = k % 3 && !is_bf16,
                                   .is_narrow = is_bf16 && k % 2, .has_tables = k > 2,
                                   .variant = forms[f].variant });
            if (!is_bf16)
                check(&(struct shape){ forms[f].kind, forms[f].state, sizes[k][0], sizes[k][1],
                                       DTYPE_F32, .is_split = true, .variant = forms[f].variant });
        }
}

/* Threads and instruction sets, and near doubles where no code is chosen. */
static void near_the_reference(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        struct shape s = { forms[f].kind,
                           forms[f].state,
                           30,
                           2111,
                           DTYPE_F32,
                           .has_weight = false,
                           .variant = forms[f].variant };
        struct op_case *c = make(&s);

        if (forms[f].state == DTYPE_F32)
            op_case_check(c, 2e-6);
        op_case_destroy(c);
    }
}

/* Without a gradient, and with a decay of 1, states are what they were: coding codes' values gives
 * the codes, where the block has its largest. */
static void codes_stay(void **state)
{
    struct shape s = { OP_LION, DTYPE_U8, 1, 4 * 256 + 17, DTYPE_F32, .has_weight = false };
    struct op_case *c = make(&s), *before = make(&s);
    struct tensor *m = &c->op.in[OPTIMIZER_M];

    (void)state;
    c->op.attributes.beta2 = before->op.attributes.beta2 = 1 - 0x1p-30; /* 1 in fp32 */
    set_all(&c->op.in[OPTIMIZER_GRADIENT], word_of);
    for (int64_t i = 0; i < m->cols; i++) {
        tensor_set(&c->op.in[OPTIMIZER_GRADIENT], 0, i, 0);
        if (i % 256 == 0)
            tensor_set(m, 0, i, 128); /* 1 */
        tensor_set(&before->op.in[OPTIMIZER_M], 0, i, tensor_get(m, 0, i));
    }
    op_case_run(c, 2, RUN_AGAIN);
    op_case_same(m, &before->op.in[OPTIMIZER_M], "codes");
    op_case_same(&c->op.in[OPTIMIZER_M_SCALE], &before->op.in[OPTIMIZER_M_SCALE], "scales");
    op_case_destroy(c);
    op_case_destroy(before);
}

/* A block of zeros stays one, and takes no step but its decay. */
static void zeros_stay(void **state)
{
    static const enum op_kind kinds[] = { OP_LION, OP_CADAM, OP_ADAMW };

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct shape s = { kinds[k],  kinds[k] == OP_CADAM ? DTYPE_F16 : DTYPE_U8,
                           1,         600,
                           DTYPE_F32, .has_weight = false };
        struct op_case *c = make(&s), *before = make(&s);
        float decay = (float)(1 - tensor_get(&c->op.in[OPTIMIZER_SCALARS], 0, SCALAR_LR) * 0.1);

        for (int64_t i = 0; i < 256; i++) {
            tensor_set(&c->op.in[OPTIMIZER_GRADIENT], 0, i, 0);
            tensor_set(&c->op.in[OPTIMIZER_M], 0, i, 0);
            if (kinds[k] == OP_ADAMW)
                tensor_set(&c->op.in[OPTIMIZER_V], 0, i, 0);
        }
        op_case_run(c, 2, RUN_AGAIN);
        for (int64_t i = 0; i < 256; i++) {
            assert_true(tensor_get(&c->op.in[OPTIMIZER_M], 0, i) == 0);
            assert_true(tensor_get(&c->op.in[OPTIMIZER_MASTER], 0, i) ==
                        (float)tensor_get(&before->op.in[OPTIMIZER_MASTER], 0, i) * decay);
        }
        assert_true(tensor_get(&c->op.in[OPTIMIZER_M_SCALE], 0, 0) ==
                    (kinds[k] == OP_CADAM ? (double)1e-8f : 0));
        op_case_destroy(c);
        op_case_destroy(before);
    }
}

/* What is not finite in one block changes no bit of others; a step that is skipped changes none. */
static void blocks_are_alone(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        struct shape s = { forms[f].kind, forms[f].state, 1, 1000, DTYPE_F32, .has_weight = false };
        struct op_case *c = make(&s), *clean = make(&s), *skipped = make(&s);

        tensor_set(&c->op.in[OPTIMIZER_GRADIENT], 0, 300, NAN);
        tensor_set(&skipped->op.in[OPTIMIZER_SKIP_UPDATE], 0, 0, 1);
        op_case_run(skipped, 2, RUN_AGAIN);
        op_case_same(&skipped->op.in[OPTIMIZER_M], &clean->op.in[OPTIMIZER_M], "a skipped step");
        op_case_same(&skipped->op.in[OPTIMIZER_MASTER], &clean->op.in[OPTIMIZER_MASTER],
                     "a skipped step");
        op_case_run(c, 2, RUN_AGAIN);
        op_case_run(clean, 2, RUN_AGAIN);
        for (int64_t i = 0; i < s.cols; i++) {
            if (i / OPS_STATE_BLOCK == 1)
                continue;
            assert_true(tensor_get(&c->op.in[OPTIMIZER_M], 0, i) ==
                        tensor_get(&clean->op.in[OPTIMIZER_M], 0, i));
            assert_true(tensor_get(&c->op.in[OPTIMIZER_MASTER], 0, i) ==
                        tensor_get(&clean->op.in[OPTIMIZER_MASTER], 0, i));
        }
        op_case_destroy(c);
        op_case_destroy(clean);
        op_case_destroy(skipped);
    }
}

/* The map is what the paper describes, within fp32: seven decades, each with twice as many values
 * as the one below. */
static void values_are_decades(void **state)
{
    int k = 1, j = 1;

    (void)state;
    assert_true(signed_values[0] == 0 && unsigned_values[0] == 0);
    assert_true(signed_values[STATE_CODES_SIGNED - 1] == 1);
    assert_true(unsigned_values[STATE_CODES_UNSIGNED - 1] == 1);
    for (int decade = 0; decade < 7; decade++) {
        for (int i = 0; i < 1 << decade; i++, k++) {
            double wanted = pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / (1 << decade));

            assert_true(fabs(signed_values[k] - wanted) < 1e-6 * wanted);
        }
        for (int i = 0; i < 2 << decade; i++, j++) {
            double wanted = pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / (2 << decade));

            assert_true(fabs(unsigned_values[j] - wanted) < 1e-6 * wanted);
        }
    }
    assert_int_equal(k, STATE_CODES_SIGNED - 1);
    assert_int_equal(j, STATE_CODES_UNSIGNED - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form),        cmocka_unit_test(near_the_reference),
        cmocka_unit_test(codes_stay),       cmocka_unit_test(zeros_stay),
        cmocka_unit_test(blocks_are_alone), cmocka_unit_test(values_are_decades),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
