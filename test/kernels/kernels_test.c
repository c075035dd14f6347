/*
 * kernels_test.c - what the front door refuses, and what it says of the machine
 */
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_case.h"

struct fixture {
    struct pool *pool;
    struct kernels *kernels;
    const char *isa_note;
    struct err err;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    *state = f;
    return pool_create(&f->pool, 2, NULL, &f->err) ||
           kernels_cpu_create(&f->kernels, f->pool, &f->isa_note, &f->err);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    kernels_destroy(f->kernels);
    pool_destroy(f->pool);
    free(f);
    return 0;
}

static struct kernel_call linear_call(void)
{
    struct kernel_call call = { .op = { .kind = OP_LINEAR } };

    case_make(&call.op.in[0], 4, 8, 0, DTYPE_F32);
    case_make(&call.op.in[1], 6, 8, 0, DTYPE_F32);
    case_make(&call.op.out[0], 4, 6, 0, DTYPE_F32);
    return call;
}

static void assert_refused(struct fixture *f, struct kernel_call *call, enum err_code code,
                           const char *text)
{
    assert_int_equal(kernels_prepare(f->kernels, call, &f->err), -1);
    assert_int_equal(f->err.code, code);
    if (!strstr(f->err.text, text))
        fail_msg("'%s' does not say '%s'", f->err.text, text);
    assert_null(call->state);
}

static void test_refuses_what_does_not_fit(void **state)
{
    struct fixture *f = *state;
    struct kernel_call good = linear_call(), call;

    call = good;
    call.op.in[1].cols = 7;
    assert_refused(f, &call, ERR_FAILED, "linear: w");
    call = good;
    call.op.out[0].dtype = DTYPE_I32;
    assert_refused(f, &call, ERR_FAILED, "linear: y");
    call = good;
    call.op.in[0].stride = 7;
    assert_refused(f, &call, ERR_FAILED, "linear: x has a stride of 7");
    call = good;
    call.op.out[0].data = (char *)good.op.out[0].data + 2;
    assert_refused(f, &call, ERR_FAILED, "not a multiple of fp32's 4 bytes");
    call = good;
    call.scratch = good.op.out[0].data;
    call.scratch = (void *)((uintptr_t)call.scratch / 64 * 64 + 32);
    assert_refused(f, &call, ERR_FAILED, "not a multiple of 64");
    case_free_op(&good.op);
}

/* Collectives belong to run, not to a backend. */
static void test_refuses_kinds_it_lacks(void **state)
{
    struct kernel_call call = { .op = { .kind = OP_ALL_GATHER } };

    assert_refused(*state, &call, ERR_DEVICE, "all_gather: the cpu backend has no kernel for it");
}

/* Pointers may change between runs of a prepared call: slots. */
static void test_operands_may_move(void **state)
{
    struct fixture *f = *state;
    struct kernel_call call = linear_call();
    struct tensor x = call.op.in[0], y = call.op.out[0], moved_x, moved_y;

    case_fill(&x, 1);
    case_fill(&call.op.in[1], 2);
    case_copy(&moved_x, &x);
    case_make(&moved_y, 4, 6, 0, DTYPE_F32);
    call.scratch = aligned_alloc(64, kernels_scratch_bytes(f->kernels, &call.op) / 64 * 64 + 64);
    assert_int_equal(kernels_prepare(f->kernels, &call, &f->err), 0);
    kernels_run(f->kernels, &call, KERNELS_FIRST);
    call.op.in[0].data = moved_x.data;
    call.op.out[0].data = moved_y.data;
    case_poison(&x);
    kernels_run(f->kernels, &call, KERNELS_FIRST);
    assert_true(case_equal(&y, &moved_y));
    call.op.in[0] = x;
    call.op.out[0] = y;
    kernels_release(f->kernels, &call);
    assert_null(call.state);
    kernels_release(f->kernels, &call);
    free(call.scratch);
    case_free(&moved_x);
    case_free(&moved_y);
    case_free_op(&call.op);
}

/* What is awaited is left as it is. */
static void test_await_does_nothing(void **state)
{
    struct fixture *f = *state;
    struct kernel_call call = { .op.kind = OP_AWAIT };
    struct tensor *x = &call.op.in[AWAIT_X], before;

    case_make(x, 4, 6, 0, DTYPE_I32);
    case_fill(x, 1);
    case_copy(&before, x);
    assert_int_equal(kernels_prepare(f->kernels, &call, &f->err), 0);
    kernels_run(f->kernels, &call, KERNELS_FIRST);
    assert_true(case_equal(x, &before));
    kernels_release(f->kernels, &call);
    case_free(&before);
    case_free_op(&call.op);
}

static void test_has_every_kind_that_is_computed(void **state)
{
    struct fixture *f = *state;

    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        int has_kernel = op_has_kernel((enum op_kind)kind);

        if ((f->kernels->backend->entries[kind].run != NULL) != has_kernel)
            fail_msg("%s: the %s backend's table %s", op_info((enum op_kind)kind)->name,
                     f->kernels->backend->name,
                     has_kernel ? "has no kernel" : "has a kernel of what run moves");
    }
}

