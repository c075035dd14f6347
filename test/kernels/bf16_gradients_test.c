/*
 * bf16_gradients_test.c - accumulators in bf16: what is there, plus what an fp32 one would get from
 * zero, rounded to nearest once
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_case.h"
#include "support/test_device.h"

enum { T = 70, N = 45, K = 67, V = 130, M = 3, RANDOM = 3 };

struct way {
    enum op_kind kind;
    int out; /* the accumulator */
    enum dtype act;
    int chunk;
};

static void fill_integers(const struct tensor *t, int n)
{
    for (int64_t row = 0; row < t->rows; row++)
        tensor_set(t, row, 0, (double)(row * 7 % n));
}

static void add_inputs(struct op_case *c, enum op_kind kind, enum dtype act)
{
    static const int ends[M] = { 20, 20, T };

    switch (kind) {
    case OP_LINEAR_DW:
    case OP_EXPERT_LINEAR_DW:
        op_case_input(c, 0, T, N, act, 1);
        op_case_input(c, 1, T, K, act, 1);
        if (kind == OP_LINEAR_DW)
            break;
        op_case_input(c, 2, 1, M, DTYPE_I32, 0);
        for (int e = 0; e < M; e++)
            tensor_set(&c->op.in[2], 0, e, ends[e]);
        break;
    case OP_EMBED_DW:
        op_case_input(c, 0, T, K, DTYPE_F32, 1);
        op_case_input(c, 1, T, 1, DTYPE_I32, 0);
        fill_integers(&c->op.in[1], 40);
        break;
    case OP_NORMALIZE_ROWS_GRAD:
        op_case_input(c, 0, V, K, DTYPE_F32, 1);
        op_case_input(c, 1, V, K, act, 1);
        op_case_input(c, 2, V, 1, DTYPE_F32, 1);
        break;
    case OP_HEAD_CROSS_ENTROPY:
        op_case_input(c, 0, T, K, act, 1);
        op_case_input(c, 1, V, K, act, 0.1);
        op_case_input(c, 2, T, 1, DTYPE_I32, 0);
        fill_integers(&c->op.in[2], V);
        op_case_input(c, 3, 1, 1, DTYPE_F32, 1);
        op_case_output(c, 0, T, K, act);
        op_case_output(c, 2, 1, 1, DTYPE_F64);
        break;
    default:
        fail();
    }
}

static int64_t out_rows(enum op_kind kind)
{
    return kind == OP_LINEAR_DW ? N : kind == OP_EXPERT_LINEAR_DW ? M * N : V;
}

static struct op_case *make(const struct way *way, enum dtype dtype)
{
    struct op_attributes a = { .chunk = way->chunk, .eps = 1e-6 };
    struct op_case *c = op_case_create(way->kind, &a);
    struct err err;

    add_inputs(c, way->kind, way->act);
    op_case_output(c, way->out, out_rows(way->kind), K, dtype);
    if (op_check(&c->op, &err))
        fail_msg("%s", err.text);
    return c;
}

static double held(int64_t row, int64_t col)
{
    return (double)((row * 31 + col * 17) % 101 - 50) / RANDOM;
}

static double rounded(double x)
{
    return (double)bf16_to_float(bf16_from_float((float)x));
}

static void check(const struct way *way)
{
    struct op_case *wide = make(way, DTYPE_F32), *narrow = make(way, DTYPE_BF16);
    struct tensor *w = &wide->op.out[way->out], *n = &narrow->op.out[way->out];

    op_case_run(wide, 2, RUN_FIRST);
    op_case_run(narrow, 3, RUN_FIRST);
    for (int64_t row = 0; row < w->rows; row++)
        for (int64_t col = 0; col < w->cols; col++) {
            assert_true(tensor_get(n, row, col) == rounded(tensor_get(w, row, col)));
            tensor_set(n, row, col, held(row, col));
        }
    op_case_run(narrow, 1, RUN_AGAIN);
    for (int64_t row = 0; row < w->rows; row++)
        for (int64_t col = 0; col < w->cols; col++) {
            float sum = (float)rounded(held(row, col)) + (float)tensor_get(w, row, col);

            assert_true(tensor_get(n, row, col) == rounded((double)sum));
        }
    op_case_destroy(wide);
    op_case_destroy(narrow);
}

/* On a GPU: kinds whose accumulators are fp32 alone, and products of fp32. */
static int is_lacking(const struct way *way)
{
    int is_product = way->kind == OP_LINEAR_DW || way->kind == OP_HEAD_CROSS_ENTROPY;

    return test_device_is_cuda() &&
           (way->kind == OP_EXPERT_LINEAR_DW || way->kind == OP_NORMALIZE_ROWS_GRAD ||
            (is_product && way->act == DTYPE_F32));
}

static void test_each(void **state)
{
    static const struct way ways[] = {
        { OP_LINEAR_DW, 0, DTYPE_BF16, 0 },
        { OP_LINEAR_DW, 0, DTYPE_F32, 0 },
        { OP_EXPERT_LINEAR_DW, 0, DTYPE_BF16, 0 },
        { OP_EMBED_DW, 0, DTYPE_F32, 0 },
        { OP_NORMALIZE_ROWS_GRAD, 0, DTYPE_BF16, 0 },
        { OP_NORMALIZE_ROWS_GRAD, 0, DTYPE_F32, 0 },
        { OP_HEAD_CROSS_ENTROPY, 1, DTYPE_BF16, 128 },
        { OP_HEAD_CROSS_ENTROPY, 1, DTYPE_F32, 128 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        /* A library's products may differ with the dtype of the result. */
        if (!test_device_is_cuda() || ways[i].kind == OP_EMBED_DW)
            check(&ways[i]);
}

/* With guards, threads and instruction sets: against the reference, chunks rounded one by one. */
static void test_against_reference(void **state)
{
    static const struct way ways[] = {
        { OP_LINEAR_DW, 0, DTYPE_F32, 0 },
        { OP_LINEAR_DW, 0, DTYPE_BF16, 0 },
        { OP_EXPERT_LINEAR_DW, 0, DTYPE_F32, 0 },
        { OP_EMBED_DW, 0, DTYPE_F32, 0 },
        { OP_NORMALIZE_ROWS_GRAD, 0, DTYPE_F32, 0 },
        { OP_HEAD_CROSS_ENTROPY, 1, DTYPE_F32, 30 },
        { OP_HEAD_CROSS_ENTROPY, 1, DTYPE_BF16, 30 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct op_case *c;

        if (is_lacking(&ways[i]))
            continue;
        c = make(&ways[i], DTYPE_BF16);
        op_case_check(c, 3 * 0x1p-9);
        op_case_destroy(c);
    }
}

static void test_accumulate(void **state)
{
    struct op_case *c = op_case_create(OP_ACCUMULATE, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(c, 0, 30, 41, DTYPE_BF16, 1);
    op_case_output(c, 0, 30, 41, DTYPE_BF16);
    op_case_check(c, 0);
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each),
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_accumulate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
