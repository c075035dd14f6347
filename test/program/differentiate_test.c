/*
 * differentiate_test.c - the reverse walk: every trainable parameter, nothing for the rest
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "program/gradients.h"
#include "support/tiny_model.h"

static int count_writers(const struct function *f, int value)
{
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            n += f->ops[i].out[k] == value;
    return n;
}

static int count_kind(const struct function *f, enum op_kind kind)
{
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        n += f->ops[i].kind == kind;
    return n;
}

/* Each use of each parameter has one accumulator, written by one op of forward and backward. */
static void check_accumulators(const char *model, const char *tied)
{
    struct tiny tiny;

    tiny_differentiate(&tiny, model, 1);
    const struct function *f = tiny.program.functions;
    for (int i = 0; i < tiny.program.n_parameters; i++) {
        const struct parameter *p = &tiny.program.parameters[i];

        assert_int_equal(p->n_gradients, tied && !strcmp(p->name, tied) ? 2 : 1);
        for (int use = 0; use < p->n_gradients; use++) {
            const struct value *v = &tiny.program.values[p->gradients[use]];

            assert_int_equal(count_writers(&f[tiny.forward], p->gradients[use]) +
                                 count_writers(&f[tiny.backward], p->gradients[use]),
                             1);
            assert_int_equal(v->role, ROLE_GRADIENT);
            assert_int_equal(v->dtype, DTYPE_F32);
            assert_int_equal(v->rows, p->rows);
            assert_int_equal(v->cols, p->cols);
        }
    }
    tiny_release(&tiny);
}

static void every_parameter_has_its_gradient(void **state)
{
    (void)state;
    check_accumulators("llama", NULL);
    check_accumulators("gpt2", "embedding.weight");
    check_accumulators("mixture", NULL);
}

/* What a weight's gradient is made by is class W, what goes on to the input is class B. */
static void classes_of_ops(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_differentiate(&tiny, "gpt2", 1);
    const struct function *b = &tiny.program.functions[tiny.backward];
    for (int i = 0; i < b->n_ops; i++) {
        int w = b->ops[i].kind == OP_LINEAR_DW || b->ops[i].kind == OP_EMBED_DW;

        assert_int_equal(b->ops[i].phase, w ? PHASE_W : PHASE_B);
    }
    tiny_release(&tiny);
}

static void freeze(struct program *p, const char *prefix)
{
    for (int i = 0; i < p->n_parameters; i++)
        if (!strncmp(p->parameters[i].name, prefix, strlen(prefix)))
            p->parameters[i].trainable = 0;
}

/* Below the lowest trainable parameter nothing is emitted. */
static void frozen_layers_cost_nothing(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_forward(&tiny, "llama", 1);
    freeze(&tiny.program, "embedding.");
    freeze(&tiny.program, "layers.0.");
    differentiate(&tiny.program, tiny.forward, tiny.backward, &tiny.seed, 1, 0);
    const struct function *b = &tiny.program.functions[tiny.backward];
    for (int i = 0; i < b->n_ops; i++)
        assert_int_not_equal(b->ops[i].layer, 0);
    assert_int_equal(count_kind(b, OP_EMBED_DW), 0);
    assert_int_equal(count_kind(b, OP_LINEAR_DW), 4);
    for (int i = 0; i < tiny.program.n_parameters; i++)
        assert_int_equal(tiny.program.parameters[i].n_gradients,
                         tiny.program.parameters[i].trainable);
    tiny_release(&tiny);
}

/* A frozen linear between trainable ones passes the gradient on and has none itself. */
static void frozen_linear_passes_gradient_on(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_forward(&tiny, "llama", 1);
    freeze(&tiny.program, "layers.1.down.");
    differentiate(&tiny.program, tiny.forward, tiny.backward, &tiny.seed, 1, 0);
    const struct function *b = &tiny.program.functions[tiny.backward];
    assert_int_equal(count_kind(b, OP_LINEAR_DX), 8);
    assert_int_equal(count_kind(b, OP_LINEAR_DW), 7);
    tiny_release(&tiny);
}

/*
 * x is read by two adds and a norm: its gradient is the sum of three parts, with one add op, as the
 * norm's gradient takes in what came before it.
 */
