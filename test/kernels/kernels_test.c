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

#include "support/op_case.h"
#include "support/test_device.h"

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

static struct op_case *linear_case(void)
{
    struct op_case *c = op_case_create(OP_LINEAR, &(struct op_attributes){ 0 });

    op_case_input(c, LINEAR_X, 4, 8, DTYPE_F32, 1);
    op_case_input(c, LINEAR_W, 6, 8, DTYPE_F32, 1);
    op_case_output(c, LINEAR_Y, 4, 6, DTYPE_F32);
    return c;
}

static void *scratch_of(const struct fixture *f, const struct op_shape *op)
{
    return aligned_alloc(64, kernels_scratch_bytes(f->kernels, op) / 64 * 64 + 64);
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
    struct op_case *c = linear_case();
    struct kernel_call good = { .op = c->op }, call;

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
    op_case_destroy(c);
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
    struct op_case *c = linear_case(), *moved = linear_case();
    struct kernel_call call = { .op = c->op, .scratch = scratch_of(f, &c->op) };

    assert_int_equal(kernels_prepare(f->kernels, &call, &f->err), 0);
    kernels_run(f->kernels, &call, KERNELS_FIRST);
    call.op.in[LINEAR_X].data = moved->op.in[LINEAR_X].data;
    call.op.out[LINEAR_Y].data = moved->op.out[LINEAR_Y].data;
    for (int64_t col = 0; col < 8; col++)
        tensor_set(&c->op.in[LINEAR_X], 0, col, (double)NAN);
    kernels_run(f->kernels, &call, KERNELS_FIRST);
    op_case_same_outputs(moved, c, "depends on where operands lay before");
    kernels_release(f->kernels, &call);
    assert_null(call.state);
    kernels_release(f->kernels, &call);
    free(call.scratch);
    op_case_destroy(c);
    op_case_destroy(moved);
}

/* What is awaited is left as it is. */
static void test_await_does_nothing(void **state)
{
    struct fixture *f = *state;
    struct op_case *c = op_case_create(OP_AWAIT, &(struct op_attributes){ 0 });
    struct kernel_call call;
    struct tensor before;

    op_case_input(c, AWAIT_X, 4, 6, DTYPE_I32, 0);
    tensor_set(&c->op.in[AWAIT_X], 2, 3, 7);
    before = op_case_keep(&c->op.in[AWAIT_X]);
    call = (struct kernel_call){ .op = c->op };
    assert_int_equal(kernels_prepare(f->kernels, &call, &f->err), 0);
    kernels_run(f->kernels, &call, KERNELS_FIRST);
    op_case_same(&c->op.in[AWAIT_X], &before, "was changed");
    kernels_release(f->kernels, &call);
    free(before.data);
    op_case_destroy(c);
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
static double difference_of_product(struct op_case *c)
{
    static const double x[] = { -(1 + 0x1p-11), 1 + 0x1p-12 }, w[] = { 1, 1 + 0x1p-12 };

    for (int i = 0; i < 2; i++) {
        tensor_set(&c->op.in[LINEAR_X], 0, i, x[i]);
        tensor_set(&c->op.in[LINEAR_W], 0, i, w[i]);
    }
    op_case_run(c, 1, RUN_FIRST);
    return tensor_get(&c->op.out[LINEAR_Y], 0, 0);
}

/* Equal identities mean equal bits, however this was compiled. */
static void test_identity_says_whether_products_fuse(void **state)
{
    struct fixture *f = *state;
    struct op_case *c = op_case_create(OP_LINEAR, &(struct op_attributes){ 0 });
    char *kept = test_set_aside("LMTRAIN_CPU_ISA", "plain");
    struct kernels *plain;

    op_case_input(c, LINEAR_X, 1, 2, DTYPE_F32, 0);
    op_case_input(c, LINEAR_W, 1, 2, DTYPE_F32, 0);
    op_case_output(c, LINEAR_Y, 1, 1, DTYPE_F32);
    assert_int_equal(kernels_cpu_create(&plain, f->pool, NULL, &f->err), 0);
    bool fused = strstr(kernels_identity(plain), " fused ") != NULL;
    assert_true(difference_of_product(c) == (fused ? 0x1p-24 : 0));
    kernels_destroy(plain);
    test_put_back("LMTRAIN_CPU_ISA", kept);
    if (!strstr(kernels_identity(f->kernels), "plain"))
        assert_true(difference_of_product(c) == 0x1p-24);
    op_case_destroy(c);
}

/* Nothing is chosen here that text could tell. */
static void test_has_no_choices(void **state)
{
    struct fixture *f = *state;
    struct op_case *c = linear_case();
    struct kernel_call call = { .op = c->op };
    struct str text = { 0 };

    assert_int_equal(kernels_prepare(f->kernels, &call, &f->err), 0);
    kernels_choices_print(f->kernels, &text);
    assert_int_equal(text.length, 0);
    assert_int_equal(kernels_choices_load(f->kernels, "product of a GPU\n", &f->err), 0);
    kernels_release(f->kernels, &call);
    op_case_destroy(c);
}

static void test_refuses_unknown_isas(void **state)
{
    struct fixture *f = *state;
    char *kept = test_set_aside("LMTRAIN_CPU_ISA", "avx1024");
    struct kernels *kernels = NULL;

    assert_int_equal(kernels_cpu_create(&kernels, f->pool, NULL, &f->err), -1);
    assert_null(kernels);
    assert_non_null(strstr(f->err.text, "avx1024"));
    test_put_back("LMTRAIN_CPU_ISA", kept);
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
    return test_each_isa(run_all);
}
