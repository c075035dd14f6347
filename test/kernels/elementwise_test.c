#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

/* Odd, one wide row of several tiles, many rows of several tiles; without gaps between rows of
 * whole multiples of 16 bytes. */
static const int64_t sizes[][2] = { { 1, 1 }, { 5, 33 }, { 1, 40001 }, { 700, 50 }, { 37, 264 } };

#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

static void test_extremes(void **state)
{
    static const double values[] = { -1e30, -100, -20, 0, 1e-30, 20, 100, 1e30 };
    struct op_case *swiglu = op_case_create(OP_SWIGLU, &(struct op_attributes){ 0 });
    struct op_case *gelu = op_case_create(OP_GELU, &(struct op_attributes){ 0 });

    (void)state;
    op_case_input(swiglu, 0, 1, 16, DTYPE_F32, 0);
    op_case_output(swiglu, 0, 1, 8, DTYPE_F32);
    op_case_input(gelu, 0, 1, 8, DTYPE_F32, 0);
    op_case_output(gelu, 0, 1, 8, DTYPE_F32);
    for (int i = 0; i < 8; i++) {
        tensor_set(&swiglu->op.in[0], 0, i, values[i]);
        tensor_set(&swiglu->op.in[0], 0, 8 + i, 1);
        tensor_set(&gelu->op.in[0], 0, i, values[i]);
    }
    op_case_run(swiglu, 1, RUN_FIRST);
    op_case_run(gelu, 1, RUN_FIRST);
    for (int i = 0; i < 8; i++) {
        double wanted = values[i] > 10 ? values[i] : 0;
        double limit = wanted > 0 ? 1e-6 * wanted : 1e-6;

        assert_true(fabs(tensor_get(&swiglu->op.out[0], 0, i) - wanted) <= limit);
        assert_true(fabs(tensor_get(&gelu->op.out[0], 0, i) - wanted) <= limit);
    }
    op_case_destroy(swiglu);
    op_case_destroy(gelu);
}

static void two_operands(enum op_kind kind, enum dtype first, enum dtype second, enum dtype out,
                         int s)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });

    op_case_input(c, 0, sizes[s][0], sizes[s][1], first, 1);
    if (second != N_DTYPES)
        op_case_input(c, 1, sizes[s][0], sizes[s][1], second, 1);
    op_case_output(c, 0, sizes[s][0], sizes[s][1], out);
    op_case_check(c, 1e-7);
    op_case_destroy(c);
}

static void test_movements(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++) {
        two_operands(OP_ADD, DTYPE_F32, DTYPE_F32, DTYPE_F32, s);
        two_operands(OP_ADD, DTYPE_F32, DTYPE_BF16, DTYPE_F32, s);
        two_operands(OP_ADD, DTYPE_F32, DTYPE_F16, DTYPE_F32, s);
        for (int to = 0; to < N_ACTS; to++)
            for (int from = 0; from < N_ACTS; from++)
                if (from != to)
                    two_operands(OP_CAST, act_at(from), N_DTYPES, act_at(to), s);
        two_operands(OP_ACCUMULATE, DTYPE_F32, N_DTYPES, DTYPE_F32, s);
    }
}

static void test_add_bias(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct op_case *c = op_case_create(OP_ADD_BIAS, &(struct op_attributes){ 0 });
            enum dtype act = act_at(i_act);

            op_case_input(c, 0, sizes[s][0], sizes[s][1], act, 1);
            op_case_input(c, 1, 1, sizes[s][1], DTYPE_F32, 1);
            op_case_output(c, 0, sizes[s][0], sizes[s][1], act);
            op_case_check(c, 1e-7);
            op_case_destroy(c);
        }
}

static void test_select_rows(void **state)
{
    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *c = op_case_create(OP_SELECT_ROWS, &(struct op_attributes){ 0 });
        enum dtype act = act_at(i_act);

        op_case_input(c, 0, 9, 17, act, 1);
        op_case_input(c, 1, 3, 1, DTYPE_I32, 0);
        op_case_output(c, 0, 3, 17, act);
        tensor_set(&c->op.in[1], 0, 0, 8);
        tensor_set(&c->op.in[1], 2, 0, 8);
        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

/* More rows than a block of them has, than all blocks have at their least; rows of whole 16 bytes,
 * and not. */
static void test_bias_grad(void **state)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 5, 33 }, { 300, 264 }, { 8300, 40 } };

    (void)state;
    for (int s = 0; s < 4; s++)
        for (int dense = 0; dense < 2; dense++)
            for (int i_act = 0; i_act < N_ACTS; i_act++) {
                struct op_case *c = op_case_create(OP_BIAS_GRAD, &(struct op_attributes){ 0 });

                c->dense = dense;
                op_case_input(c, 0, shapes[s][0], shapes[s][1], act_at(i_act), 1);
                op_case_output(c, 0, 1, shapes[s][1], DTYPE_F32);
                op_case_check(c, 1.3e-7); /* one rounding, and the add's */
                op_case_destroy(c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_extremes),  cmocka_unit_test(test_movements),
        cmocka_unit_test(test_add_bias),  cmocka_unit_test(test_select_rows),
        cmocka_unit_test(test_bias_grad),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
