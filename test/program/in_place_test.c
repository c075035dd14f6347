/*
 * in_place_test.c - where an op writes over its input, and that nothing reads what is no longer
 * there
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "model/compile.h"
#include "support/tiny_model.h"

/* qkv = x scaled; out = qkv rotated; sum += out. */
struct small {
    struct program program;
    int x, position, table, qkv, out, sum;
    int forward, other;
};

static void emit(struct small *s, int function, enum op_kind kind, int in, int out)
{
    int rotates = kind == OP_ROPE;
    struct op op = { .kind = kind,
                     .in = { in, rotates ? s->position : 0, rotates ? s->table : 0 },
                     .out = { out },
                     .first = kind == OP_ACCUMULATE ? FIRST_ALWAYS : FIRST_MICRO_BATCH,
                     .layer = -1 };

    if (kind == OP_ROPE)
        op.attributes = (struct op_attributes){ .n_heads = 2, .n_kv_heads = 1, .head_dim = 4 };
    op.attributes.scale = 2;
    program_emit(&s->program, function, &op);
}

static void rotate_in(struct small *s, int function)
{
    emit(s, function, OP_SCALE, s->x, s->qkv);
    emit(s, function, OP_ROPE, s->qkv, s->out);
}

static void run_alone(struct small *s, enum entry_kind kind, int function)
{
    struct entry *entry = &s->program.entries[kind];

    entry->actions = arena_array(&s->program.arena, struct action, 4);
    entry->actions[entry->n_actions++] = (struct action){ .kind = ACTION_LOAD };
    entry->actions[entry->n_actions++] =
        (struct action){ .kind = ACTION_RUN, .first = 1, .function = (int16_t)function };
}

static void run_both(struct small *s)
{
    struct entry *entry = &s->program.entries[ENTRY_FEED];

    run_alone(s, ENTRY_FEED, s->forward);
    entry->actions[entry->n_actions++] =
        (struct action){ .kind = ACTION_RUN, .first = 1, .function = (int16_t)s->other };
}

static void small_open(struct small *s)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program *p = &s->program;

    program_init(p, &mesh);
    s->x = program_cell(p, ROLE_INPUT, "x", 6, 16, DTYPE_BF16);
    s->position = program_cell(p, ROLE_INPUT, "position", 6, 1, DTYPE_I32);
    s->table = program_cell(p, ROLE_CONSTANT, "table", 8, 4, DTYPE_F32);
    s->sum = program_cell(p, ROLE_SCALAR, "sum", 6, 16, DTYPE_BF16);
    s->qkv = program_value(p, 6, 16, DTYPE_BF16);
    s->out = program_value(p, 6, 16, DTYPE_BF16);
    s->forward = program_function(p, "forward 0", 0);
    s->other = program_function(p, "other", 0);
    rotate_in(s, s->forward);
}

static void must_be_over(struct small *s, int is_over)
{
    struct program *p = &s->program;
    struct err err;

    assert_int_equal(work_in_place(p), is_over);
    assert_int_equal(p->values[s->out].over, is_over ? s->qkv : 0);
    assert_int_equal(work_in_place(p), is_over);
    place(p);
    assert_int_equal(program_place(p, s->out, 0) == program_place(p, s->qkv, 0), is_over);
    if (verify(p, &err) < 0)
        fail_msg("%s", err.text);
}

static void must_be_refused(struct small *s, const char *why)
{
    struct err err = { 0 };

    s->program.values[s->out].over = s->qkv;
    place(&s->program);
    assert_int_equal(verify(&s->program, &err), -1);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" is not in \"%s\"", why, err.text);
    program_release(&s->program);
}

static void over_what_is_not_read_again(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit(&s, s.forward, OP_ACCUMULATE, s.out, s.sum);
    run_alone(&s, ENTRY_FEED, s.forward);
    must_be_over(&s, 1);
    program_release(&s.program);
}

