/* The products again, by the catalogue-wide harness: linear, its gradients and the head. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"
#include "support/test_device.h"

enum { T = 70, K = 45, N = 83 };

static void test_linear(void **state)
{
    /* The bias, or what it is added to (cuda/gemm.cuh). */
    int rounds_twice = test_device_is_cuda();

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++)
        for (int bias = 0; bias < 2; bias++) {
            enum dtype act = act_at(i_act);
            struct op_case *c = op_case_create(OP_LINEAR, &(struct op_attributes){ 0 });

            op_case_input(c, 0, T, K, act, 1);
            op_case_input(c, 1, N, K, act, 1);
            if (bias)
                op_case_input(c, 2, 1, N, DTYPE_F32, 1);
            op_case_output(c, 0, T, N, act);
            op_case_check(c, !rounds_twice || !bias ? 2e-6
                             : act == DTYPE_BF16    ? 0x1p-7
                             : act == DTYPE_F16     ? 0x1p-10
                                                    : 2e-6);
            op_case_destroy(c);
            c = op_case_create(OP_LINEAR_DX, &(struct op_attributes){ 0 });
            op_case_input(c, 0, T, N, act, 1);
            op_case_input(c, 1, N, K, act, 1);
            op_case_output(c, 0, T, K, act);
            op_case_check(c, 2e-6);
            op_case_destroy(c);
            c = op_case_create(OP_LINEAR_DW, &(struct op_attributes){ 0 });
            op_case_input(c, 0, T, N, act, 1);
            op_case_input(c, 1, T, K, act, 1);
            op_case_output(c, 0, N, K, DTYPE_F32);
            if (bias)
                op_case_output(c, 1, 1, N, DTYPE_F32);
            op_case_check(c, 2e-6);
            op_case_destroy(c);
        }
}

/* 16 bits round the softmax's gradient before its products, hence the wide limit there. */
static void test_head(void **state)
{
    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++)
        for (int grads = 0; grads < 2; grads++) {
            enum dtype act = act_at(i_act);
            struct op_attributes a = { .chunk = 32 };
            struct op_case *c = op_case_create(grads ? OP_HEAD_CROSS_ENTROPY : OP_HEAD_LOSS, &a);

            op_case_input(c, 0, T, K, act, 0.5);
            op_case_input(c, 1, N, K, act, 0.5);
            op_case_input(c, 2, T, 1, DTYPE_I32, 0);
            for (int t = 0; t < T; t++)
                tensor_set(&c->op.in[2], t, 0, t % 9 == 4 ? -1 : t * 5 % N);
            if (grads) {
                op_case_input(c, 3, 1, 1, DTYPE_F32, 1);
                op_case_output(c, 0, T, K, act);
                op_case_output(c, 1, N, K, DTYPE_F32);
            }
            op_case_output(c, grads ? 2 : 0, 1, 1, DTYPE_F64);
            op_case_check(c, act == DTYPE_BF16 ? 1e-2 : act == DTYPE_F16 ? 1.2e-3 : 5e-6);
            op_case_destroy(c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_head),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
