/*
 * verify_stage_test.c - a stage compiled for tp 2, dp 2 and pp 2 is refused with one mistake in it
 *
 * The mistakes that concern several ranks' programs at once are in verify_ranks_test.c, those of
 * small programs in verify_test.c, those of sums over ranks in verify_sums_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/tiny_model.h"
#include "verify_judge.h"

static void compile_stage(struct program *program, enum pipeline_kind kind, int rank, int zero,
                          int sequence_parallel)
{
    static struct model_spec spec;
    struct compile_train options;
    struct err err;

    spec = tiny_spec("llama");
    spec.n_layers = 4;
    options = tiny_compile(&spec, 2);
    options.mesh.size[AXIS_TP] = 2;
    options.mesh.size[AXIS_PP] = 2;
    options.n_micro_batches = 4;
    options.pipeline.kind = kind;
    options.pipeline.n_chunks = 1;
    options.pipeline.rank = rank;
    options.sequence_parallel = sequence_parallel;
    options.gradients.zero = zero;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
    check_accepted(program);
}

static struct function *function_of(const struct program *p, const char *name)
{
    for (int f = 0; f < p->n_functions; f++)
        if (!strcmp(p->functions[f].name, name))
            return &p->functions[f];
    fail_msg("there is no function '%s'", name);
    return NULL;
}

static void remove_op(struct program *p, int function, int index)
{
    struct function *f = &p->functions[function];

    f->n_ops--;
    memmove(f->ops + index, f->ops + index + 1, sizeof *f->ops * (size_t)(f->n_ops - index));
}

/* The first op of that kind over tp that reads what an op of kind `writer` has written. */
static int find_after(const struct function *f, enum op_kind writer, enum op_kind kind)
{
    for (int i = 1; i < f->n_ops; i++)
        for (int k = 0; k < i; k++)
            if (f->ops[i].kind == kind && f->ops[i].attributes.axis == AXIS_TP &&
                f->ops[k].kind == writer && f->ops[k].out[0] == f->ops[i].in[0])
                return i;
    fail_msg("%s: there is no %s of a %s", f->name, op_info(kind)->name, op_info(writer)->name);
    return -1;
}

/* What read `from` reads `to`. */
static void read_instead(struct program *p, int from, int to)
{
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                if (p->functions[f].ops[i].in[k] == from)
                    p->functions[f].ops[i].in[k] = to;
}

/* A row-parallel linear's summand goes into the residual stream as if it were the sum. */
static void linear_without_its_sum(void **state)
{
    struct program p;

    (void)state;
    compile_stage(&p, PIPELINE_1F1B, 1, 0, 0);
    struct function *f = function_of(&p, "forward 0");
    int i = find_after(f, OP_LINEAR, OP_ALL_REDUCE);
    struct op sum = f->ops[i];
    remove_op(&p, (int)(f - p.functions), i);
    read_instead(&p, sum.out[0], sum.in[0]);
    REFUSED(&p, "forward 0: over tp", "add_rmsnorm: delta is partial");
    program_release(&p);

    /* Under sequence parallel its own rows of it have the shape of the sum. */
    compile_stage(&p, PIPELINE_1F1B, 1, 0, 1);
    f = function_of(&p, "forward 0");
    i = find_after(f, OP_LINEAR, OP_REDUCE_SCATTER);
    sum = f->ops[i];
    remove_op(&p, (int)(f - p.functions), i);
    read_instead(&p, sum.out[0], sum.in[0]);
    REFUSED(&p, "forward 0", "add_rmsnorm", "[16 x 32]");
    read_instead(&p, sum.in[0], program_local_shard(&p, NULL, sum.in[0], AXIS_TP));
    place(&p);
    REFUSED(&p, "forward 0: add_rmsnorm (layer 2)", "is read as whole while sums over ranks");
    program_release(&p);
}