/* States of a query that sees one part of the keys after the other are in one memory. */
static void over_and_over(void **state)
{
    static const char *const names[] = { "q", "k", "v" };
    struct mesh mesh = mesh_data_parallel(1);
    struct program p = { 0 };
    struct err err;
    int qkv[3], states[4], out[2];

    (void)state;
    program_init(&p, &mesh);
    for (int i = 0; i < 3; i++)
        qkv[i] = program_cell(&p, ROLE_INPUT, names[i], 6, 8, DTYPE_BF16);
    int function = program_function(&p, "forward 0", 0);
    struct op op = { .kind = OP_ATTENTION_PART, .layer = -1 };
    op.attributes = (struct op_attributes){
        .n_heads = 2, .n_kv_heads = 2, .head_dim = 4, .seq_len = 6, .scale = 1
    };
    memcpy(&op.in[ATTENTION_PART_Q], qkv, sizeof qkv);
    for (int i = 0; i < 4; i++) {
        op.in[ATTENTION_PART_STATE] = i ? states[i - 1] : 0;
        states[i] = op.out[ATTENTION_PART_NEXT] = program_value(&p, 6, 12, DTYPE_F32);
        program_emit(&p, function, &op);
    }
    out[0] = program_cell(&p, ROLE_SCALAR, "out", 6, 8, DTYPE_BF16);
    out[1] = program_cell(&p, ROLE_SCALAR, "lse", 6, 2, DTYPE_F32);
    program_emit(
        &p, function,
        &(struct op){ .kind = OP_ATTENTION_END,
                      .attributes = op.attributes,
                      .in = { [ATTENTION_END_STATE] = states[3] },
                      .out = { [ATTENTION_END_OUT] = out[0], [ATTENTION_END_LSE] = out[1] },
                      .layer = -1 });
    struct entry *entry = &p.entries[ENTRY_FEED];
    entry->actions = arena_array(&p.arena, struct action, 2);
    entry->actions[entry->n_actions++] = (struct action){ .kind = ACTION_LOAD };
    entry->actions[entry->n_actions++] =
        (struct action){ .kind = ACTION_RUN, .first = 1, .function = (int16_t)function };
    assert_int_equal(work_in_place(&p), 3);
    place(&p);
    for (int i = 1; i < 4; i++)
        assert_int_equal(program_place(&p, states[i], 0), program_place(&p, states[0], 0));
    if (verify(&p, &err) < 0)
        fail_msg("%s", err.text);
    program_release(&p);
}

/* A view of the output is of the same memory. */
static void views_go_along(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    int part = program_view(&s.program, s.out, 8, 6, 8, 16);
    emit(&s, s.forward, OP_ACCUMULATE, part, program_view(&s.program, s.sum, 0, 6, 8, 16));
    run_alone(&s, ENTRY_FEED, s.forward);
    must_be_over(&s, 1);
    assert_int_equal(program_base(&s.program, part), s.qkv);
    assert_int_equal(program_place(&s.program, part, 0),
                     program_place(&s.program, s.qkv, 0) + 8 * 2);
    program_release(&s.program);
}

/* qkv = x scaled; its first 12 columns are rotated, its last 4 read as they are. */
struct columns {
    struct small s;
    int qk, v, rotated; /* views of qkv; a value of its own */
};

static void columns_open(struct columns *c)
{
    struct program *p = &c->s.program;

    small_open(&c->s);
    c->qk = program_view(p, c->s.qkv, 0, 6, 12, 16);
    c->v = program_view(p, c->s.qkv, 12, 6, 4, 16);
    c->rotated = program_value(p, 6, 12, DTYPE_BF16);
    p->functions[c->s.forward].n_ops = 1;
    emit(&c->s, c->s.forward, OP_ROPE, c->qk, c->rotated);
    run_alone(&c->s, ENTRY_FEED, c->s.forward);
}

/* The program's columns are rotated in place, or not: and then the check refuses it by force. */
static void columns_must_be_over(struct columns *c, int lodger, int host, const char *why)
{
    struct program *p = &c->s.program;
    struct err err = { 0 };

    assert_int_equal(work_in_place(p), !why);
    assert_int_equal(p->values[lodger].over, why ? 0 : host);
    if (why) {
        p->values[lodger].over = host;
        p->values[lodger].stride = p->values[host].stride;
    }
    place(p);
    assert_int_equal(program_place(p, lodger, 0), program_place(p, host, 0));
    assert_int_equal(p->values[lodger].stride, 16);
    assert_int_equal(verify(p, &err), why ? -1 : 0);
    if (why && !strstr(err.text, why))
        fail_msg("\"%s\" is not in \"%s\"", why, err.text);
    program_release(p);
}

