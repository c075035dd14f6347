/*
 * limit_choices_test.c - choices beyond an expert's capacity, and what has none of them
 *
 * The reference (support/ops/router.c) counts for each choice those that come before it. Weights
 * are few different ones, so that many are equal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

enum routing { SPREAD_OUT, ALL_TO_ONE };

static const struct size {
    int tokens, s, m, capacity;
    enum routing routing;
} sizes[] = {
    { 1, 1, 1, 1, SPREAD_OUT },     { 1, 3, 3, 1, SPREAD_OUT }, /* one token, all experts */
    { 40, 4, 4, 17, SPREAD_OUT },                               /* all experts */
    { 300, 1, 7, 5, ALL_TO_ONE },   { 300, 2, 5, 299, ALL_TO_ONE },
    { 300, 1, 5, 300, ALL_TO_ONE }, /* exactly the capacity, and one more than it: above */
    { 700, 3, 16, 90, SPREAD_OUT }, { 260, 2, 600, 1, SPREAD_OUT },
};

#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

static struct op_case *limited(const struct size *s, int by_weight)
{
    struct op_attributes a = { .n_experts = s->m, .capacity = s->capacity };
    struct op_case *c = op_case_create(OP_LIMIT_CHOICES, &a);

    c->gap = 3;
    op_case_input(c, LIMIT_CHOICES_EXPERT, s->tokens, s->s, DTYPE_I32, 0);
    if (by_weight)
        op_case_input(c, LIMIT_CHOICES_WEIGHT, s->tokens, s->s, DTYPE_F32, 0);
    op_case_output(c, LIMIT_CHOICES_KEPT, s->tokens, s->s, DTYPE_I32);
    op_case_output(c, LIMIT_CHOICES_DROPPED, 1, 1, DTYPE_F64);
    for (int t = 0; t < s->tokens; t++)
        for (int i = 0; i < s->s; i++) {
            int first = s->routing == ALL_TO_ONE ? s->m - 1 : t * t % s->m;

            tensor_set(&c->op.in[LIMIT_CHOICES_EXPERT], t, i, (first + i) % s->m);
            if (by_weight)
                tensor_set(&c->op.in[LIMIT_CHOICES_WEIGHT], t, i,
                           (double)(t * 37 % 11 + i) / 16 * (t % 13 ? 1 : 1e-6));
        }
    return c;
}

static void capacities_are_kept(void **state)
{
    (void)state;
    for (int i = 0; i < N_SIZES; i++)
        for (int by_weight = 0; by_weight < 2; by_weight++) {
            struct op_case *c = limited(&sizes[i], by_weight);

            op_case_check(c, 0);
            op_case_destroy(c);
        }
}

/* Numbers that are none come first, as in routers. */
static void what_is_no_number_is_kept(void **state)
{
    static const struct size s = { 4, 1, 2, 2, ALL_TO_ONE };
    static const double weights[] = { 0.5, 0.0 / 0.0, 0.75, 0.6 };
    static const int kept[] = { -1, 1, 1, -1 };
    struct op_case *c = limited(&s, 1);

    (void)state;
    for (int t = 0; t < 4; t++)
        tensor_set(&c->op.in[LIMIT_CHOICES_WEIGHT], t, 0, weights[t]);
    op_case_run(c, 2, RUN_FIRST);
    for (int t = 0; t < 4; t++)
        assert_true(tensor_get(&c->op.out[LIMIT_CHOICES_KEPT], t, 0) == kept[t]);
    op_case_destroy(c);
}

/* Dropped choices have no row, and the others those that they would have by themselves. */
static void dropped_choices_have_no_row(void **state)
{
    enum { T = 700, S = 2, M = 5 };
    struct op_case *c = op_case_create(OP_EXPERT_ORDER, &(struct op_attributes){ .n_experts = M });

    (void)state;
    op_case_input(c, EXPERT_ORDER_EXPERT, T, S, DTYPE_I32, 0);
    op_case_input(c, EXPERT_ORDER_BEGIN, 1, 1, DTYPE_I32, 0);
    op_case_output(c, EXPERT_ORDER_PLACE, T, S, DTYPE_I32);
    op_case_output(c, EXPERT_ORDER_ENDS, 1, M, DTYPE_I32);
    tensor_set(&c->op.in[EXPERT_ORDER_BEGIN], 0, 0, 0);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < S; i++)
            tensor_set(&c->op.in[EXPERT_ORDER_EXPERT], t, i, (t + i) % 3 ? (t * t + i) % M : -1);
    op_case_check(c, 0);
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capacities_are_kept),
        cmocka_unit_test(what_is_no_number_is_kept),
        cmocka_unit_test(dropped_choices_have_no_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