/* Each rank has learned a norm's gradient of its own rows alone. */
static void norm_without_its_sum(void **state)
{
    (void)state;
    for (int zero = 0; zero < 2; zero++) {
        struct program p;

        compile_stage(&p, PIPELINE_1F1B, 1, zero, 1);
        struct function *f = function_of(&p, "update");
        int i = 0;
        while (f->ops[i].kind != OP_ALL_REDUCE || f->ops[i].attributes.axis != AXIS_TP)
            assert_true(++i < f->n_ops);
        remove_op(&p, (int)(f - p.functions), i);
        REFUSED(&p, "update: sumsq", "is read as whole while sums over ranks are owed",
                zero ? "bucket." : "norm.weight.grad");
        program_release(&p);
    }
}

/* A collective writes where it still reads, a gather of weights where others lie. */
static void overlapping_collectives(void **state)
{
    struct program p;
    char text[64];

    (void)state;
    compile_stage(&p, PIPELINE_1F1B, 1, 1, 1);
    struct function *f = function_of(&p, "forward 0");
    const struct op *op = &f->ops[find_after(f, OP_LINEAR, OP_REDUCE_SCATTER)];
    assert_int_equal(p.values[op->in[0]].segment, SEGMENT_SCRATCH);
    assert_int_equal(p.values[op->out[0]].segment, SEGMENT_SCRATCH);
    p.values[op->out[0]].place_bytes = p.values[op->in[0]].place_bytes;
    snprintf(text, sizeof text, "%%%d and %%%d", op->in[0], op->out[0]);
    REFUSED(&p, "forward 0", text, "overlap in memory");
    program_release(&p);

    /* One bucket's gathered weights over another's. */
    compile_stage(&p, PIPELINE_1F1B, 1, 1, 1);
    int low = p.buckets[0].weights, high = p.buckets[1].weights;
    if (p.values[low].place_bytes > p.values[high].place_bytes) {
        low = p.buckets[1].weights;
        high = p.buckets[0].weights;
    }
    size_t by = p.values[high].place_bytes - p.values[low].place_bytes;
    for (int id = 1; id < p.n_values; id++)
        if (program_base(&p, id) == high)
            p.values[id].place_bytes -= by;
    REFUSED(&p, "weights: weights.", "overlap in memory");
    program_release(&p);
}

static void exchange(struct program *p, const char *name, int a, int b)
{
    struct entry *step = &p->entries[ENTRY_STEP];

    for (int i = 0; i < step->n_actions; i++) {
        struct action *action = &step->actions[i];

        if (action->kind != ACTION_RUN || strcmp(p->functions[action->function].name, name) != 0)
            continue;
        if (action->micro_batch == a || action->micro_batch == b)
            action->micro_batch = a + b - action->micro_batch;
    }
}

/* All that the second backward needs is there, but its sums come before the first's. */
static void backwards_out_of_order(void **state)
{
    struct program p;

    (void)state;
    compile_stage(&p, PIPELINE_GPIPE, 1, 0, 1);
    exchange(&p, "backward 0", 1, 2);
    exchange(&p, "send backward 0", 1, 2);
    REFUSED(&p, ".grad", "takes micro-batches out of order", "step, micro-batch 1");
    program_release(&p);
}

/* One slot less than the micro-batches that are under way. */
static void stash_with_a_slot_too_few(void **state)
{
    struct program p;

    (void)state;
    compile_stage(&p, PIPELINE_1F1B, 0, 0, 1);
    int n_tried = 0;
    for (int i = 0; i < p.n_stashes; i++) {
        if (p.stashes[i].n_slots < 2)
            continue;
        p.stashes[i].n_slots--;
        REFUSED(&p, "slot was reused too early", "backward 0", "step, micro-batch 0");
        p.stashes[i].n_slots++;
        check_accepted(&p);
        n_tried++;
    }
    assert_true(n_tried > 0);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_without_its_sum),    cmocka_unit_test(norm_without_its_sum),
        cmocka_unit_test(overlapping_collectives),   cmocka_unit_test(backwards_out_of_order),
        cmocka_unit_test(stash_with_a_slot_too_few),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