static void over_columns_of_what_is_read_on(void **state)
{
    struct columns c;

    (void)state;
    columns_open(&c);
    struct program *p = &c.s.program;
    int k = program_view(p, c.rotated, 8, 6, 4, 12);
    emit(&c.s, c.s.forward, OP_ACCUMULATE, k, program_view(p, c.s.sum, 0, 6, 4, 16));
    emit(&c.s, c.s.forward, OP_ACCUMULATE, c.v, program_view(p, c.s.sum, 4, 6, 4, 16));
    columns_must_be_over(&c, c.rotated, c.qk, NULL);

    /* Its views lie as it does. */
    columns_open(&c);
    k = program_view(p, c.rotated, 8, 6, 4, 12);
    emit(&c.s, c.s.forward, OP_ACCUMULATE, k, program_view(p, c.s.sum, 0, 6, 4, 16));
    assert_int_equal(work_in_place(p), 1);
    assert_int_equal(p->values[k].stride, 16);
    place(p);
    assert_int_equal(program_place(p, k, 0), program_place(p, c.s.qkv, 0) + 8 * 2);
    program_release(p);
}

/* All of it, or columns of those that are rotated, even if they are some of others, too. */
static void not_over_columns_that_are_read(void **state)
{
    static const int64_t read[][2] = { { 0, 16 }, { 0, 12 }, { 4, 4 }, { 8, 8 } };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct columns c;

        columns_open(&c);
        struct program *p = &c.s.program;
        emit(&c.s, c.s.forward, OP_ACCUMULATE, c.rotated, program_view(p, c.s.sum, 0, 6, 12, 16));
        emit(&c.s, c.s.forward, OP_ACCUMULATE,
             program_view(p, c.s.qkv, read[i][0], 6, read[i][1], 16),
             program_view(p, c.s.sum, 0, 6, read[i][1], 16));
        columns_must_be_over(&c, c.rotated, c.qk, "is read where another value lies over it");
    }
}

/* As in the backward: what is rotated lies in what the result is columns of. */
static void under_columns_of_what_others_write(void **state)
{
    struct columns c;

    (void)state;
    for (int early = 0; early < 3; early++) {
        small_open(&c.s);
        struct program *p = &c.s.program;
        int x = program_view(p, c.s.x, 0, 6, 12, 16), rest = program_view(p, c.s.x, 12, 6, 4, 16);
        c.qk = program_view(p, c.s.qkv, 0, 6, 12, 16);
        c.v = program_view(p, c.s.qkv, 12, 6, 4, 16);
        c.rotated = program_value(p, 6, 12, DTYPE_BF16);
        p->functions[c.s.forward].n_ops = 0;
        emit(&c.s, c.s.forward, OP_SCALE, x, c.rotated);
        emit(&c.s, c.s.forward, OP_SCALE, rest, c.v);
        if (early == 1)
            emit(&c.s, c.s.forward, OP_ACCUMULATE, c.s.qkv, c.s.sum);
        emit(&c.s, c.s.forward, OP_ROPE, c.rotated, c.qk);
        if (early == 2)
            emit(&c.s, c.s.forward, OP_ACCUMULATE, c.rotated,
                 program_view(p, c.s.sum, 0, 6, 12, 16));
        emit(&c.s, c.s.forward, OP_ACCUMULATE, c.s.qkv, c.s.sum);
        run_alone(&c.s, ENTRY_FEED, c.s.forward);
        columns_must_be_over(&c, c.rotated, c.qk,
                             early == 0   ? NULL
                             : early == 1 ? "is read where another value lies over it"
                                          : "is read where it was written over");
    }
}

/* Another function reads the output: both lie in the stash. */
static void in_the_stash(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit(&s, s.other, OP_ACCUMULATE, s.out, s.sum);
    run_both(&s);
    must_be_over(&s, 1);
    assert_int_equal(s.program.values[s.out].scope, SCOPE_STASH);
    assert_int_equal(s.program.values[s.qkv].scope, SCOPE_STASH);
    program_release(&s.program);
}

/* As the step's last micro-batch runs a copy of a function. */
static void in_copies_of_a_function(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    rotate_in(&s, s.other);
    emit(&s, s.forward, OP_ACCUMULATE, s.out, s.sum);
    emit(&s, s.other, OP_ACCUMULATE, s.out, s.sum);
    run_alone(&s, ENTRY_FEED, s.forward);
    run_alone(&s, ENTRY_SCORE, s.other);
    must_be_over(&s, 1);
    program_release(&s.program);
}

static void not_over_what_is_read_behind_it(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit(&s, s.forward, OP_ACCUMULATE, s.qkv, s.sum);
    run_alone(&s, ENTRY_FEED, s.forward);
    must_be_over(&s, 0);
    must_be_refused(&s, "is read where another value lies over it");
}

