#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

enum { ROWS = 37, POSITIONS = 20 };

static struct op_case *rope_case(enum op_kind kind, int n, int e, enum dtype act)
{
    struct op_attributes a = { .n_heads = 1, .n_kv_heads = 1, .head_dim = e };
    struct op_case *c = op_case_create(kind, &a);
    int64_t width = n * e;

    op_case_input(c, 0, ROWS, width, act, 1);
    op_case_input(c, 1, ROWS, 1, DTYPE_I32, 0);
    op_case_input(c, 2, POSITIONS, e, DTYPE_F32, 1);
    op_case_output(c, 0, ROWS, width, act);
    for (int t = 0; t < ROWS; t++)
        tensor_set(&c->op.in[1], t, 0, t * 7 % POSITIONS);
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < e / 2; i++) {
            double angle = p * pow(10000, -2.0 * i / e);

            tensor_set(&c->op.in[2], p, i, cos(angle));
            tensor_set(&c->op.in[2], p, e / 2 + i, sin(angle));
        }
    return c;
}

static void test_rope(void **state)
{
    (void)state;
    for (int kind = OP_ROPE; kind <= OP_ROPE_GRAD; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_case *c = rope_case((enum op_kind)kind, 8, 10, act);

            op_case_check(c, 1e-6);
            op_case_destroy(c);
            c = rope_case((enum op_kind)kind, 1, 64, act);
            op_case_check(c, 1e-6);
            op_case_destroy(c);
        }
}

/* The gradient turns back: the two undo each other. */
static void test_grad_is_the_inverse(void **state)
{
    struct op_case *there = rope_case(OP_ROPE, 6, 16, DTYPE_F32);
    struct op_case *back = rope_case(OP_ROPE_GRAD, 6, 16, DTYPE_F32);

    (void)state;
    op_case_run(there, 2, RUN_FIRST);
    for (int t = 0; t < ROWS; t++)
        for (int i = 0; i < 6 * 16; i++)
            tensor_set(&back->op.in[0], t, i, tensor_get(&there->op.out[0], t, i));
    op_case_run(back, 2, RUN_FIRST);
    for (int t = 0; t < ROWS; t++)
        for (int i = 0; i < 6 * 16; i++)
            assert_true(fabs(tensor_get(&back->op.out[0], t, i) -
                             tensor_get(&there->op.in[0], t, i)) < 1e-6);
    op_case_destroy(there);
    op_case_destroy(back);
}

/* A row that is not a token must not read outside of the table. */
static void test_no_token(void **state)
{
    struct op_case *c = rope_case(OP_ROPE, 4, 4, DTYPE_F32);

    (void)state;
    tensor_set(&c->op.in[1], 3, 0, -1);
    op_case_run(c, 1, RUN_FIRST);
    for (int i = 0; i < 4 * 4; i++)
        assert_true(isfinite(tensor_get(&c->op.out[0], 3, i)));
    op_case_destroy(c);
}

/* Over its input, whose rows lie apart: the same bits. */
static void in_place_case(enum op_kind kind, int e, enum dtype act)
{
    struct op_case *apart = rope_case(kind, 8, e, act), *over = rope_case(kind, 8, e, act);
    struct tensor own = over->op.out[0];

    op_case_run(apart, 3, RUN_FIRST);
    over->op.out[0] = over->op.in[0];
    op_case_run(over, 3, RUN_AGAIN);
    for (int t = 0; t < ROWS; t++)
        for (int i = 0; i < 8 * e; i++)
            if (tensor_get(&over->op.in[0], t, i) != tensor_get(&apart->op.out[0], t, i))
                fail_msg("row %d, column %d: %g, apart %g", t, i, tensor_get(&over->op.in[0], t, i),
                         tensor_get(&apart->op.out[0], t, i));
    over->op.out[0] = own;
    op_case_destroy(apart);
    op_case_destroy(over);
}

static void test_in_place(void **state)
{
    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        in_place_case(OP_ROPE, 10, act_at(i_act));
        in_place_case(OP_ROPE_GRAD, 64, act_at(i_act));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_grad_is_the_inverse),
        cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_in_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