static void value_with_several_readers(void **state)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program p;

    (void)state;
    program_init(&p, &mesh);
    int table = program_parameter(&p, "table", 2, 8, 4, DTYPE_F32, INIT_NORMAL, 1);
    int w = program_parameter(&p, "w", 1, 1, 4, DTYPE_F32, INIT_ONES, 0);
    int tokens = program_cell(&p, ROLE_INPUT, "tokens", 2, 1, DTYPE_I32);
    int f = program_function(&p, "forward", 0), b = program_function(&p, "backward", 0);
    int x = program_value(&p, 2, 4, DTYPE_F32), y = program_value(&p, 2, 4, DTYPE_F32);
    int rstd = program_value(&p, 2, 1, DTYPE_F32);
    int sum = program_value(&p, 2, 4, DTYPE_F32), twice = program_value(&p, 2, 4, DTYPE_F32);
    int seed = program_value(&p, 2, 4, DTYPE_F32);

    program_emit(&p, f,
                 &(struct op){ .kind = OP_EMBED,
                               .in = { tokens, p.parameters[table].weight },
                               .out = { x } });
    program_emit(&p, f,
                 &(struct op){
                     .kind = OP_RMSNORM, .in = { x, p.parameters[w].weight }, .out = { y, rstd } });
    program_emit(&p, f, &(struct op){ .kind = OP_ADD, .in = { x, y }, .out = { sum } });
    program_emit(&p, f, &(struct op){ .kind = OP_ADD, .in = { x, sum }, .out = { twice } });
    differentiate(&p, f, b, &(struct gradient_seed){ twice, seed }, 1, 0);

    const struct function *back = &p.functions[b];
    assert_int_equal(back->n_ops, 3);
    assert_int_equal(back->ops[0].kind, OP_ADD);
    assert_int_equal(back->ops[0].in[0], seed);
    assert_int_equal(back->ops[0].in[1], seed);
    assert_int_equal(back->ops[1].kind, OP_RMSNORM_GRAD);
    assert_int_equal(back->ops[1].in[0], seed);
    assert_int_equal(back->ops[1].in[4], back->ops[0].out[0]);
    assert_int_equal(back->ops[2].kind, OP_EMBED_DW);
    assert_int_equal(back->ops[2].in[0], back->ops[1].out[0]);
    program_release(&p);
}

/* The gradient of a view is a view that lies alike, of `whole`. */
static void check_view(const struct program *p, int dx, int x, int whole)
{
    const struct value *gradient = &p->values[dx], *view = &p->values[x];

    assert_int_equal(gradient->base, whole);
    assert_true(gradient->offset == view->offset && gradient->cols == view->cols &&
                gradient->stride == view->stride);
}

/*
 * v is read from the product whose q and k are normed: attention_grad writes its part of the
 * product's gradient, head_norm_grad those of q and k, and linear_dw reads both.
 */
static void check_parts(const struct program *p, const struct op *ops)
{
    for (int i = 0; i < 3; i++)
        check_view(p, ops[0].out[i], ops[0].in[1 + i], i < 2 ? ops[1].in[0] : ops[2].in[0]);
    check_view(p, ops[1].out[0], ops[1].in[1], ops[2].in[0]);
}

/*
 * Heads split over tp: each rank has a summand of what it learns of the heads' norms, whose frozen
 * one is left out; and attention's gradient is told of documents and of the rank's heads.
 */
