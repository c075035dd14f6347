/*
 * arch_test.c - ops that need much shared memory, on GPUs that have less of it than sm_90
 *
 * The emulated GPU has the limits of the architecture that LMTRAIN_EMULATE_ARCH names: all tests
 * are run for each in a process of its own, as a device is opened once.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/op_case.h"
#include "support/test_device.h"

static const struct arch {
    const char *name;
    int64_t
        shared_bytes; /* of a block, at most: CUDA C++ Programming Guide, Compute Capabilities */
} archs[] = { { "80", 163 << 10 }, { "86", 99 << 10 }, { "89", 99 << 10 }, { "90", 227 << 10 } };

static const struct arch *here;

/* Tokens' choices among m experts, in order. */
static struct op_case *expert_order(int64_t m)
{
    struct op_case *c = op_case_create(OP_EXPERT_ORDER, &(struct op_attributes){ 0 });

    op_case_input(c, 0, 50, 3, DTYPE_I32, 0);
    for (int64_t token = 0; token < 50; token++)
        for (int64_t i = 0; i < 3; i++)
            tensor_set(&c->op.in[0], token, i, (double)((token * token * 11 + i) % m));
    op_case_output(c, 0, 50, 3, DTYPE_I32);
    op_case_output(c, 1, 1, m, DTYPE_I32);
    return c;
}

/* That an op is not prepared says what it would need, which is more than the device has. */
static void expect_refused(struct op_case *c, const char *name)
{
    struct kernels *kernels = test_device_open(1);
    struct kernel_call call = { .op = c->op };
    struct err err = { 0 };
    char needs[64], has[64];

    assert_int_equal(kernels_prepare(kernels, &call, &err), -1);
    snprintf(needs, sizeof needs, "%s: needs ", name);
    snprintf(has, sizeof has, " has %lld", (long long)here->shared_bytes);
    const char *at = strstr(err.text, needs);
    if (!at || !strstr(at, " bytes of shared memory") || !strstr(at, has))
        fail_msg("'%s' lacks '%s' or '%s'", err.text, needs, has);
    assert_true(strtoll(at + strlen(needs), NULL, 10) > here->shared_bytes);
    test_device_close(kernels);
}

static void test_expert_order(void **state)
{
    static const int64_t n_experts[] = { 8, 2000, 12000, 20000, 28000, 29000 };

    (void)state;
    for (size_t i = 0; i < sizeof n_experts / sizeof *n_experts; i++) {
        int64_t m = n_experts[i], needs_bytes = (256 + 2 * m) * 4;
        struct op_case *c = expert_order(m);

        if (needs_bytes <= here->shared_bytes)
            op_case_check(c, 0);
        else
            expect_refused(c, "expert_order");
        op_case_destroy(c);
    }
}

static void test_router_counts(void **state)
{
    struct op_case *c =
        op_case_create(OP_ROUTER, &(struct op_attributes){ .normalize = 1, .scale = 1 });

    (void)state;
    op_case_input(c, 0, 65, 16, DTYPE_F32, 2);
    op_case_output(c, 0, 65, 2, DTYPE_F32);
    op_case_output(c, 1, 65, 2, DTYPE_I32);
    op_case_output(c, 2, 1, 1 + 16, DTYPE_F64);
    op_case_check(c, 1e-6);
    op_case_destroy(c);
}

/* Of so many experts that tiles are of 256 columns, where a block may have 144 KiB. */
static void test_expert_linear(void **state)
{
    static const int rows[] = { 0, 3, 129, 0, 0, 2 };
    enum { M = 130, N = 488, K = 8, N_ROWS = 134 };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *c = op_case_create(OP_EXPERT_LINEAR, &(struct op_attributes){ 0 });
        int end = 0;

        c->gap = 8;
        op_case_input(c, 0, N_ROWS, K, act_at(i_act), 1);
        op_case_input(c, 1, 1, M, DTYPE_I32, 0);
        op_case_input(c, 2, M * N, K, act_at(i_act), 1);
        op_case_output(c, 0, N_ROWS, N, act_at(i_act));
        for (int e = 0; e < M; e++)
            tensor_set(&c->op.in[1], 0, e, end += e < 6 ? rows[e] : 0);
        op_case_check(c, 3e-6);
        op_case_destroy(c);
    }
}

