/*
 * fuse_test.c - an add and the norm that reads it first become one op
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/tiny_model.h"

static int count_kind(const struct function *f, enum op_kind kind)
{
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        n += f->ops[i].kind == kind;
    return n;
}

/* All residual adds of a decoder are followed by a norm; the first norm has no add before it. */
static void check_model(const char *model, enum op_kind norm, enum op_kind fused)
{
    struct tiny tiny;

    tiny_forward(&tiny, model, 1);
    const struct function *f = &tiny.program.functions[tiny.forward];
    int n_ops = f->n_ops;
    assert_int_equal(fuse(&tiny.program, tiny.forward), 4);
    assert_int_equal(f->n_ops, n_ops - 4);
    assert_int_equal(count_kind(f, OP_ADD), 0);
    assert_int_equal(count_kind(f, norm), 1);
    assert_int_equal(count_kind(f, fused), 4);
    for (int i = 0; i < f->n_ops; i++) {
        struct op_shape shape = program_op_shape(&tiny.program, &f->ops[i]);
        struct err err;

        if (op_check(&shape, &err) < 0)
            fail_msg("%s", err.text);
    }
    assert_int_equal(fuse(&tiny.program, tiny.forward), 0);
    tiny_release(&tiny);
}

static void models(void **state)
{
    (void)state;
    check_model("llama", OP_RMSNORM, OP_ADD_RMSNORM);
    check_model("gpt2", OP_LAYERNORM, OP_ADD_LAYERNORM);
}

struct small {
    struct program program;
    int function, w, x, delta, sum, y, rstd, other;
};

static void small_open(struct small *s)
{
    struct mesh mesh = mesh_data_parallel(1);

    program_init(&s->program, &mesh);
    s->function = program_function(&s->program, "forward", 0);
    int w = program_parameter(&s->program, "w", 1, 1, 8, DTYPE_F32, INIT_ONES, 0);
    s->w = s->program.parameters[w].weight;
    s->x = program_cell(&s->program, ROLE_INPUT, "x", 4, 8, DTYPE_F32);
    s->delta = program_cell(&s->program, ROLE_INPUT, "delta", 4, 8, DTYPE_F32);
    s->sum = program_value(&s->program, 4, 8, DTYPE_F32);
    s->y = program_value(&s->program, 4, 8, DTYPE_F32);
    s->rstd = program_value(&s->program, 4, 1, DTYPE_F32);
    s->other = program_value(&s->program, 4, 8, DTYPE_F32);
}

static void emit(struct small *s, struct op op)
{
    program_emit(&s->program, s->function, &op);
}

static void emit_add(struct small *s, int a, int b, int y)
{
    emit(s, (struct op){ .kind = OP_ADD, .in = { a, b }, .out = { y } });
}

static void emit_norm(struct small *s, int x)
{
    emit(s, (struct op){ .kind = OP_RMSNORM,
                         .attributes.eps = 1e-6,
                         .in = { x, s->w },
                         .out = { s->y, s->rstd } });
}

static void operands_go_where_they_belong(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit_add(&s, s.x, s.delta, s.sum);
    emit_norm(&s, s.sum);
    emit_add(&s, s.sum, s.y, s.other);
    assert_int_equal(fuse(&s.program, s.function), 1);
    const struct op *op = &s.program.functions[s.function].ops[0];
    assert_int_equal(op->kind, OP_ADD_RMSNORM);
    assert_int_equal(op->in[0], s.x);
    assert_int_equal(op->in[1], s.delta);
    assert_int_equal(op->in[2], s.w);
    assert_int_equal(op->out[0], s.y);
    assert_int_equal(op->out[1], s.rstd);
    assert_int_equal(op->out[2], s.sum);
    assert_true(op->attributes.eps == 1e-6);
    program_release(&s.program);
}

/* Someone reads the sum before the norm does: then it must be there earlier. */
static void a_reader_in_between_forbids(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit_add(&s, s.x, s.delta, s.sum);
    emit_add(&s, s.sum, s.x, s.other);
    emit_norm(&s, s.sum);
    assert_int_equal(fuse(&s.program, s.function), 0);
    program_release(&s.program);
}

static void a_norm_of_something_else_stays(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit_add(&s, s.x, s.delta, s.sum);
    emit_norm(&s, s.x);
    assert_int_equal(fuse(&s.program, s.function), 0);
    program_release(&s.program);
}

/* ---- casts ---- */

/* Every cast of a decoder's backward is of a norm's gradient: of the stream, for the block
 * before. */
static void no_cast_is_left(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_differentiate(&tiny, "llama", 1);
    const struct function *f = &tiny.program.functions[tiny.backward];
    int n_ops = f->n_ops, n_casts = count_kind(f, OP_CAST);
    assert_int_equal(n_casts, 4);
    assert_int_equal(fuse_casts(&tiny.program, tiny.backward), n_casts);
    assert_int_equal(f->n_ops, n_ops - n_casts);
    assert_int_equal(count_kind(f, OP_CAST), 0);
    for (int i = 0; i < f->n_ops; i++) {
        struct op_shape shape = program_op_shape(&tiny.program, &f->ops[i]);
        struct err err;

        if (op_check(&shape, &err) < 0)
            fail_msg("%s", err.text);
    }
    assert_int_equal(fuse_casts(&tiny.program, tiny.backward), 0);
    tiny_release(&tiny);
}

/* What is cast to another dtype than the gradient's own, or a second time, stays. */
static void other_casts_stay(void **state)
{
    struct small s;
    int values[5];

    (void)state;
    small_open(&s);
    for (int i = 0; i < 5; i++)
        values[i] = program_value(&s.program, 4, 8,
                                  i == 0   ? DTYPE_F32
                                  : i == 2 ? DTYPE_F16
                                           : DTYPE_BF16);
    int dy = program_cell(&s.program, ROLE_INPUT, "dy", 4, 8, DTYPE_BF16);
    int rstd = program_cell(&s.program, ROLE_INPUT, "rstd", 4, 1, DTYPE_F32);
    emit(&s, (struct op){ .kind = OP_RMSNORM_GRAD,
                          .attributes.eps = 1e-6,
                          .in = { dy, s.x, s.w, rstd },
                          .out = { values[0] } });
    emit(&s, (struct op){ .kind = OP_CAST, .in = { values[0] }, .out = { values[2] } });
    emit(&s, (struct op){ .kind = OP_CAST, .in = { s.x }, .out = { values[4] } });
    emit(&s, (struct op){ .kind = OP_CAST, .in = { values[0] }, .out = { values[1] } });
    emit(&s, (struct op){ .kind = OP_CAST, .in = { values[0] }, .out = { values[3] } });
    assert_int_equal(fuse_casts(&s.program, s.function), 1);
    const struct op *ops = s.program.functions[s.function].ops;
    assert_int_equal(ops[0].out[2], values[1]);
    assert_int_equal(ops[1].out[0], values[2]);
    assert_int_equal(ops[2].out[0], values[4]);
    assert_int_equal(ops[3].out[0], values[3]);
    program_release(&s.program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models),
        cmocka_unit_test(operands_go_where_they_belong),
        cmocka_unit_test(a_reader_in_between_forbids),
        cmocka_unit_test(a_norm_of_something_else_stays),
        cmocka_unit_test(no_cast_is_left),
        cmocka_unit_test(other_casts_stay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