static void norms_of_heads_in_parts(void **state)
{
    const struct op_attributes a = { .n_heads = 2,
                                     .n_kv_heads = 1,
                                     .head_dim = 4,
                                     .seq_len = 6,
                                     .scale = 0.5,
                                     .eps = 1e-6,
                                     .window = 3,
                                     .alibi = 4 };
    const struct parameter_split heads = { .along = SPREAD_ROWS,
                                           .n_pieces = 3,
                                           .pieces = { 16, 8, 8 } };
    struct mesh mesh = mesh_data_parallel(1);
    struct program p;

    (void)state;
    mesh.size[AXIS_TP] = 2;
    program_init(&p, &mesh);
    int w = program_parameter(&p, "qkv", 2, 32, 8, DTYPE_F32, INIT_NORMAL, 1);
    int wq = program_parameter(&p, "q_norm", 1, 1, 4, DTYPE_F32, INIT_ONES, 0);
    int wk = program_parameter(&p, "k_norm", 1, 1, 4, DTYPE_F32, INIT_ONES, 0);
    program_split_parameter(&p, w, AXIS_TP, &heads);
    p.parameters[wk].trainable = 0;
    int x = program_cell(&p, ROLE_INPUT, "x", 6, 8, DTYPE_F32);
    int start = program_cell(&p, ROLE_INPUT, "start", 6, 1, DTYPE_I32);
    int begin = program_cell(&p, ROLE_CONSTANT, "begin", 1, 1, DTYPE_I32);
    p.values[begin].spread[AXIS_TP] = SPREAD_COLS;
    int f = program_function(&p, "forward", 0), b = program_function(&p, "backward", 0);
    int qkv = program_value(&p, 6, 16, DTYPE_F32), normed = program_value(&p, 6, 12, DTYPE_F32);
    int rstd = program_value(&p, 6, 3, DTYPE_F32), out = program_value(&p, 6, 8, DTYPE_F32);
    int lse = program_value(&p, 6, 2, DTYPE_F32), seed = program_value(&p, 6, 8, DTYPE_F32);
    p.values[seed].spread[AXIS_TP] = SPREAD_COLS;

    program_emit(
        &p, f,
        &(struct op){ .kind = OP_LINEAR, .in = { x, p.parameters[w].weight }, .out = { qkv } });
    int qk = program_view(&p, qkv, 0, 6, 12, 16);
    program_emit(&p, f,
                 &(struct op){ .kind = OP_HEAD_NORM,
                               .attributes = a,
                               .in = { qk, p.parameters[wq].weight, p.parameters[wk].weight },
                               .out = { normed, rstd } });
    int q = program_view(&p, normed, 0, 6, 8, 12), k = program_view(&p, normed, 8, 6, 4, 12);
    int v = program_view(&p, qkv, 12, 6, 4, 16);
    program_emit(&p, f,
                 &(struct op){ .kind = OP_ATTENTION,
                               .attributes = a,
                               .in = { q, k, v, 0, begin, start },
                               .out = { out, lse } });
    differentiate(&p, f, b, &(struct gradient_seed){ out, seed }, 1, 0);

    const struct op *ops = p.functions[b].ops;
    assert_int_equal(p.functions[b].n_ops, 3);
    assert_int_equal(ops[0].kind, OP_ATTENTION_GRAD);
    assert_int_equal(ops[0].in[7], begin);
    assert_int_equal(ops[0].in[8], start);
    assert_int_equal(ops[0].attributes.window, 3);
    assert_int_equal(ops[0].attributes.alibi, 4);
    assert_int_equal(ops[1].kind, OP_HEAD_NORM_GRAD);
    check_parts(&p, ops);
    assert_int_equal(ops[1].in[1], qk);
    assert_int_equal(ops[1].in[4], rstd);
    assert_int_equal(ops[1].out[1], p.parameters[wq].gradients[0]);
    assert_int_equal(ops[1].out[2], 0);
    assert_int_equal(p.values[ops[1].out[0]].spread[AXIS_TP], SPREAD_COLS);
    assert_int_equal(p.values[ops[1].out[1]].spread[AXIS_TP], SPREAD_PARTIAL);
    assert_int_equal(ops[2].kind, OP_LINEAR_DW);
    program_release(&p);
}

