/*
 * router_test.c - router and router_grad against the reference; ties, numbers that are none
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/op_case.h"

/* Tokens, experts, of which active: edges of tiles and of lanes; several sums of tokens. */
static const struct size {
    int64_t tokens, m, n;
} sizes[] = { { 1, 1, 1 },     { 5, 4, 2 },   { 64, 8, 8 },  { 65, 17, 3 },
              { 200, 128, 8 }, { 3, 70, 40 }, { 530, 33, 2 } };

#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

static struct op_case *router(const struct size *s, int normalize, int has_stats)
{
    struct op_attributes a = { .normalize = normalize };
    struct op_case *c = op_case_create(OP_ROUTER, &a);

    op_case_input(c, 0, s->tokens, s->m, DTYPE_F32, 2);
    op_case_output(c, 0, s->tokens, s->n, DTYPE_F32);
    op_case_output(c, 1, s->tokens, s->n, DTYPE_I32);
    if (has_stats)
        op_case_output(c, 2, 1, 1 + s->m, DTYPE_F64);
    return c;
}

static void test_router(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        for (int form = 0; form < 4; form++) {
            struct op_case *c = router(&sizes[s], form & 1, form >> 1);

            op_case_check(c, 1e-6);
            op_case_destroy(c);
        }
}

/* Weights and experts of the router's own. */
static void check_gradient(const struct size *s, int normalize, double balance, double scale,
                           int n_layers)
{
    struct op_attributes a = { .normalize = normalize, .balance = balance };
    struct op_case *forward = router(s, normalize, 0), *c = op_case_create(OP_ROUTER_GRAD, &a);

    op_case_run(forward, 2, RUN_FIRST);
    op_case_input(c, 0, s->tokens, s->n, DTYPE_F32, 1);
    op_case_input(c, 1, s->tokens, s->n, DTYPE_F32, 0);
    op_case_input(c, 2, s->tokens, s->n, DTYPE_I32, 0);
    if (!normalize || balance > 0)
        op_case_input(c, 3, s->tokens, s->m, DTYPE_F32, 0);
    if (scale > 0) {
        op_case_input(c, 4, 1, 1, DTYPE_F32, 0);
        tensor_set(&c->op.in[4], 0, 0, scale);
    }
    if (n_layers)
        op_case_input(c, 5, n_layers * s->tokens, s->n, DTYPE_I32, 0);
    op_case_output(c, 0, s->tokens, s->m, DTYPE_F32);
    /* Of other layers: some experts more often than others. */
    for (int64_t t = 0; t < n_layers * s->tokens; t++)
        for (int64_t i = 0; i < s->n; i++)
            tensor_set(&c->op.in[5], t, i, (double)((t * t / 3 + i) % s->m));
    for (int64_t t = 0; t < s->tokens; t++) {
        for (int64_t i = 0; i < s->n; i++) {
            tensor_set(&c->op.in[1], t, i, tensor_get(&forward->op.out[0], t, i));
            tensor_set(&c->op.in[2], t, i, tensor_get(&forward->op.out[1], t, i));
        }
        for (int64_t e = 0; e < s->m && tensor_given(&c->op.in[3]); e++)
            tensor_set(&c->op.in[3], t, e, tensor_get(&forward->op.in[0], t, e));
    }
    op_case_check(c, 2e-6);
    op_case_destroy(c);
    op_case_destroy(forward);
}

static void test_router_grad(void **state)
{
    (void)state;
    for (int s = 1; s < N_SIZES; s++)
        for (int form = 0; form < 4; form++)
            check_gradient(&sizes[s], form & 1, form >> 1 ? 30 : 0, 0, 0);
    for (int scaled = 0; scaled < 2; scaled++)
        check_gradient(&sizes[3], 1, scaled ? 30 : 0, 1024, 0);
    for (int n_layers = 1; n_layers < 4; n_layers++)
        for (int s = 1; s < N_SIZES; s++)
            check_gradient(&sizes[s], s & 1, 30, s == 3 ? 1024 : 0, n_layers);
}

/* Of equal ones the lower; what is not a number chooses experts all the same, and shows. */
static void test_ties_and_nans(void **state)
{
    static const double rows[4][6] = { { 1, 3, 3, 0, 3, 3 },
                                       { 0, 0, 0, 0, 0, 0 },
                                       { NAN, 1, NAN, 2, NAN, 0 },
                                       { -INFINITY, -INFINITY, INFINITY, 1, 1, 1 } };
    static const int wanted[4][3] = { { 1, 2, 4 }, { 0, 1, 2 }, { 0, 2, 4 }, { 2, 3, 4 } };
    struct op_case *c = router(&(struct size){ 4, 6, 3 }, 1, 0);

    (void)state;
    for (int t = 0; t < 4; t++)
        for (int e = 0; e < 6; e++)
            tensor_set(&c->op.in[0], t, e, rows[t][e]);
    op_case_run(c, 1, RUN_FIRST);
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 3; i++) {
            int e = (int)tensor_get(&c->op.out[1], t, i);

            assert_int_equal(e, wanted[t][i]);
        }
    assert_true(isnan(tensor_get(&c->op.out[0], 2, 0)));
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_router_grad),
        cmocka_unit_test(test_ties_and_nans),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
