/*
 * gemm_test.c - products bit for bit: every element is the chain of fused adds that
 * gemm_code_impl.h promises, whatever its place, the cut or the threads
 *
 * linear_test.c holds the same products against sums in double.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "kernels/cpu/gemm_impl.h"
#include "support/op_case.h"
#include "support/test_device.h"

#define N(array) ((int)(sizeof(array) / sizeof *(array)))

/* Edges of register blocks, vectors, pairs, pieces of k (192 or 256 steps), rounds' rows (1,024)
 * and chunks of k (2^20 lanes a block of rows). */
static const struct dims {
    int64_t m, n, k;
} all_dims[] = {
    { 1, 1, 1 },     { 1, 47, 2 },    { 7, 48, 3 },    { 8, 49, 9 },      { 9, 95, 191 },
    { 15, 96, 385 }, { 17, 97, 64 },  { 2, 7, 1025 },  { 3, 16, 513 },    { 100, 31, 256 },
    { 97, 17, 33 },  { 1030, 5, 40 }, { 1025, 50, 7 }, { 520, 49, 4163 }, { 300, 150, 3600 },
};

enum form { FORM_LINEAR, FORM_DX, FORM_DW, N_FORMS };

static const enum op_kind kinds[N_FORMS] = { OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW };

/* splitmix64: uniform in [-1, 1), by element and seed. */
static double number(uint64_t seed, uint64_t i)
{
    uint64_t x = (seed << 32 ^ i) + 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(x >> 11) * 0x1p-52 - 1.0;
}

static void add_input(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype)
{
    op_case_input(c, i, rows, cols, dtype, 0);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++)
            tensor_set(&c->op.in[i], row, col,
                       number((uint64_t)i + 3, (uint64_t)(row * cols + col)));
}

static struct op_case *make(enum form form, struct dims d, enum dtype in, enum dtype out)
{
    struct op_case *c = op_case_create(kinds[form], &(struct op_attributes){ 0 });

    add_input(c, 0, form == FORM_DW ? d.k : d.m, form == FORM_DW ? d.m : d.k, in);
    add_input(c, 1, form == FORM_LINEAR ? d.n : d.k, form == FORM_LINEAR ? d.k : d.n, in);
    op_case_output(c, 0, d.m, d.n, out);
    return c;
}

/* What one step of the chain does: which depends on the instruction set that the process uses. */
enum chain { CHAIN_FUSED, CHAIN_PAIRS, CHAIN_ROUNDED };

static enum chain chain_of(enum dtype in)
{
    const char *isa = getenv("LMTRAIN_CPU_ISA");

    if (in == DTYPE_BF16 && test_has_bf16())
        return CHAIN_PAIRS;
    return isa && !strcmp(isa, "plain") ? CHAIN_ROUNDED : CHAIN_FUSED;
}

static float add_product(float sum, float a, float b, enum chain chain)
{
    volatile float product = a * b;

    return chain == CHAIN_ROUNDED ? product + sum : fmaf(a, b, sum);
}

static float reference(const struct op_shape *op, int64_t row, int64_t col, enum chain chain)
{
    const struct tensor *a = &op->in[0], *b = &op->in[1];
    int is_dw = op->kind == OP_LINEAR_DW, is_linear = op->kind == OP_LINEAR;
    int64_t n_terms = is_dw ? a->rows : a->cols;
    float sum = 0;

    for (int64_t i = 0; i < n_terms; i++) {
        /* VDPBF16PS adds the odd element first; one without a partner has a zero. */
        int64_t k = chain == CHAIN_PAIRS ? i ^ 1 : i;

        if (k == n_terms)
            k = n_terms - 1;
        sum =
            add_product(sum, (float)(is_dw ? tensor_get(a, k, row) : tensor_get(a, row, k)),
                        (float)(is_linear ? tensor_get(b, col, k) : tensor_get(b, k, col)), chain);
    }
    if (tensor_given(&op->in[2]))
        sum += (float)tensor_get(&op->in[2], 0, col);
    if (op->out[0].dtype == DTYPE_F16)
        return fp16_to_float(fp16_from_float(sum));
    return op->out[0].dtype == DTYPE_BF16 ? bf16_to_float(bf16_from_float(sum)) : sum;
}

static void assert_element(const struct op_shape *op, int64_t row, int64_t col, enum chain chain)
{
    float got = (float)tensor_get(&op->out[0], row, col), wanted = reference(op, row, col, chain);

    if (!(got == wanted))
        fail_msg("%s of %s [%lld x %lld] at (%lld, %lld): %.9g, not %.9g", op_info(op->kind)->name,
                 dtype_name(op->in[0].dtype), (long long)op->out[0].rows,
                 (long long)op->out[0].cols, (long long)row, (long long)col, (double)got,
                 (double)wanted);
}

