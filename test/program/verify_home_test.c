/*
 * verify_home_test.c - programs whose values come and go, with one copy missing or misplaced
 *
 * Tiny models are compiled with all kinds away, in pieces. Each copy there and back is left out in
 * turn, sent before the last write, or brought before another's change was sent; each await is left
 * out.
 */
#include "verify_judge.h"

#include <stdio.h>

#include "support/tiny_model.h"

static const unsigned char first_set[16];

static void compile(struct program *program, const char *model, int dp_size, int zero,
                    bool updates_on_host)
{
    struct model_spec spec = tiny_spec(model);
    struct compile_train options = tiny_compile(&spec, dp_size);
    struct rank_offload away = { .piece_bytes = 4096, .updates_on_host = updates_on_host };
    struct keep_set set = { 0 };
    struct err err;

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        bitset_add(&set.away, kind);
    for (int kind = 0; kind < N_AWAY_KINDS; kind++)
        away.cells[kind].bytes = SIZE_MAX;
    options.offload = &away;
    options.sets = &set;
    options.set_of_layer = first_set;
    options.gradients.zero = zero;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
    check_accepted(program);
}

static bool is_bring(const struct program *p, const struct op *op)
{
    return op->kind == OP_TO_DEVICE && p->values[op->out[TO_DEVICE_Y]].home;
}

static bool is_send(const struct program *p, const struct op *op)
{
    return op->kind == OP_TO_HOST && p->values[op->in[TO_HOST_X]].home;
}

/* Whether it is accepted with an await in place of the copy. */
static bool is_accepted_without(struct program *p, struct op *op, struct err *err)
{
    struct op whole = *op;
    int nothing = op->kind == OP_TO_DEVICE ? op->out[TO_DEVICE_Y] : op->in[TO_HOST_X];

    *op = (struct op){ .kind = OP_AWAIT, .phase = op->phase, .in = { [AWAIT_X] = nothing } };
    bool accepted = verify(p, err) == 0;
    *op = whole;
    return accepted;
}

struct counts {
    int n_brought, n_sent, n_awaited, n_reused;
};

static int operand(const struct op *op, int k)
{
    return k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
}

static bool touches(const struct program *p, const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++)
        if (program_base(p, operand(op, k)) == value)
            return true;
    return false;
}

static bool has_memory_of(const struct program *p, const struct op *op, int value)
{
    const struct value *v = &p->values[value];

    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        int base = program_base(p, operand(op, k));
        const struct value *b = &p->values[base];

        if (base && base != value && b->segment == v->segment && op->kind != OP_AWAIT &&
            b->place_bytes < v->place_bytes + program_value_bytes(p, value) &&
            v->place_bytes < b->place_bytes + program_value_bytes(p, base))
            return true;
    }
    return false;
}

/* What is brought again though it was here before, and its memory is nobody else's meanwhile. */
static bool is_here_anyway(const struct program *p, const struct function *f, int i)
{
    int value = f->ops[i].out[TO_DEVICE_Y], before = i - 1;

    while (before >= 0 && !touches(p, &f->ops[before], value))
        before--;
    for (int k = before + 1; k < i; k++)
        if (has_memory_of(p, &f->ops[k], value))
            return false;
    return before >= 0;
}

static void leave_out_each(struct program *p, struct counts *n)
{
    struct err err;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            struct op *op = &p->functions[f].ops[i];

            if (!is_bring(p, op) && !is_send(p, op))
                continue;
            n->n_brought += is_bring(p, op);
            n->n_sent += is_send(p, op);
            if (is_accepted_without(p, op, &err) &&
                (is_send(p, op) || !is_here_anyway(p, &p->functions[f], i)))
                fail_msg("%s, op %d: accepted without %s", p->functions[f].name, i,
                         op_name(op->kind));
        }
}