static void not_over_what_another_function_reads(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit(&s, s.other, OP_ACCUMULATE, s.qkv, s.sum);
    run_alone(&s, ENTRY_FEED, s.forward);
    must_be_over(&s, 0);
    must_be_refused(&s, "is read where another value lies over it");
}

/* It would be rotated again each time. */
static void not_over_what_another_function_makes(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    s.program.functions[s.forward].n_ops = 1;
    emit(&s, s.other, OP_ROPE, s.qkv, s.out);
    emit(&s, s.other, OP_ACCUMULATE, s.out, s.sum);
    run_both(&s);
    must_be_over(&s, 0);
    must_be_refused(&s, "is not written over in the end");
}

/* Both rotate it, but the second reads first what the first has left. */
static void not_over_what_is_left_for_another(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit(&s, s.other, OP_ACCUMULATE, s.qkv, s.sum);
    emit(&s, s.other, OP_ROPE, s.qkv, s.out);
    run_both(&s);
    must_be_over(&s, 0);
    must_be_refused(&s, "is read where another value lies over it");
}

/* Another function makes it again, and needs it as it is: out is gone then. */
static void not_over_what_is_made_again(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit(&s, s.other, OP_SCALE, s.x, s.qkv);
    emit(&s, s.other, OP_ACCUMULATE, s.qkv, s.sum);
    run_both(&s);
    must_be_over(&s, 0);
    must_be_refused(&s, "is not written over in the end");
}

static void not_over_a_cell(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    int rotated = program_value(&s.program, 6, 16, DTYPE_BF16);
    emit(&s, s.forward, OP_ROPE, s.x, rotated);
    emit(&s, s.forward, OP_ACCUMULATE, s.out, s.sum);
    run_alone(&s, ENTRY_FEED, s.forward);
    must_be_over(&s, 1); /* the one, not the other */
    assert_int_equal(s.program.values[rotated].over, 0);
    program_release(&s.program);
}

/* Broken by hand: read too early, by an op that may not, over something else. */
static void broken_ones_are_refused(void **state)
{
    struct small s;

    (void)state;
    small_open(&s);
    emit(&s, s.forward, OP_ACCUMULATE, s.out, s.sum);
    struct op *ops = s.program.functions[s.forward].ops;
    struct op rope = ops[1];
    ops[1] = ops[2];
    ops[2] = rope;
    must_be_refused(&s, "is read before it is written over another value");

    small_open(&s);
    s.program.functions[s.forward].ops[1].kind = OP_SCALE;
    memset(s.program.functions[s.forward].ops[1].in + 1, 0, 2 * sizeof(int));
    must_be_refused(&s, "cannot be written over another value here");

    small_open(&s);
    s.program.functions[s.forward].n_ops = 1;
    must_be_refused(&s, "is not written over in the end");
}

/* Both rotations of each layer, with what is remade among them. */
static void all_of_a_model(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);
    struct program p;
    struct err err;
    int n_rotations = 0;

    (void)state;
    options.recompute = RECOMPUTE_KIND_FULL;
    if (compile_train(&p, &options, &err) < 0)
        fail_msg("%s", err.text);
    for (int f = 0; f < p.n_functions; f++)
        for (int i = 0; i < p.functions[f].n_ops; i++) {
            const struct op *op = &p.functions[f].ops[i];

            if (op->kind != OP_ROPE && op->kind != OP_ROPE_GRAD)
                continue;
            assert_true(p.values[op->out[0]].over == op->in[0] ||
                        p.values[op->in[0]].over == op->out[0]);
            n_rotations++;
        }
    assert_true(n_rotations >= 3 * spec.n_layers);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_what_is_not_read_again),
        cmocka_unit_test(over_and_over),
        cmocka_unit_test(views_go_along),
        cmocka_unit_test(over_columns_of_what_is_read_on),
        cmocka_unit_test(not_over_columns_that_are_read),
        cmocka_unit_test(under_columns_of_what_others_write),
        cmocka_unit_test(in_the_stash),
        cmocka_unit_test(in_copies_of_a_function),
        cmocka_unit_test(not_over_what_is_read_behind_it),
        cmocka_unit_test(not_over_what_another_function_reads),
        cmocka_unit_test(not_over_what_another_function_makes),
        cmocka_unit_test(not_over_what_is_left_for_another),
        cmocka_unit_test(not_over_what_is_made_again),
        cmocka_unit_test(not_over_a_cell),
        cmocka_unit_test(broken_ones_are_refused),
        cmocka_unit_test(all_of_a_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
