#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

struct form {
    int n_heads, n_kv_heads, head_dim, rows;
};

/* Odd widths, rows beyond a block of the sums, one head, the widest. */
static const struct form forms[] = {
    { 1, 1, 1, 1 }, { 4, 2, 7, 65 }, { 6, 3, 40, 130 }, { 8, 1, 64, 33 }, { 2, 2, 256, 20 }
};

static struct op_case *head_norm_case(const struct form *f, int grad, int weights, enum dtype act)
{
    struct op_attributes a = {
        .n_heads = f->n_heads, .n_kv_heads = f->n_kv_heads, .head_dim = f->head_dim, .eps = 1e-6
    };
    struct op_case *c = op_case_create(grad ? OP_HEAD_NORM_GRAD : OP_HEAD_NORM, &a);
    int64_t normed = f->n_heads + f->n_kv_heads, width = normed * f->head_dim;

    c->dense = f->n_heads == 8;
    op_case_input(c, 0, f->rows, width, act, 1);
    if (grad)
        op_case_input(c, 1, f->rows, width, act, 1);
    op_case_input(c, 1 + grad, 1, f->head_dim, DTYPE_F32, 1);
    op_case_input(c, 2 + grad, 1, f->head_dim, DTYPE_F32, 1);
    op_case_output(c, 0, f->rows, width, act);
    if (grad)
        op_case_input(c, 4, f->rows, normed, DTYPE_F32, 1);
    else
        op_case_output(c, 1, f->rows, normed, DTYPE_F32);
    for (int k = 1; grad && k < 3; k++)
        if (weights & k)
            op_case_output(c, k, 1, f->head_dim, DTYPE_F32);
    return c;
}

static void test_head_norm(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct op_case *c = head_norm_case(&forms[f], 0, 0, act_at(i_act));

            op_case_check(c, 1e-6);
            op_case_destroy(c);
        }
}

/* With all of the weights' gradients, or some. */
static void test_head_norm_grad(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int i_act = 0; i_act < N_ACTS; i_act++)
            for (int weights = f == 1 ? 0 : 3; weights < 4; weights++) {
                struct op_case *c = head_norm_case(&forms[f], 1, weights, act_at(i_act));

                op_case_check(c, 2e-6);
                op_case_destroy(c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_norm),
        cmocka_unit_test(test_head_norm_grad),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
