/*
 * dispatch_test.c - the order of rows, dispatch, combine and the weighted activation
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

/* gap: columns behind each row; of the last, rows are of 16 bytes. */
static const struct size {
    int64_t tokens, n, m, cols;
    int gap;
} sizes[] = { { 1, 1, 1, 1, 3 },     { 7, 2, 5, 33, 3 },  { 130, 3, 4, 70, 3 },
              { 40, 8, 16, 600, 3 }, { 33, 5, 9, 64, 8 }, { 3, 2, 2, 2072, 16 } };

#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

/* Distinct experts of a token, some of which nobody has. */
static void fill_experts(const struct tensor *t, int64_t m)
{
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t i = 0; i < t->cols; i++)
            tensor_set(t, row, i, (double)((row * row + i) % m));
}

/* What a GPU does in several blocks; more experts than a warp's counters have room for; one expert
 * alone. */
static const struct size order_sizes[] = {
    { 3000, 3, 40, 0, 3 },  { 4096, 1, 1, 0, 3 },    { 4097, 2, 2, 0, 3 },
    { 700, 7, 2000, 0, 3 }, { 1366, 3, 1366, 0, 3 },
};

#define N_ORDER_SIZES (int)(sizeof order_sizes / sizeof *order_sizes)

/* Of one part of the experts, of so many; with more parts than one not the first. */
static struct op_case *order(const struct size *s, int n_parts)
{
    struct op_case *c =
        op_case_create(OP_EXPERT_ORDER, &(struct op_attributes){ .n_experts = (int)s->m });

    op_case_input(c, EXPERT_ORDER_EXPERT, s->tokens, s->n, DTYPE_I32, 0);
    fill_experts(&c->op.in[EXPERT_ORDER_EXPERT], s->m);
    if (n_parts > 1) {
        op_case_input(c, EXPERT_ORDER_BEGIN, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[EXPERT_ORDER_BEGIN], 0, 0, (double)(s->m / n_parts * (n_parts - 1)));
    }
    op_case_output(c, 0, s->tokens, s->n, DTYPE_I32);
    op_case_output(c, 1, 1, s->m / n_parts, DTYPE_I32);
    return c;
}

static void check_order(const struct size *s, int n_parts)
{
    struct op_case *c = order(s, n_parts);

    op_case_check(c, 0);
    op_case_check_cpu_bits(c, RUN_FIRST); /* what is moved, or summed in order */
    op_case_destroy(c);
}

static void test_order(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        check_order(&sizes[s], 1);
    for (int s = 0; s < N_ORDER_SIZES; s++)
        check_order(&order_sizes[s], 1);
}

/* Into how many parts the experts may be divided: 1 where they may not. */
static int parts_of(const struct size *s)
{
    return s->m % 2 == 0 ? 2 : s->m % 3 == 0 ? 3 : 1;
}

static void test_order_of_a_part(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        if (parts_of(&sizes[s]) > 1)
            check_order(&sizes[s], parts_of(&sizes[s]));
    for (int s = 0; s < N_ORDER_SIZES; s++)
        if (parts_of(&order_sizes[s]) > 1)
            check_order(&order_sizes[s], parts_of(&order_sizes[s]));
}

/* Returns how many rows there are. */
static int64_t take_places(const struct tensor *to, const struct size *s, int n_parts)
{
    struct op_case *c = order(s, n_parts);

    op_case_run(c, 1, RUN_FIRST);
    for (int64_t t = 0; t < s->tokens; t++)
        for (int64_t i = 0; i < s->n; i++)
            tensor_set(to, t, i, tensor_get(&c->op.out[0], t, i));
    int64_t n = (int64_t)tensor_get(&c->op.out[1], 0, s->m / n_parts - 1);
    op_case_destroy(c);
    return n;
}

/* Of a part of the experts: room for as many rows as there are and a third of what is left. */
static int64_t room_of(const struct size *s, int64_t n_rows)
{
    return n_rows + (s->tokens * s->n - n_rows + 2) / 3;
}