/* All elements of a small product, some of a large one, its last ones among them. */
#define N_SAMPLES 400

static void assert_chains(const struct op_shape *op)
{
    int64_t n = tensor_elements(&op->out[0]), cols = op->out[0].cols;
    enum chain chain = chain_of(op->in[0].dtype);

    if (n <= 4 * N_SAMPLES) {
        for (int64_t i = 0; i < n; i++)
            assert_element(op, i / cols, i % cols, chain);
        return;
    }
    for (int64_t i = 0; i < N_SAMPLES; i++) {
        int64_t at = i < cols ? n - 1 - i : i * 7919 * 7919 % n;

        assert_element(op, at / cols, at % cols, chain);
    }
}

/* Under sanitizers one cut beside the whole: products take ten times as long there. */
static int n_thread_counts(void)
{
    const char *sanitized = getenv("LMTRAIN_SANITIZED");

    return sanitized && !strcmp(sanitized, "1") ? 1 : 3;
}

static void check(enum form form, struct dims d, enum dtype in, enum dtype out)
{
    static const int thread_counts[] = { 3, 2, 7 };
    struct op_case *c = make(form, d, in, out);
    struct tensor alone;

    if (form == FORM_LINEAR && d.m % 2)
        add_input(c, 2, 1, d.n, DTYPE_F32);
    op_case_run(c, 1, RUN_FIRST);
    assert_chains(&c->op);
    alone = op_case_keep(&c->op.out[0]);
    for (int t = 0; t < n_thread_counts(); t++) {
        op_case_run(c, thread_counts[t], RUN_FIRST);
        op_case_same(&c->op.out[0], &alone, "depends on the number of threads");
    }
    free(alone.data);
    op_case_destroy(c);
}

static void test_chains(void **state)
{
    (void)state;
    for (int form = 0; form < N_FORMS; form++)
        for (int i = 0; i < N(all_dims); i++) {
            check((enum form)form, all_dims[i], DTYPE_F32, DTYPE_F32);
            check((enum form)form, all_dims[i], DTYPE_BF16,
                  form == FORM_DW ? DTYPE_F32 : DTYPE_BF16);
            check((enum form)form, all_dims[i], DTYPE_F16, form == FORM_DW ? DTYPE_F32 : DTYPE_F16);
        }
    check(FORM_LINEAR, all_dims[5], DTYPE_F16, DTYPE_F32);
    check(FORM_LINEAR, all_dims[5], DTYPE_BF16, DTYPE_F32);
}

static void copy_rows(const struct tensor *to, const struct tensor *from, int64_t start)
{
    for (int64_t row = 0; row < to->rows; row++)
        for (int64_t col = 0; col < to->cols; col++)
            tensor_set(to, row, col, tensor_get(from, start + row, col));
}

/* Rows computed apart are the rows computed together. */
static void test_slices(void **state)
{
    static const int64_t cuts[] = { 0, 1, 3, 6, 14, 37, 201 };
    static const struct dims d = { 201, 70, 501 };

    (void)state;
    for (int form = 0; form < FORM_DW; form++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_case *whole = make((enum form)form, d, act, act);

            op_case_run(whole, 2, RUN_FIRST);
            for (int i = 0; i + 1 < N(cuts); i++) {
                struct dims slice_dims = { cuts[i + 1] - cuts[i], d.n, d.k };
                struct op_case *slice = make((enum form)form, slice_dims, act, act);
                struct op_case *wanted = make((enum form)form, slice_dims, act, act);

                copy_rows(&slice->op.in[0], &whole->op.in[0], cuts[i]);
                copy_rows(&wanted->op.out[0], &whole->op.out[0], cuts[i]);
                op_case_run(slice, 3, RUN_FIRST);
                op_case_same_outputs(slice, wanted, "differs from the rows of the whole product");
                op_case_destroy(slice);
                op_case_destroy(wanted);
            }
            op_case_destroy(whole);
        }
}

/* Run `run` of c, as a product of its own, has these bits. */
static void check_run(enum form form, struct dims d, const struct op_case *c, int64_t run)
{
    enum dtype act = c->op.in[0].dtype;
    struct op_case *alone = make(form, d, act, act), *wanted = make(form, d, act, act);

    for (int64_t row = 0; row < d.m; row++) {
        for (int64_t i = 0; i < d.k; i++)
            tensor_set(&alone->op.in[0], row, i, tensor_get(&c->op.in[0], run, row * d.k + i));
        for (int64_t i = 0; i < d.n; i++)
            tensor_set(&wanted->op.out[0], row, i, tensor_get(&c->op.out[0], run, row * d.n + i));
    }
    op_case_run(alone, 2, RUN_FIRST);
    op_case_same_outputs(alone, wanted, "differs from the run in a product of several");
    op_case_destroy(alone);
    op_case_destroy(wanted);
}

