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

static struct op_case *router(const struct size *s, const struct op_attributes *a, int has_stats)
{
    struct op_case *c = op_case_create(OP_ROUTER, a);

    op_case_input(c, ROUTER_LOGITS, s->tokens, s->m, DTYPE_F32, 2);
    if (a->score == ROUTER_SIGMOID && has_stats)
        op_case_input(c, ROUTER_BIAS, 1, s->m, DTYPE_F32, 0.1);
    op_case_output(c, ROUTER_WEIGHT, s->tokens, s->n, DTYPE_F32);
    op_case_output(c, ROUTER_EXPERT, s->tokens, s->n, DTYPE_I32);
    if (has_stats)
        op_case_output(c, ROUTER_STATS, 1, 1 + s->m, DTYPE_F64);
    if (has_stats && s->m % 2)
        op_case_output(c, ROUTER_COUNTS, 1, s->m, DTYPE_F64);
    return c;
}

/* Attributes of all kinds of scores and weights, by bits of a number. */
static struct op_attributes form_of(int form, const struct size *s)
{
    int is_long = s->tokens > 100;

    return (struct op_attributes){ .normalize = form & 1,
                                   .score = form & 2 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                                   .scale = form & 2 ? 2.5 : 1,
                                   .by_sequence = form >> 2 & 1,
                                   .seq_len = (int)s->tokens / (is_long ? 2 : 1) };
}

#define N_FORMS 8

static void test_router(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        for (int form = 0; form < 2 * N_FORMS; form++) {
            struct op_attributes a = form_of(form, &sizes[s]);
            struct op_case *c = router(&sizes[s], &a, form >= N_FORMS);

            op_case_check(c, 1e-6);
            op_case_destroy(c);
        }
}

/* Groups of one expert, of several, and as many as there may be; more of them than lanes have. */
static void test_groups(void **state)
{
    static const struct {
        struct size size;
        int groups, kept;
    } cases[] = { { { 70, 8, 2 }, 4, 2 },   { { 65, 32, 4 }, 32, 5 },  { { 3, 256, 8 }, 8, 4 },
                  { { 130, 64, 6 }, 8, 1 }, { { 5, 160, 6 }, 32, 32 }, { { 9, 66, 3 }, 2, 1 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int form = 0; form < 4; form++) {
            struct op_attributes a = form_of(form, &cases[i].size);

            a.groups = cases[i].groups;
            a.groups_kept = cases[i].kept;
            struct op_case *c = router(&cases[i].size, &a, form & 1);
            op_case_check(c, 1e-6);
            op_case_destroy(c);
        }
}

/* Weights and experts of the router's own. */
static void check_gradient(const struct size *s, const struct op_attributes *a, double scale,
                           int n_layers, int has_counts)
{
    struct op_case *forward = router(s, a, 0), *c = op_case_create(OP_ROUTER_GRAD, a);

    op_case_run(forward, 2, RUN_FIRST);
    op_case_input(c, 0, s->tokens, s->n, DTYPE_F32, 1);
    op_case_input(c, 1, s->tokens, s->n, DTYPE_F32, 0);
    op_case_input(c, 2, s->tokens, s->n, DTYPE_I32, 0);
    if (!a->normalize || a->score == ROUTER_SIGMOID || a->balance > 0 || a->z > 0)
        op_case_input(c, 3, s->tokens, s->m, DTYPE_F32, 0);
    if (scale > 0) {
        op_case_input(c, 4, 1, 1, DTYPE_F32, 0);
        tensor_set(&c->op.in[4], 0, 0, scale);
    }
    if (n_layers)
        op_case_input(c, 5, n_layers * s->tokens, s->n, DTYPE_I32, 0);
    if (has_counts)
        op_case_input(c, 6, 1, s->m, DTYPE_F64, 0);
    op_case_output(c, 0, s->tokens, s->m, DTYPE_F32);
    for (int64_t e = 0; e < s->m && has_counts; e++)
        tensor_set(&c->op.in[6], 0, e, (double)(3 + e * e % 7));
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
    op_case_check(c, 4e-6);
    op_case_destroy(c);
    op_case_destroy(forward);
}

static void test_router_grad(void **state)
{
    (void)state;
    for (int s = 1; s < N_SIZES; s++)
        for (int form = 0; form < 4 * N_FORMS; form++) {
            struct op_attributes a = form_of(form, &sizes[s]);
            int losses = form / N_FORMS; /* none, balance, z, both */

            a.balance = losses & 1 ? 30 : 0;
            a.z = losses & 2 ? 3 : 0;
            check_gradient(&sizes[s], &a, s == 3 ? 1024 : 0, 0, 0);
        }
    for (int n_layers = 1; n_layers < 4; n_layers++)
        for (int s = 1; s < N_SIZES; s++)
            for (int has_counts = 0; has_counts < 2; has_counts++) {
                struct op_attributes a = form_of((s & 1) | (s & 2) << 1, &sizes[s]);

                a.by_sequence &= !has_counts;
                a.balance = 30;
                check_gradient(&sizes[s], &a, s == 3 ? 1024 : 0, has_counts ? 0 : n_layers,
                               has_counts);
            }
}

/* Of equal ones the lower; what is not a number chooses experts all the same, and shows. */
static void test_ties_and_nans(void **state)
{
    static const double rows[4][6] = { { 1, 3, 3, 0, 3, 3 },
                                       { 0, 0, 0, 0, 0, 0 },
                                       { NAN, 1, NAN, 2, NAN, 0 },
                                       { -INFINITY, -INFINITY, INFINITY, 1, 1, 1 } };
    static const int wanted[4][3] = { { 1, 2, 4 }, { 0, 1, 2 }, { 0, 2, 4 }, { 2, 3, 4 } };
    const struct op_attributes a = { .normalize = 1, .scale = 1 };
    struct op_case *c = router(&(struct size){ 4, 6, 3 }, &a, 0);

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
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_router_grad),
        cmocka_unit_test(test_ties_and_nans),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
