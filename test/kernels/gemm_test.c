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
#include "support/kernel_case.h"

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

static struct op_shape make_op(enum form form, struct dims d, enum dtype in, enum dtype out)
{
    struct op_shape op = { .kind = kinds[form] };

    if (form == FORM_DW)
        case_make(&op.in[0], d.k, d.m, 2, in);
    else
        case_make(&op.in[0], d.m, d.k, 3, in);
    if (form == FORM_LINEAR)
        case_make(&op.in[1], d.n, d.k, 1, in);
    else
        case_make(&op.in[1], d.k, d.n, 1, in);
    case_make(&op.out[0], d.m, d.n, 5, out);
    case_fill(&op.in[0], 3);
    case_fill(&op.in[1], 4);
    case_poison(&op.out[0]);
    return op;
}

/* What one step of the chain does: which depends on the instruction set that the process uses. */
enum chain { CHAIN_FUSED, CHAIN_PAIRS, CHAIN_ROUNDED };

static enum chain chain_of(enum dtype in)
{
    const char *isa = getenv("LMTRAIN_CPU_ISA");

    if (in == DTYPE_BF16 && case_has_bf16())
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
        sum = add_product(sum, (float)(is_dw ? case_get(a, k, row) : case_get(a, row, k)),
                          (float)(is_linear ? case_get(b, col, k) : case_get(b, k, col)), chain);
    }
    if (tensor_given(&op->in[2]))
        sum += (float)case_get(&op->in[2], 0, col);
    if (op->out[0].dtype == DTYPE_F16)
        return fp16_to_float(fp16_from_float(sum));
    return op->out[0].dtype == DTYPE_BF16 ? bf16_to_float(bf16_from_float(sum)) : sum;
}

static void assert_element(const struct op_shape *op, int64_t row, int64_t col, enum chain chain)
{
    float got = (float)case_get(&op->out[0], row, col), wanted = reference(op, row, col, chain);

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
    struct op_shape op = make_op(form, d, in, out);
    struct tensor alone;

    if (form == FORM_LINEAR && d.m % 2) {
        case_make(&op.in[2], 1, d.n, 0, DTYPE_F32);
        case_fill(&op.in[2], 5);
    }
    case_run(&op, 1, 1);
    assert_chains(&op);
    case_copy(&alone, &op.out[0]);
    for (int t = 0; t < n_thread_counts(); t++) {
        case_poison(&op.out[0]);
        case_run(&op, thread_counts[t], 1);
        assert_true(case_equal(&op.out[0], &alone));
    }
    case_free(&alone);
    case_free_op(&op);
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

static void copy_rows(struct tensor *to, const struct tensor *from, int64_t start, int64_t end)
{
    case_make(to, end - start, from->cols, 2, from->dtype);
    for (int64_t row = start; row < end; row++)
        for (int64_t col = 0; col < from->cols; col++)
            case_set(to, row - start, col, case_get(from, row, col));
}

/* Rows computed apart are the rows computed together. */
static void test_slices(void **state)
{
    static const int64_t cuts[] = { 0, 1, 3, 6, 14, 37, 201 };

    (void)state;
    for (int form = 0; form < FORM_DW; form++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_shape op = make_op((enum form)form, (struct dims){ 201, 70, 501 }, act, act);

            case_run(&op, 2, 1);
            for (int i = 0; i + 1 < N(cuts); i++) {
                struct op_shape slice = op;
                struct tensor wanted;

                copy_rows(&slice.in[0], &op.in[0], cuts[i], cuts[i + 1]);
                copy_rows(&slice.out[0], &op.out[0], cuts[i], cuts[i + 1]);
                case_copy(&wanted, &slice.out[0]);
                case_poison(&slice.out[0]);
                case_run(&slice, 3, 1);
                assert_true(case_equal(&slice.out[0], &wanted));
                case_free(&slice.in[0]);
                case_free(&slice.out[0]);
                case_free(&wanted);
            }
            case_free_op(&op);
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
            struct op_shape op = make_op(FORM_LINEAR, (struct dims){ 13, 50, 77 }, act, act);
            struct tensor before;

            case_run(&op, 1, 1);
            case_copy(&before, &op.out[0]);
            case_set(&op.in[0], 11, 76, values[i]);
            case_run(&op, 2, 1);
            for (int64_t row = 0; row < 13; row++)
                for (int64_t col = 0; col < 50; col++) {
                    double got = case_get(&op.out[0], row, col);

                    if (row == 11)
                        assert_true(!isfinite(got));
                    else
                        assert_true(got == case_get(&before, row, col));
                }
            case_free(&before);
            case_free_op(&op);
        }
}

/* Whatever part of its rows, or of its sum, a product has: the bound is of all, and no waste. */
static void test_scratch_bound(void **state)
{
    static const struct cpu_gemm_shape shapes[] = {
        { .m = 3000, .n = 50, .k = 40 },    { .m = 40, .n = 3000, .k = 5000 },
        { .m = 1100, .n = 90, .k = 4200 },  { .m = 9, .n = 7, .k = 20000 },
        { .m = 600, .n = 9000, .k = 3000 },
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
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_scratch_bound),
    };

    return cmocka_run_group_tests_name("gemm", tests, NULL, NULL);
}

int main(void)
{
    return case_each_isa(run_all);
}