/* Runs of rows in one product have the bits of a product for each. */
static void test_runs(void **state)
{
    static const struct {
        int64_t n;
        struct dims d;
    } rows[] = { { 4, { 64, 70, 501 } }, { 3, { 13, 50, 77 } },   { 2, { 700, 30, 260 } },
                 { 8, { 1, 9, 40 } },    { 3, { 40, 49, 4163 } }, { 2, { 370, 50, 3000 } } };

    (void)state;
    for (int form = 0; form < FORM_DW; form++)
        for (int i = 0; i < N_ACTS * N(rows); i++) {
            struct dims d = rows[i / N_ACTS].d;
            int64_t n = rows[i / N_ACTS].n;
            enum dtype act = act_at(i % N_ACTS);
            struct op_case *c =
                op_case_create(kinds[form], &(struct op_attributes){ .run_rows = d.m });

            add_input(c, 0, n, d.m * d.k, act);
            add_input(c, 1, form == FORM_LINEAR ? d.n : d.k, form == FORM_LINEAR ? d.k : d.n, act);
            op_case_output(c, 0, n, d.m * d.n, act);
            op_case_run(c, 1 + i % 3, RUN_FIRST);
            check_run((enum form)form, d, c, 0);
            check_run((enum form)form, d, c, n - 1);
            op_case_destroy(c);
        }
}

/* What is not finite reaches its own row and no other, from the last, unpaired element too. */
static void test_not_finite(void **state)
{
    static const double values[] = { (double)NAN, (double)INFINITY, (double)-INFINITY };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++)
        for (int i = 0; i < N(values); i++) {
            enum dtype act = act_at(i_act);
            struct op_case *finite = make(FORM_LINEAR, (struct dims){ 13, 50, 77 }, act, act);
            struct op_case *c = make(FORM_LINEAR, (struct dims){ 13, 50, 77 }, act, act);

            tensor_set(&c->op.in[0], 11, 76, values[i]);
            op_case_run(finite, 1, RUN_FIRST);
            op_case_run(c, 2, RUN_FIRST);
            for (int64_t row = 0; row < 13; row++)
                for (int64_t col = 0; col < 50; col++) {
                    double got = tensor_get(&c->op.out[0], row, col);

                    if (row == 11)
                        assert_true(!isfinite(got));
                    else
                        assert_true(got == tensor_get(&finite->op.out[0], row, col));
                }
            op_case_destroy(finite);
            op_case_destroy(c);
        }
}

/* Whatever part of its rows, or of its sum, a product has: the bound is of all, and no waste. */
static void test_scratch_bound(void **state)
{
    static const struct cpu_gemm_shape shapes[] = {
        { .m = 3000, .n = 50, .k = 40 },
        { .m = 40, .n = 3000, .k = 5000 },
        { .m = 1100, .n = 90, .k = 4200 },
        { .m = 9, .n = 7, .k = 20000 },
        { .m = 600, .n = 9000, .k = 3000 },
        { .m = 3000, .n = 50, .k = 400, .scaled_k = 128 },
        { .m = 90, .n = 700, .k = 5000, .scaled_k = 128 },
    };

    (void)state;
    for (int n_threads = 1; n_threads <= 8; n_threads += 7) {
        struct kernels *kernels;
        struct pool *pool;
        struct err err;

        assert_int_equal(pool_create(&pool, n_threads, NULL, &err), 0);
        assert_int_equal(kernels_cpu_create(&kernels, pool, NULL, &err), 0);
        for (int i = 0; i < N_ACTS * N(shapes); i++) {
            struct cpu_gemm_shape most = shapes[i / N_ACTS];

            most.in = most.out = act_at(i % N_ACTS);
            size_t bound = cpu_gemm_scratch_most(cpu_of(kernels), &most);
            assert_true(bound <= 4 * cpu_gemm_scratch_bytes(cpu_of(kernels), &most) + (16 << 20));
            for (int64_t m = 1; m <= most.m; m += 1 + m / 40)
                for (int64_t k = 1; k <= most.k; k += 1 + k / 40) {
                    struct cpu_gemm_shape shape = most;

                    shape.m = m;
                    shape.k = k;
                    assert_true(cpu_gemm_scratch_bytes(cpu_of(kernels), &shape) <= bound);
                }
        }
        kernels_destroy(kernels);
        pool_destroy(pool);
    }
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains),        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_runs),          cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_scratch_bound),
    };

    return cmocka_run_group_tests_name("gemm", tests, NULL, NULL);
}

int main(void)
{
    return test_each_isa(run_all);
}
