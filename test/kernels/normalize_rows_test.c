#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

static const int sizes[][2] = { { 1, 1 }, { 3, 5 }, { 40, 33 }, { 17, 128 }, { 5, 1000 } };

static struct op_case *rows_case(const int *size, int grad, enum dtype act)
{
    struct op_attributes a = { .eps = 1e-12 };
    struct op_case *c = op_case_create(grad ? OP_NORMALIZE_ROWS_GRAD : OP_NORMALIZE_ROWS, &a);

    if (grad)
        op_case_input(c, 0, size[0], size[1], DTYPE_F32, 1);
    op_case_input(c, grad, size[0], size[1], act, 1);
    if (grad) {
        op_case_input(c, 2, size[0], 1, DTYPE_F32, 1);
        op_case_output(c, 0, size[0], size[1], DTYPE_F32);
    } else {
        op_case_output(c, 0, size[0], size[1], act);
        op_case_output(c, 1, size[0], 1, DTYPE_F32);
    }
    /* The last row is zero: a vocabulary's padding. */
    for (int i = 0; i < size[1]; i++)
        tensor_set(&c->op.in[grad], size[0] - 1, i, 0);
    for (int row = 0; grad && row < size[0]; row++) {
        double square = 0;

        for (int i = 0; i < size[1]; i++)
            square += pow(tensor_get(&c->op.in[1], row, i), 2);
        tensor_set(&c->op.in[2], row, 0, fmax(sqrt(square), 1e-12));
        for (int i = 0; square == 0 && i < size[1]; i++)
            tensor_set(&c->op.in[0], row, i, 0);
    }
    return c;
}

static void test_normalize_rows(void **state)
{
    (void)state;
    for (int grad = 0; grad < 2; grad++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int i_act = 0; i_act < N_ACTS; i_act++) {
                struct op_case *c = rows_case(sizes[i], grad, act_at(i_act));

                op_case_check(c, 1e-6);
                op_case_destroy(c);
            }
}

/* A padded row of a vocabulary stays zero, and so does its gradient. */
static void test_zero_row(void **state)
{
    static const int size[] = { 2, 40 };

    (void)state;
    for (int grad = 0; grad < 2; grad++) {
        struct op_case *c = rows_case(size, grad, DTYPE_F32);

        op_case_run(c, 1, RUN_FIRST);
        for (int i = 0; i < 40; i++)
            assert_true(tensor_get(&c->op.out[0], 1, i) == 0);
        op_case_destroy(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalize_rows),
        cmocka_unit_test(test_zero_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