/* What no expert has is no number. */
static void poison(const struct tensor *t, int64_t n_rows)
{
    for (int64_t row = n_rows; row < t->rows; row++)
        for (int64_t col = 0; col < t->cols; col++)
            tensor_set(t, row, col, (double)NAN);
}

static void check_moving(enum op_kind kind, const struct size *s, enum dtype act, int n_parts)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });
    int64_t rows[2] = { s->tokens, s->tokens * s->n };
    int back = kind == OP_COMBINE;

    c->gap = s->gap;
    c->leaves = n_parts > 1;
    op_case_input(c, 0, s->tokens, s->n, DTYPE_I32, 0);
    int64_t n_rows = take_places(&c->op.in[0], s, n_parts);
    rows[1] = room_of(s, n_rows);
    op_case_input(c, 1, rows[back], s->cols, act, 1);
    if (back)
        poison(&c->op.in[1], n_rows);
    op_case_output(c, 0, rows[!back], s->cols, act);
    op_case_check(c, back ? 1e-6 : 0);
    op_case_check_cpu_bits(c, RUN_FIRST);
    op_case_destroy(c);
}

static void test_moving(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            check_moving(OP_DISPATCH, &sizes[s], act_at(i_act), 1);
            check_moving(OP_COMBINE, &sizes[s], act_at(i_act), 1);
        }
}

/* One's result times any other's operand is the same both ways. */
static void test_each_is_the_others_gradient(void **state)
{
    const struct size *s = &sizes[2];
    struct op_case *there = op_case_create(OP_DISPATCH, &(struct op_attributes){ 0 });
    struct op_case *back = op_case_create(OP_COMBINE, &(struct op_attributes){ 0 });
    double a = 0, b = 0;

    (void)state;
    op_case_input(there, 0, s->tokens, s->n, DTYPE_I32, 0);
    op_case_input(back, 0, s->tokens, s->n, DTYPE_I32, 0);
    take_places(&there->op.in[0], s, 1);
    take_places(&back->op.in[0], s, 1);
    op_case_input(there, 1, s->tokens, s->cols, DTYPE_F32, 1);
    op_case_output(there, 0, s->tokens * s->n, s->cols, DTYPE_F32);
    op_case_input(back, 1, s->tokens * s->n, s->cols, DTYPE_F32, 1);
    op_case_output(back, 0, s->tokens, s->cols, DTYPE_F32);
    op_case_run(there, 2, RUN_FIRST);
    op_case_run(back, 2, RUN_FIRST);
    for (int64_t row = 0; row < s->tokens * s->n; row++)
        for (int64_t col = 0; col < s->cols; col++)
            a += tensor_get(&there->op.out[0], row, col) * tensor_get(&back->op.in[1], row, col);
    for (int64_t row = 0; row < s->tokens; row++)
        for (int64_t col = 0; col < s->cols; col++)
            b += tensor_get(&there->op.in[1], row, col) * tensor_get(&back->op.out[0], row, col);
    assert_true(fabs(a) > 1);
    assert_true(fabs(a - b) < 1e-4 * fabs(a));
    op_case_destroy(there);
    op_case_destroy(back);
}

static void check_swiglu(const struct size *s, enum dtype act, int grad, int n_parts)
{
    enum op_kind kind = grad ? OP_EXPERT_SWIGLU_GRAD : OP_EXPERT_SWIGLU;
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });

    c->gap = s->gap;
    c->leaves = n_parts > 1;
    op_case_input(c, 0, s->tokens, s->n, DTYPE_F32, 1);
    op_case_input(c, 1, s->tokens, s->n, DTYPE_I32, 0);
    int64_t n_rows = take_places(&c->op.in[1], s, n_parts), rows = room_of(s, n_rows);
    if (grad)
        op_case_input(c, 2, rows, s->cols, act, 1);
    op_case_input(c, 2 + grad, rows, 2 * s->cols, act, 2);
    for (int i = 2; i <= 2 + grad; i++)
        poison(&c->op.in[i], n_rows);
    op_case_output(c, 0, rows, grad ? 2 * s->cols : s->cols, act);
    if (grad)
        op_case_output(c, 1, s->tokens, s->n, DTYPE_F32);
    op_case_check(c, 2e-6);
    op_case_destroy(c);
}

