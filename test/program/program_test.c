/*
 * program_test.c - the tables of a program
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "program/program.h"

static void open_program(struct program *program, int dp_size)
{
    struct mesh mesh = mesh_data_parallel(dp_size);

    program_init(program, &mesh);
}

/* Bugs of the caller end the process: do `bug` in a child and see it abort. */
static void check_aborts(void (*bug)(struct program *program))
{
    struct program p;
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        open_program(&p, 1);
        bug(&p);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void ids_and_growth(void **state)
{
    struct program p;

    (void)state;
    open_program(&p, 1);
    for (int i = 1; i <= 5000; i++)
        assert_int_equal(program_value(&p, i, 2, DTYPE_BF16), i);
    for (int i = 1; i <= 5000; i++) {
        assert_int_equal(p.values[i].rows, i);
        assert_int_equal(program_value_bytes(&p, i), (size_t)i * 4);
        assert_int_equal(program_base(&p, i), i);
    }
    program_release(&p);
    assert_int_equal(p.n_values, 0);
}

/* A view of a view is one of the base, at the sum of the offsets. */
static void views(void **state)
{
    struct program p;

    (void)state;
    open_program(&p, 1);
    int base = program_cell(&p, ROLE_WEIGHT, "w", 8, 16, DTYPE_F32);
    p.values[base].spread[AXIS_DP] = SPREAD_PARTIAL;
    int half = program_view(&p, base, 64, 4, 16, 16);
    int column = program_view(&p, half, 3, 4, 1, 16);
    assert_int_equal(p.values[half].base, base);
    assert_int_equal(p.values[column].base, base);
    assert_int_equal(p.values[column].offset, 67);
    assert_int_equal(p.values[column].stride, 16);
    assert_int_equal(p.values[column].role, ROLE_WEIGHT);
    assert_int_equal(p.values[column].spread[AXIS_DP], SPREAD_PARTIAL);
    assert_int_equal(program_base(&p, column), base);
    program_release(&p);
}

static void view_past_the_end(struct program *p)
{
    program_view(p, program_value(p, 8, 16, DTYPE_F32), 1, 8, 16, 16);
}

static void view_before_the_begin(struct program *p)
{
    program_view(p, program_value(p, 8, 16, DTYPE_F32), -1, 1, 1, 1);
}

static void views_stay_inside(void **state)
{
    (void)state;
    check_aborts(view_past_the_end);
    check_aborts(view_before_the_begin);
}

static void parameters(void **state)
{
    struct program p;
    char name[] = "w";

    (void)state;
    open_program(&p, 1);
    int matrix = program_parameter(&p, name, 2, 8, 4, DTYPE_BF16, INIT_NORMAL, 0.02);
    int vector = program_parameter(&p, "b", 1, 1, 4, DTYPE_BF16, INIT_ZEROS, 0);
    name[0] = 'x';
    assert_string_equal(p.parameters[matrix].name, "w");
    assert_int_equal(p.values[p.parameters[matrix].weight].dtype, DTYPE_BF16);
    assert_int_equal(p.values[p.parameters[vector].weight].dtype, DTYPE_F32);
    assert_int_equal(program_parameter_of(&p, p.parameters[vector].weight), vector);
    assert_int_equal(program_parameter_of(&p, program_value(&p, 1, 1, DTYPE_F32)), -1);

    /* One accumulator a use, in fp32; none of what is frozen. */
    int first = program_add_gradient(&p, matrix), second = program_add_gradient(&p, matrix);
    assert_string_equal(p.values[first].name, "w.grad");
    assert_string_equal(p.values[second].name, "w.grad.1");
    assert_int_equal(p.values[first].dtype, DTYPE_F32);
    assert_int_equal(p.parameters[matrix].n_gradients, 2);
    p.parameters[vector].trainable = 0;
    assert_int_equal(program_add_gradient(&p, vector), 0);
    assert_int_equal(p.parameters[vector].n_gradients, 0);
    program_release(&p);
}

static void emit_add(struct program *p, int function, int index, int a, int b, int y)
{
    program_insert(p, function, index,
                   &(struct op){ .kind = OP_ADD, .in = { a, b }, .out = { y } });
}

static void order_of_insertion(void **state)
{
    struct program p;
    int values[4];

    (void)state;
    open_program(&p, 1);
    int f = program_function(&p, "f", 0);
    int x = program_cell(&p, ROLE_INPUT, "x", 2, 2, DTYPE_F32);
    for (int i = 0; i < 4; i++)
        values[i] = program_value(&p, 2, 2, DTYPE_F32);
    emit_add(&p, f, 0, x, x, values[3]);
    emit_add(&p, f, 0, x, x, values[0]);
    emit_add(&p, f, 1, x, x, values[1]);
    emit_add(&p, f, 2, x, x, values[2]);
    assert_int_equal(p.functions[f].n_ops, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(p.functions[f].ops[i].out[0], values[i]);
    program_release(&p);
}

/* Outputs get their spreads from the inputs', on axes of more than one rank. */
static void spreads_follow_the_op(void **state)
{
    struct program p;

    (void)state;
    open_program(&p, 4);
    int f = program_function(&p, "f", 0);
    int x = program_cell(&p, ROLE_INPUT, "x", 16, 8, DTYPE_F32);
    p.values[x].spread[AXIS_DP] = SPREAD_ROWS;
    int y = program_value(&p, 16, 8, DTYPE_F32);
    int dw = program_cell(&p, ROLE_GRADIENT, "dw", 8, 8, DTYPE_F32);
    emit_add(&p, f, 0, x, x, y);
    program_emit(&p, f, &(struct op){ .kind = OP_LINEAR_DW, .in = { y, x }, .out = { dw } });
    assert_int_equal(p.values[y].spread[AXIS_DP], SPREAD_ROWS);
    assert_int_equal(p.values[dw].spread[AXIS_DP], SPREAD_PARTIAL);
    assert_int_equal(p.values[dw].spread[AXIS_TP], SPREAD_SAME);
    program_release(&p);
}

static void emit_wrong_shape(struct program *p)
{
    int x = program_value(p, 2, 2, DTYPE_F32), y = program_value(p, 2, 3, DTYPE_F32);

    emit_add(p, program_function(p, "f", 0), 0, x, x, y);
}

static void emit_sum_of_partial(struct program *p)
{
    p->mesh = mesh_data_parallel(2);
    int x = program_cell(p, ROLE_GRADIENT, "x", 2, 2, DTYPE_F32);
    int sums = program_value(p, 1, 1, DTYPE_F64);

    p->values[x].spread[AXIS_DP] = SPREAD_PARTIAL;
    program_emit(p, program_function(p, "f", 0),
                 &(struct op){ .kind = OP_SUMSQ, .in = { x }, .out = { sums } });
}

static void wrong_ops_are_bugs(void **state)
{
    (void)state;
    check_aborts(emit_wrong_shape);
    check_aborts(emit_sum_of_partial);
}

/* What adds to what is there: the catalogue's, and a reduce into its shard. */
static void accumulation(void **state)
{
    struct mesh mesh = mesh_data_parallel(2);
    struct program p;

    (void)state;
    program_init(&p, &mesh);
    int plain = program_value(&p, 1, 8, DTYPE_F32);
    int cell = program_cell(&p, ROLE_GRADIENT, "g", 1, 8, DTYPE_F32);
    struct op op = { .kind = OP_LINEAR_DW, .out = { cell } };
    assert_int_equal(program_accumulates(&p, &op, 0), 1);
    assert_int_equal(program_accumulates(&p, &op, 1), 0); /* absent */
    op.kind = OP_RMSNORM_GRAD;
    op.out[1] = cell;
    assert_int_equal(program_accumulates(&p, &op, 0), 0);
    assert_int_equal(program_accumulates(&p, &op, 1), 1);
    op.kind = OP_REDUCE_SCATTER;
    assert_int_equal(program_accumulates(&p, &op, 0), 1);
    op.out[0] = plain;
    assert_int_equal(program_accumulates(&p, &op, 0), 0);
    assert_int_equal(program_first_mode(&p, &op, 0), FIRST_ALWAYS);
    op.kind = OP_ALL_GATHER;
    assert_int_equal(program_accumulates(&p, &op, 0), 0);
    program_release(&p);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(phase_name(PHASE_R), "R");
    assert_string_equal(stream_name(STREAM_DP_REDUCE), "dp_reduce");
    for (int s = 0; s < N_SEGMENTS; s++)
        for (int other = 0; other < s; other++)
            assert_string_not_equal(segment_name((enum segment)s),
                                    segment_name((enum segment)other));
    for (int e = 0; e < N_ENTRIES; e++)
        assert_true(strlen(entry_name((enum entry_kind)e)) > 0);
    for (int r = 0; r < N_ROLES; r++)
        assert_true(strlen(role_name((enum cell_role)r)) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_growth),
        cmocka_unit_test(views),
        cmocka_unit_test(views_stay_inside),
        cmocka_unit_test(parameters),
        cmocka_unit_test(order_of_insertion),
        cmocka_unit_test(spreads_follow_the_op),
        cmocka_unit_test(wrong_ops_are_bugs),
        cmocka_unit_test(accumulation),
        cmocka_unit_test(names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