static void test_lora(void **state)
{
    struct op_attributes a = { .parts = { 40, 40, 40 } };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *c = op_case_create(OP_LORA, &a);

        c->gap = 8;
        op_case_input(c, 0, 131, 120, act_at(i_act), 1);
        for (int i = 0; i < 3; i++) {
            op_case_input(c, 1 + 2 * i, 131, 16, act_at(i_act), 1);
            op_case_input(c, 2 + 2 * i, 40, 16, act_at(i_act), 1);
        }
        op_case_output(c, 0, 131, 120, act_at(i_act));
        op_case_check(c, 3e-6);
        op_case_destroy(c);
    }
}

/* Two heads of queries that share keys, over three tiles of either. */
static struct op_case *attention(enum op_kind kind, int head_dim, double p, enum dtype act)
{
    enum { N_ROWS = 150, N_HEADS = 2 };
    struct op_attributes a = { .n_heads = N_HEADS,
                               .n_kv_heads = 1,
                               .head_dim = head_dim,
                               .seq_len = N_ROWS,
                               .scale = 1 / sqrt(head_dim),
                               .p = p,
                               .seed = 5 };
    struct op_case *c = op_case_create(kind, &a);

    c->gap = 8;
    op_case_attention(c, N_ROWS, act);
    if (p > 0)
        op_case_input(c, kind == OP_ATTENTION_GRAD ? 6 : 3, 1, 1, DTYPE_I64, 0);
    return c;
}

static void check_attention(int head_dim, double p, enum dtype act)
{
    double tolerance = attention_tolerance(act, 5e-6);
    struct op_case *c = attention(OP_ATTENTION, head_dim, p, act);

    op_case_check(c, tolerance);
    op_case_destroy(c);
    c = attention(OP_ATTENTION_GRAD, head_dim, p, act);
    op_case_fill_saved(c, attention(OP_ATTENTION, head_dim, p, act));
    op_case_check(c, tolerance);
    op_case_destroy(c);
}

/* The backend's own kernels: heads of up to 128 go everywhere. */
static void test_attention(void **state)
{
    (void)state;
    setenv("LMTRAIN_ATTENTION", "own", 1);
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        check_attention(128, 0, act_at(i_act));
        check_attention(128, 0.1, act_at(i_act));
        check_attention(64, 0, act_at(i_act));
    }
}

static void test_wide_heads(void **state)
{
    struct op_case *c = attention(OP_ATTENTION_GRAD, 256, 0, DTYPE_BF16);

    (void)state;
    setenv("LMTRAIN_ATTENTION", "own", 1);
    if (here->shared_bytes < 163 << 10)
        expect_refused(c, "attention_grad");
    op_case_destroy(c);
}

static int tests_on(const struct arch *arch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_order),  cmocka_unit_test(test_router_counts),
        cmocka_unit_test(test_expert_linear), cmocka_unit_test(test_lora),
        cmocka_unit_test(test_attention),     cmocka_unit_test(test_wide_heads),
    };

    here = arch;
    setenv("LMTRAIN_EMULATE_ARCH", arch->name, 1);
    printf("LMTRAIN_EMULATE_ARCH=%s\n", arch->name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    int n_failed = 0;

    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        pid_t pid;
        int status;

        fflush(NULL);
        pid = fork();
        if (pid == 0)
            exit(tests_on(&archs[i]) ? 1 : 0);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "failed on sm_%s\n", archs[i].name);
            n_failed++;
        }
    }
    return n_failed ? 1 : 0;
}