/* Sequences over both axes that divide them: 2 ranks exchange heads, 2 pairs keys and values. */
static void emit_parts_of_sequences(struct program *p, int f, int w, int *out)
{
    const struct op_attributes exchange = {
        .n_heads = 2, .n_kv_heads = 2, .head_dim = 2, .seq_len = 4, .axis = AXIS_ULYSSES
    };
    const struct op_attributes query = {
        .n_heads = 2, .head_dim = 2, .seq_len = 4, .axis = AXIS_ULYSSES
    };
    const struct op_attributes sequence = { .seq_len = 8, .zigzag = 1, .axis = AXIS_CP };
    const struct op_attributes attention = {
        .n_heads = 1, .n_kv_heads = 1, .head_dim = 2, .seq_len = 8, .scale = 1
    };
    int x = program_cell(p, ROLE_INPUT, "x", 4, 8, DTYPE_F32);
    int last = program_cell(p, ROLE_INPUT, "last", 8, 1, DTYPE_I32);
    program_split_rows(p, x);
    p->values[last].spread[AXIS_CP] = SPREAD_ROWS;
    int qkv = program_value(p, 4, 12, DTYPE_F32), heads = program_value(p, 8, 6, DTYPE_F32);
    int kv = program_value(p, 16, 4, DTYPE_F32), attended = program_value(p, 8, 2, DTYPE_F32);
    int lse = program_value(p, 8, 1, DTYPE_F32);
    *out = program_value(p, 4, 4, DTYPE_F32);

    program_emit(
        p, f,
        &(struct op){ .kind = OP_LINEAR, .in = { x, p->parameters[w].weight }, .out = { qkv } });
    program_emit(
        p, f,
        &(struct op){
            .kind = OP_ROWS_TO_HEADS, .attributes = exchange, .in = { qkv }, .out = { heads } });
    program_emit(p, f,
                 &(struct op){ .kind = OP_GATHER_SEQUENCE,
                               .attributes = sequence,
                               .in = { program_view(p, heads, 2, 8, 4, 6) },
                               .out = { kv } });
    program_emit(
        p, f,
        &(struct op){ .kind = OP_ATTENTION,
                      .attributes = attention,
                      .in = { program_view(p, heads, 0, 8, 2, 6), program_view(p, kv, 0, 16, 2, 4),
                              program_view(p, kv, 2, 16, 2, 4), [ATTENTION_LAST] = last },
                      .out = { attended, lse } });
    program_emit(
        p, f,
        &(struct op){
            .kind = OP_HEADS_TO_ROWS, .attributes = query, .in = { attended }, .out = { *out } });
}

/* Gradients go the way back, those of what is gathered into their place among the others. */
static void parts_of_sequences(void **state)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program p;
    int out;

    (void)state;
    mesh.size[AXIS_CP] = mesh.size[AXIS_ULYSSES] = 2;
    program_init(&p, &mesh);
    int w = program_parameter(&p, "qkv", 2, 12, 8, DTYPE_F32, INIT_NORMAL, 1);
    int f = program_function(&p, "forward", 0), b = program_function(&p, "backward", 0);
    emit_parts_of_sequences(&p, f, w, &out);
    int seed = program_value(&p, 4, 4, DTYPE_F32);
    program_split_rows(&p, seed);
    differentiate(&p, f, b, &(struct gradient_seed){ out, seed }, 1, 0);

    const struct op *ops = p.functions[b].ops, *forward = p.functions[f].ops;
    assert_int_equal(p.functions[b].n_ops, 5);
    assert_int_equal(ops[0].kind, OP_ROWS_TO_HEADS);
    assert_int_equal(ops[0].in[0], seed);
    assert_int_equal(ops[1].kind, OP_ATTENTION_GRAD);
    assert_int_equal(ops[1].in[ATTENTION_GRAD_DOUT], ops[0].out[0]);
    assert_int_equal(ops[2].kind, OP_SCATTER_SEQUENCE);
    assert_int_equal(ops[2].attributes.zigzag, 1);
    assert_int_equal(p.values[ops[2].in[0]].spread[AXIS_CP], SPREAD_PARTIAL);
    assert_int_equal(ops[3].kind, OP_HEADS_TO_ROWS);
    check_view(&p, ops[1].out[ATTENTION_GRAD_DQ], forward[3].in[ATTENTION_Q], ops[3].in[0]);
    check_view(&p, ops[1].out[ATTENTION_GRAD_DK], forward[3].in[ATTENTION_K], ops[2].in[0]);
    check_view(&p, ops[2].out[0], forward[2].in[0], ops[3].in[0]);
    assert_int_equal(ops[3].attributes.n_kv_heads, 2);
    assert_int_equal(p.values[ops[3].out[0]].spread[AXIS_CP], SPREAD_ROWS);
    assert_int_equal(p.values[ops[3].out[0]].spread[AXIS_ULYSSES], SPREAD_ROWS);
    assert_int_equal(ops[4].kind, OP_LINEAR_DW);
    assert_int_equal(p.values[ops[4].out[0]].spread[AXIS_CP], SPREAD_PARTIAL);
    assert_int_equal(p.values[ops[4].out[0]].spread[AXIS_ULYSSES], SPREAD_PARTIAL);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_parameter_has_its_gradient),
        cmocka_unit_test(classes_of_ops),
        cmocka_unit_test(frozen_layers_cost_nothing),
        cmocka_unit_test(frozen_linear_passes_gradient_on),
        cmocka_unit_test(value_with_several_readers),
        cmocka_unit_test(norms_of_heads_in_parts),
        cmocka_unit_test(parts_of_sequences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