/* The identity names the instruction set that LMTRAIN_CPU_ISA leaves, and the note speaks
 * without bf16. */
static void test_identity(void **state)
{
    struct fixture *f = *state;
    const char *identity = kernels_identity(f->kernels), *limit = getenv("LMTRAIN_CPU_ISA");

    assert_int_equal(strncmp(identity, "cpu ", 4), 0);
    assert_non_null(strstr(identity, " gemm 1 "));
    assert_int_equal(strstr(identity, "avx512_bf16") != NULL, *f->isa_note == '\0');
    if (limit && strcmp(limit, "avx512_bf16") != 0)
        assert_null(strstr(identity, "avx512_bf16"));
    if (limit && strcmp(limit, "avx2") == 0)
        assert_null(strstr(identity, "avx512"));
    if (limit && strcmp(limit, "plain") == 0)
        assert_non_null(strstr(identity, "plain"));
}

/* -(1 + 2^-11) + (1 + 2^-12)^2 is 2^-24 in one rounding, and 0 in two. */
static float difference_of_product(struct kernels *kernels)
{
    struct kernel_call call = { .op = { .kind = OP_LINEAR } };
    struct err err;

    case_make(&call.op.in[0], 1, 2, 0, DTYPE_F32);
    case_make(&call.op.in[1], 1, 2, 0, DTYPE_F32);
    case_make(&call.op.out[0], 1, 1, 0, DTYPE_F32);
    float *x = call.op.in[0].data, *w = call.op.in[1].data;
    x[0] = -(1 + 0x1p-11f);
    w[0] = 1;
    x[1] = w[1] = 1 + 0x1p-12f;
    call.scratch = aligned_alloc(64, kernels_scratch_bytes(kernels, &call.op) / 64 * 64 + 64);
    assert_int_equal(kernels_prepare(kernels, &call, &err), 0);
    kernels_run(kernels, &call, KERNELS_FIRST);
    kernels_release(kernels, &call);
    float difference = *(float *)call.op.out[0].data;
    free(call.scratch);
    case_free_op(&call.op);
    return difference;
}

/* Equal identities mean equal bits, however this was compiled. */
static void test_identity_says_whether_products_fuse(void **state)
{
    struct fixture *f = *state;
    char *before = getenv("LMTRAIN_CPU_ISA") ? strdup(getenv("LMTRAIN_CPU_ISA")) : NULL;
    struct kernels *plain;

    setenv("LMTRAIN_CPU_ISA", "plain", 1);
    assert_int_equal(kernels_cpu_create(&plain, f->pool, NULL, &f->err), 0);
    if (before)
        setenv("LMTRAIN_CPU_ISA", before, 1);
    else
        unsetenv("LMTRAIN_CPU_ISA");
    free(before);
    int fused = strstr(kernels_identity(plain), " fused ") != NULL;
    assert_true(difference_of_product(plain) == (fused ? 0x1p-24f : 0));
    kernels_destroy(plain);
    if (!strstr(kernels_identity(f->kernels), "plain"))
        assert_true(difference_of_product(f->kernels) == 0x1p-24f);
}

/* Nothing is chosen here that text could tell. */
static void test_has_no_choices(void **state)
{
    struct fixture *f = *state;
    struct kernel_call call = linear_call();
    struct str text = { 0 };

    assert_int_equal(kernels_prepare(f->kernels, &call, &f->err), 0);
    kernels_choices_print(f->kernels, &text);
    assert_int_equal(text.length, 0);
    assert_int_equal(kernels_choices_load(f->kernels, "product of a GPU\n", &f->err), 0);
    kernels_release(f->kernels, &call);
    case_free_op(&call.op);
}

static void test_refuses_unknown_isas(void **state)
{
    struct fixture *f = *state;
    char *before = getenv("LMTRAIN_CPU_ISA") ? strdup(getenv("LMTRAIN_CPU_ISA")) : NULL;
    struct kernels *kernels = NULL;

    setenv("LMTRAIN_CPU_ISA", "avx1024", 1);
    assert_int_equal(kernels_cpu_create(&kernels, f->pool, NULL, &f->err), -1);
    assert_null(kernels);
    assert_non_null(strstr(f->err.text, "avx1024"));
    if (before)
        setenv("LMTRAIN_CPU_ISA", before, 1);
    else
        unsetenv("LMTRAIN_CPU_ISA");
    free(before);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_refuses_what_does_not_fit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_kinds_it_lacks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_operands_may_move, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_await_does_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_has_every_kind_that_is_computed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_identity, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_identity_says_whether_products_fuse, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_has_no_choices, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_unknown_isas, set_up, tear_down),
    };

    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}

int main(void)
{
    return case_each_isa(run_all);
}