static void leave_out_each_await(struct program *p, struct counts *n)
{
    struct err err;

    for (int f = 0; f < p->n_functions; f++) {
        struct function *function = &p->functions[f], whole = *function;
        struct op *ops = arena_array(&p->arena, struct op, whole.n_ops);

        for (int i = 0; i < whole.n_ops; i++) {
            if (whole.ops[i].kind != OP_AWAIT || !p->values[whole.ops[i].in[AWAIT_X]].home)
                continue;
            memcpy(ops, whole.ops, sizeof *ops * (size_t)whole.n_ops);
            memmove(ops + i, ops + i + 1, sizeof *ops * (size_t)(whole.n_ops - i - 1));
            function->ops = ops;
            function->n_ops = whole.n_ops - 1;
            n->n_awaited++;
            if (verify(p, &err) < 0) {
                n->n_reused++;
                if (!strstr(err.text, "overlap in memory"))
                    fail_msg("an await less is: %s", err.text);
            }
            *function = whole;
        }
    }
}

static void nothing_may_be_left_out(void **state)
{
    static const struct {
        const char *model;
        int dp, zero;
        bool on_host;
    } ways[] = {
        { "llama", 1, 0, false },
        { "gpt2", 1, 0, true },
        { "llama", 2, 2, false },
        { "llama", 2, 3, true },
    };
    struct counts all = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct counts n = { 0 };
        struct program p;

        compile(&p, ways[i].model, ways[i].dp, ways[i].zero, ways[i].on_host);
        leave_out_each(&p, &n);
        leave_out_each_await(&p, &n);
        assert_true(n.n_brought > 4 && n.n_sent > 4 && n.n_awaited > 4);
        all.n_reused += n.n_reused;
        program_release(&p);
    }
    assert_true(all.n_reused > 0);
}

static bool writes(const struct program *p, const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (program_base(p, op->out[k]) == value)
            return true;
    return false;
}

/* Each that goes home behind its last write goes ahead of it instead. */
static void nothing_is_sent_too_early(void **state)
{
    struct program p;
    int n_early = 0;

    (void)state;
    compile(&p, "llama", 1, 0, false);
    for (int f = 0; f < p.n_functions; f++)
        for (int i = 1; i < p.functions[f].n_ops; i++) {
            struct op *ops = p.functions[f].ops, send = ops[i], write = ops[i - 1];
            struct err err;

            if (!is_send(&p, &send) || !writes(&p, &write, send.in[TO_HOST_X]))
                continue;
            ops[i] = write;
            ops[i - 1] = send;
            if (!verify(&p, &err))
                fail_msg("%s, op %d: accepted ahead of %s", p.functions[f].name, i,
                         op_name(write.kind));
            ops[i] = send;
            ops[i - 1] = write;
            n_early++;
        }
    assert_true(n_early > 4);
    program_release(&p);
}

/* A value has one home, and its parts theirs. */
static void homes_are_not_exchanged(void **state)
{
    struct program p;
    int n = 0;

    (void)state;
    compile(&p, "llama", 1, 0, false);
    for (int f = 0; f < p.n_functions; f++) {
        int home = 0;

        for (int i = 0; i < p.functions[f].n_ops; i++) {
            struct op *op = &p.functions[f].ops[i];
            int *at = is_bring(&p, op)  ? &op->in[TO_DEVICE_X]
                      : is_send(&p, op) ? &op->out[TO_HOST_Y]
                                        : NULL;

            if (!at)
                continue;
            int own = *at;
            const struct value *a = &p.values[own], *b = &p.values[home];
            if (home && home != own && a->rows == b->rows && a->cols == b->cols &&
                a->dtype == b->dtype) {
                *at = home;
                REFUSED(&p, "another value's home");
                *at = own;
                n++;
            }
            home = own;
        }
    }
    assert_true(n > 4);
    program_release(&p);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_may_be_left_out),
        cmocka_unit_test(nothing_is_sent_too_early),
        cmocka_unit_test(homes_are_not_exchanged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