static void test_swiglu(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        for (int form = 0; form < 2 * N_ACTS; form++)
            check_swiglu(&sizes[s], act_at(form / 2), form % 2, 1);
}

/* Choices of others' experts have no row, and there is more room than rows. */
static void test_rows_of_a_part(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        for (int i_act = 0; parts_of(&sizes[s]) > 1 && i_act < N_ACTS; i_act++) {
            check_moving(OP_DISPATCH, &sizes[s], act_at(i_act), parts_of(&sizes[s]));
            check_moving(OP_COMBINE, &sizes[s], act_at(i_act), parts_of(&sizes[s]));
            for (int grad = 0; grad < 2; grad++)
                check_swiglu(&sizes[s], act_at(i_act), grad, parts_of(&sizes[s]));
        }
}

/* ---- some of the experts ---- */

static struct op_case *of_experts(enum op_kind kind, const struct size *s)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });
    bool moves = kind == OP_DISPATCH, grad = kind == OP_EXPERT_SWIGLU_GRAD;
    int place = moves ? 0 : 1;

    c->gap = s->gap;
    op_case_input(c, place, s->tokens, s->n, DTYPE_I32, 0);
    int64_t n_rows = take_places(&c->op.in[place], s, 1);
    op_case_input(c, !place, s->tokens, moves ? s->cols : s->n, DTYPE_F32, 1);
    if (grad)
        op_case_input(c, 2, n_rows, s->cols, DTYPE_F32, 1);
    if (!moves)
        op_case_input(c, 2 + grad, n_rows, 2 * s->cols, DTYPE_F32, 2);
    op_case_output(c, 0, n_rows, grad ? 2 * s->cols : s->cols, DTYPE_F32);
    if (grad)
        op_case_output(c, 1, s->tokens, s->n, DTYPE_F32);
    return c;
}

static void add_ends(struct op_case *c, const struct size *s, int ends)
{
    struct op_case *o = order(s, 1);

    op_case_run(o, 1, RUN_FIRST);
    op_case_input(c, ends, 1, s->m, DTYPE_I32, 0);
    op_case_copy(&c->op.in[ends], &o->op.out[1]);
    op_case_destroy(o);
}

/* One group after the other writes what all experts at once do; the first leaves others' rows. */
static void check_groups(enum op_kind kind, const struct size *s, int ends)
{
    struct op_case *all = of_experts(kind, s), *some = of_experts(kind, s);
    int n = (int)(s->m + 1) / 2;

    add_ends(some, s, ends);
    op_case_run(all, 2, RUN_FIRST);
    for (int first = 0; first < s->m; first += n) {
        some->op.attributes.first = first;
        some->op.attributes.experts = n < s->m - first ? n : (int)s->m - first;
        op_case_run(some, 2, first ? RUN_AGAIN : RUN_FIRST);
        int64_t end = (int64_t)tensor_get(&some->op.in[ends], 0, n - 1);
        for (int64_t row = end; !first && row < some->op.out[0].rows; row++)
            assert_true(isnan(tensor_get(&some->op.out[0], row, 0)));
    }
    op_case_same_outputs(all, some, "groups of experts");
    op_case_destroy(all);
    op_case_destroy(some);
}

static void test_groups_of_experts(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++) {
        check_groups(OP_DISPATCH, &sizes[s], DISPATCH_ENDS);
        check_groups(OP_EXPERT_SWIGLU, &sizes[s], EXPERT_SWIGLU_ENDS);
        check_groups(OP_EXPERT_SWIGLU_GRAD, &sizes[s], EXPERT_SWIGLU_GRAD_ENDS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_order_of_a_part),
        cmocka_unit_test(test_moving),
        cmocka_unit_test(test_rows_of_a_part),
        cmocka_unit_test(test_groups_of_experts),
        cmocka_unit_test(test_each_is_the_others_gradient),
        cmocka_unit_test(test_swiglu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
