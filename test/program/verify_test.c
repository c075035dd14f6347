/*
 * verify_test.c - broken programs are refused, in words that name function, op and value
 *
 * Programs are broken by hand, one bug each, from a small one and from a compiled model that pass.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "support/tiny_model.h"
#include "support/tp_layers.h"

static void check_accepted(const struct program *program)
{
    struct err err;

    if (verify(program, &err) < 0)
        fail_msg("%s", err.text);
}

/* parts: up to three texts that the message must contain. */
static void check_refused(const struct program *program, const char *const parts[3])
{
    struct err err = { 0 };

    assert_int_equal(verify(program, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    for (int i = 0; i < 3; i++)
        if (parts[i] && !strstr(err.text, parts[i]))
            fail_msg("\"%s\" is not in \"%s\"", parts[i], err.text);
}

#define REFUSED(program, ...) check_refused(program, (const char *const[3]){ __VA_ARGS__ })

/* ---- a small program: y = x + x, z = y + x in one function, read by another ---- */

struct small {
    struct program program;
    int x, y, z, w, grad;
    int forward, backward;
};

static struct op add(int a, int b, int y)
{
    return (struct op){ .kind = OP_ADD, .in = { a, b }, .out = { y }, .layer = -1 };
}

static void small_open(struct small *s, int n_micro_batches)
{
    struct mesh mesh = mesh_data_parallel(1);

    memset(s, 0, sizeof *s);
    struct program *p = &s->program;
    program_init(p, &mesh);
    s->x = program_cell(p, ROLE_INPUT, "x", 4, 8, DTYPE_F32);
    s->y = program_value(p, 4, 8, DTYPE_F32);
    s->z = program_value(p, 4, 8, DTYPE_F32);
    s->w = program_value(p, 4, 8, DTYPE_F32);
    s->grad = program_cell(p, ROLE_GRADIENT, "grad", 8, 8, DTYPE_F32);
    s->forward = program_function(p, "forward 0", 0);
    s->backward = program_function(p, "backward 0", 0);
    struct op y = add(s->x, s->x, s->y), z = add(s->y, s->x, s->z), w = add(s->z, s->x, s->w);
    program_emit(p, s->forward, &y);
    program_emit(p, s->forward, &z);
    program_emit(p, s->backward, &w);
    program_emit(p, s->backward,
                 &(struct op){ .kind = OP_LINEAR_DW,
                               .in = { s->w, s->z },
                               .out = { s->grad },
                               .phase = PHASE_W,
                               .layer = -1 });
    struct chunk_functions chunk = { s->forward, s->backward, s->backward, s->backward,
                                     -1,         -1,          -1,          -1 };
    schedule_alone(p, &chunk, -1, program_function(p, "update", 0), n_micro_batches);
    place(p);
}

static struct function *small_function(struct small *s, int function)
{
    return &s->program.functions[function];
}

static void small_program_passes(void **state)
{
    struct small s;

    (void)state;
    for (int n = 1; n <= 9; n++) {
        small_open(&s, n);
        check_accepted(&s.program);
        program_release(&s.program);
    }
}

static void read_before_written(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    struct op *ops = small_function(&s, s.forward)->ops, first = ops[0];
    ops[0] = ops[1];
    ops[1] = first;
    REFUSED(&s.program, "forward 0: add", "%2", "is read before it is written");
    program_release(&s.program);
}

/* A value of scratch does not outlive the run of its function. */
static void read_after_its_function(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    s.program.values[s.z].scope = SCOPE_PASS;
    s.program.values[s.z].segment = SEGMENT_SCRATCH;
    s.program.values[s.z].place_bytes = 0;
    s.program.values[s.y].place_bytes = 128;
    s.program.values[s.w].place_bytes = 256;
    s.program.segment_bytes[SEGMENT_SCRATCH] = 384;
    REFUSED(&s.program, "backward 0: add", "%3", "is read before it is written");
    program_release(&s.program);
}

static void written_twice(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    small_function(&s, s.forward)->ops[1].out[0] = s.y;
    small_function(&s, s.forward)->ops[1].in[0] = s.x;
    REFUSED(&s.program, "forward 0: add", "%2", "is written twice");
    program_release(&s.program);
}

static void wrong_shape(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    s.program.values[s.y].cols = s.program.values[s.y].stride = 4;
    REFUSED(&s.program, "forward 0", "add", "[4 x 4]");
    program_release(&s.program);
    small_open(&s, 2);
    s.program.values[s.z].dtype = DTYPE_BF16;
    REFUSED(&s.program, "forward 0", "add", "bf16");
    program_release(&s.program);
}

static void never_loaded(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    s.program.entries[ENTRY_STEP].actions[0].kind = ACTION_GATE;
    REFUSED(&s.program, "step, micro-batch 0", "x is read before it is written");
    program_release(&s.program);
}

/* ---- memory ---- */

static void overlapping_places(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    /* Nobody but LOAD touches them, so they share a stash. */
    int t = program_cell(&s.program, ROLE_INPUT, "t", 4, 8, DTYPE_F32);
    int u = program_cell(&s.program, ROLE_INPUT, "u", 4, 8, DTYPE_F32);
    place(&s.program);
    s.program.values[u].place_bytes = s.program.values[t].place_bytes + 64;
    s.program.stashes[s.program.values[u].stash].slot_bytes += 64;
    s.program.segment_bytes[SEGMENT_STASH] += 64;
    REFUSED(&s.program, "stash", "t and u", "overlap in memory");
    program_release(&s.program);

    small_open(&s, 2);
    s.program.stashes[1].begin_bytes -= 64;
    REFUSED(&s.program, "stash 1 overlaps the one before");
    program_release(&s.program);

    small_open(&s, 2);
    int other = program_cell(&s.program, ROLE_GRADIENT, "other", 8, 8, DTYPE_F32);
    place(&s.program);
    s.program.values[other].place_bytes = 252;
    REFUSED(&s.program, "gradients", "grad and other", "overlap in memory");
    program_release(&s.program);
}

/* In scratch only those that live at the same time must lie apart. */
static void overlapping_lifetimes(void **state)
{
    struct small s;
    struct op op;

    (void)state;
    small_open(&s, 1);
    int a = program_value(&s.program, 4, 8, DTYPE_F32),
        b = program_value(&s.program, 4, 8, DTYPE_F32);
    int c = program_value(&s.program, 4, 8, DTYPE_F32);
    op = add(s.x, s.x, a);
    program_emit(&s.program, s.backward, &op);
    op = add(a, s.x, b);
    program_emit(&s.program, s.backward, &op);
    op = add(b, s.x, c);
    program_emit(&s.program, s.backward, &op);
    place(&s.program);
    check_accepted(&s.program);
    s.program.values[c].place_bytes = s.program.values[a].place_bytes;
    s.program.values[b].place_bytes = s.program.values[a].place_bytes ? 0 : 128;
    check_accepted(&s.program);
    s.program.values[b].place_bytes = s.program.values[a].place_bytes;
    REFUSED(&s.program, "backward 0", "%6 and %7", "overlap in memory");
    /* In part, from above and from below. */
    s.program.segment_bytes[SEGMENT_SCRATCH] = 1024;
    s.program.values[a].place_bytes = 512;
    s.program.values[b].place_bytes = 512 + 64;
    REFUSED(&s.program, "backward 0", "%6 and %7", "overlap in memory");
    s.program.values[b].place_bytes = 512 - 64;
    REFUSED(&s.program, "backward 0", "%7 and %6", "overlap in memory");
    s.program.values[b].place_bytes = 512 - 128;
    check_accepted(&s.program);
    program_release(&s.program);
}

/*
 * What a collective reads or writes may be written over only once it has been awaited: by the op
 * that touches its result, not by the one after its last mention.
 */
static void memory_of_a_collective_under_way(void **state)
{
    struct tp_layers t;
    struct program *p = &t.program;
    char both[32];

    (void)state;
    for (int awaited = 0; awaited < 2; awaited++) {
        /* gather, linear, linear, reduce_scatter, then what touches neither, then what awaits. */
        tp_layers_build(&t, 1, 2, 0, 64, 32, 96);
        struct function *f = &p->functions[t.function];
        int late = program_value(p, 32, 32, DTYPE_F32);
        struct op op = add(t.x, t.x, late);
        program_insert(p, t.function, f->n_ops - awaited, &op);
        place(p);
        check_accepted(p);
        /* The sum that is scattered is mentioned last by the reduce_scatter. */
        p->values[late].place_bytes = p->values[t.partial[0]].place_bytes;
        if (!awaited) {
            check_accepted(p);
        } else {
            snprintf(both, sizeof both, "%%%d and %%%d", t.partial[0], late);
            REFUSED(p, "forward 0", both, "overlap in memory");
        }
        program_release(p);
    }
}

/* Nobody awaits the last one: its memory is not free before the function's end. */
static void memory_of_a_collective_that_nobody_awaits(void **state)
{
    struct tp_layers t;
    struct program *p = &t.program;
    char both[32];

    (void)state;
    tp_layers_build(&t, 2, 2, 1, 64, 32, 96);
    struct function *f = &p->functions[t.function];
    int last = program_value(p, 64, 32, DTYPE_F32), late = program_value(p, 32, 32, DTYPE_F32);
    struct op op = f->ops[0];
    op.out[0] = last;
    program_emit(p, t.function, &op);
    op = add(t.out, t.out, late);
    program_emit(p, t.function, &op);
    place(p);
    check_accepted(p);
    p->values[late].place_bytes = p->values[last].place_bytes + 128;
    snprintf(both, sizeof both, "%%%d and %%%d", last, late);
    REFUSED(p, "forward 0", both, "overlap in memory");
    program_release(p);
}

static void outside_its_segment(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    s.program.values[s.z].place_bytes =
        s.program.stashes[s.program.values[s.z].stash].slot_bytes - 64;
    REFUSED(&s.program, "%3 ends outside segment stash");
    program_release(&s.program);
    small_open(&s, 2);
    int view = program_view(&s.program, s.grad, 8, 2, 8, 8);
    place(&s.program);
    check_accepted(&s.program);
    s.program.values[view].place_bytes += 64 * sizeof(float);
    REFUSED(&s.program, "does not lie inside its base");
    program_release(&s.program);
}

/* ---- the order of actions ---- */

static void set_actions(struct small *s, const struct action *actions, int n)
{
    struct entry *entry = &s->program.entries[ENTRY_STEP];

    entry->actions = arena_array(&s->program.arena, struct action, n);
    memcpy(entry->actions, actions, sizeof *actions * (size_t)n);
    entry->n_actions = n;
}

static struct action load(int micro_batch)
{
    return (struct action){ .kind = ACTION_LOAD, .micro_batch = micro_batch };
}

static struct action run(int function, int micro_batch, int first)
{
    return (struct action){ .kind = ACTION_RUN,
                            .function = (int16_t)function,
                            .micro_batch = micro_batch,
                            .first = (uint8_t)first };
}

/* Two forwards before a backward need two slots. */
static void slot_reused_too_early(void **state)
{
    struct small s;

    (void)state;
    for (int placed_again = 0; placed_again < 2; placed_again++) {
        small_open(&s, 2);
        int f = s.forward, b = s.backward;
        const struct action actions[] = {
            load(0), run(f, 0, 1), load(1), run(f, 1, 0), run(b, 0, 1), run(b, 1, 0),
        };
        set_actions(&s, actions, 6);
        if (placed_again)
            place(&s.program);
        if (!placed_again)
            REFUSED(&s.program, "backward 0: add", "%3", "slot was reused too early");
        else
            check_accepted(&s.program);
        program_release(&s.program);
    }
}

static void micro_batches_out_of_order(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    int f = s.forward, b = s.backward;
    const struct action actions[] = {
        load(0), run(f, 0, 1), load(1), run(f, 1, 0), run(b, 1, 1), run(b, 0, 0),
    };
    set_actions(&s, actions, 6);
    place(&s.program);
    REFUSED(&s.program, "backward 0: linear_dw", "grad", "micro-batches out of order");
    program_release(&s.program);
}

/* Without `first` the first micro-batch would be added to the step before. */
static void accumulator_never_started(void **state)
{
    struct small s;

    (void)state;
    small_open(&s, 2);
    s.program.entries[ENTRY_STEP].actions[2].first = 0;
    REFUSED(&s.program, "linear_dw", "grad", "added to what was never started");
    program_release(&s.program);
}

/* A mistake in one of many equal micro-batches is found, wherever it is. */
static void mistake_among_repeats(void **state)
{
    (void)state;
    for (int m = 0; m < 12; m++) {
        struct small s;

        small_open(&s, 12);
        struct action *actions = s.program.entries[ENTRY_STEP].actions;
        check_accepted(&s.program);
        /* This micro-batch's forward is left out. */
        actions[3 * m + 1] = (struct action){ .kind = ACTION_GATE, .micro_batch = -1 };
        char text[32];
        snprintf(text, sizeof text, "micro-batch %d", m);
        REFUSED(&s.program, "backward 0: add", "%3", text);
        program_release(&s.program);
    }
}

/* What follows the repeats finds what the last of them left. */
static void reading_after_repeats(void **state)
{
    (void)state;
    for (int n = 1; n <= 12; n++) {
        struct small s;
        struct action actions[3 * 12 + 1];

        small_open(&s, n);
        memcpy(actions, s.program.entries[ENTRY_STEP].actions, sizeof *actions * (size_t)(3 * n));
        actions[3 * n] = run(s.backward, n - 1, 0);
        set_actions(&s, actions, 3 * n + 1);
        check_accepted(&s.program);
        actions[3 * n] = run(s.backward, n, 0);
        set_actions(&s, actions, 3 * n + 1);
        REFUSED(&s.program, "backward 0: add", "slot was reused too early");
        program_release(&s.program);
    }
}

/* ---- sums over ranks: the tiny models at dp 2 ---- */

static void compile(struct program *program, const char *model, int early)
{
    static struct model_spec spec;
    struct compile_train options;
    struct err err;

    spec = tiny_spec(model);
    options = tiny_compile(&spec, 2);
    options.gradients.early = early;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
}

static int find_op(const struct program *p, int *function, enum op_kind kind)
{
    for (*function = 0; *function < p->n_functions; (*function)++)
        for (int i = 0; i < p->functions[*function].n_ops; i++)
            if (p->functions[*function].ops[i].kind == kind)
                return i;
    fail_msg("there is no %s", op_info(kind)->name);
    return -1;
}

static void remove_op(struct program *p, int function, int index)
{
    struct function *f = &p->functions[function];

    f->n_ops--;
    memmove(f->ops + index, f->ops + index + 1, sizeof *f->ops * (size_t)(f->n_ops - index));
}

static void missing_reduce(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct program p;
        int function;

        compile(&p, "gpt2", early);
        int index = find_op(&p, &function, OP_REDUCE_SCATTER);
        remove_op(&p, function, index);
        if (early)
            REFUSED(&p, "micro-batch 1", ".grad",
                    "is overwritten before its sum over ranks is started");
        else
            REFUSED(&p, "all_gather", "bucket.", "is read before it is written");
        program_release(&p);
    }
}

/* Zero 2: what shares a staging cell is written there while another's sums still wait for their
 * reduce. */
static void staging_with_two_buckets(void **state)
{
    static struct model_spec spec;
    struct compile_train options;
    struct program p;
    struct err err;
    int function;

    (void)state;
    spec = tiny_spec("llama");
    options = tiny_compile(&spec, 2);
    options.gradients.zero = 2;
    options.gradients.early = 1;
    if (compile_train(&p, &options, &err) < 0)
        fail_msg("%s", err.text);
    check_accepted(&p);
    /* The first reduce of the backward moves behind all else that its function does. */
    int index = find_op(&p, &function, OP_REDUCE_SCATTER);
    while (strcmp(p.functions[function].name, "backward 0") != 0) {
        for (index = 0, function++; index < p.functions[function].n_ops; index++)
            if (p.functions[function].ops[index].kind == OP_REDUCE_SCATTER)
                break;
    }
    struct function *f = &p.functions[function];
    struct op reduce = f->ops[index];
    memmove(f->ops + index, f->ops + index + 1, sizeof *f->ops * (size_t)(f->n_ops - index - 1));
    f->ops[f->n_ops - 1] = reduce;
    REFUSED(&p, "backward 0", ".grad", "is overwritten before its sum over ranks is started");
    program_release(&p);
}

static void missing_gather(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct program p;
        int function;

        compile(&p, "llama", early);
        int index = find_op(&p, &function, OP_ALL_GATHER);
        remove_op(&p, function, index);
        REFUSED(&p, "update: sumsq", ".grad", "is read as whole while sums over ranks are owed");
        program_release(&p);
    }
}

static void compile_zero_one(struct program *program, const char *model)
{
    static struct model_spec spec;
    struct compile_train options;
    struct err err;

    spec = tiny_spec(model);
    options = tiny_compile(&spec, 2);
    options.gradients.zero = 1;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
}

/* Weights of which a rank has updated its own part alone, read as if they were whole. */
static void missing_gather_of_weights(void **state)
{
    static const char *const wanted = "is read as whole before its shards were gathered";

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct program p;

        compile_zero_one(&p, i == 2 ? "gpt2" : "llama");
        struct entry *step = &p.entries[ENTRY_STEP];
        int gather = step->actions[0].function;
        check_accepted(&p);
        if (i == 0) {
            /* One bucket's. */
            remove_op(&p, gather, p.functions[gather].n_ops / 2);
            REFUSED(&p, "forward 0", "weight", wanted);
        } else if (i == 1) {
            p.entries[ENTRY_GATHER].n_actions = 0;
            REFUSED(&p, "evaluate 0: embed", "embedding.weight", wanted);
        } else {
            step->actions[0].function = step->actions[step->n_actions - 1].function;
            step->actions[step->n_actions - 1].function = (int16_t)gather;
            assert_int_equal(verify(&p, &(struct err){ 0 }), -1);
        }
        program_release(&p);
    }
}

/* What a rank changes in its own part after the gather makes the others' copies stale. */
static void updated_after_its_gather(void **state)
{
    struct program p;

    (void)state;
    compile_zero_one(&p, "gpt2");
    program_emit(&p, p.entries[ENTRY_STEP].actions[0].function,
                 &(struct op){ .kind = OP_ACCUMULATE,
                               .in = { p.buckets[0].moment1 },
                               .out = { p.buckets[0].weight_shard },
                               .first = FIRST_NEVER,
                               .layer = -1 });
    REFUSED(&p, "forward 0", "is read as whole before its shards were gathered");
    program_release(&p);
}

static void wrong_local_shard(void **state)
{
    struct program p;

    (void)state;
    compile_zero_one(&p, "llama");
    int own = p.buckets[0].weight_shard;
    p.values[own].spread[AXIS_DP] = SPREAD_SAME;
    REFUSED(&p, "weights.0:shard", "is not a rank's own part over dp");
    p.values[own].spread[AXIS_DP] = SPREAD_COLS;
    p.values[own].cols /= 2;
    REFUSED(&p, "weights.0:shard", "is not a rank's own part over dp");
    /* Of some of the weights: others would never be updated. */
    p.values[own].stride = p.values[own].cols;
    REFUSED(&p, "weights.0:shard", "is not a rank's own part over dp");
    program_release(&p);
}

/* Nobody else has a rank's shard of gradients: what adds it to something whole is refused. */
static void shard_read_as_whole(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile_zero_one(&p, "llama");
    int index = find_op(&p, &function, OP_GRADIENT_NORM);
    struct op *norm = &p.functions[function].ops[index];
    p.values[norm->in[0]].spread[AXIS_DP] = SPREAD_COLS;
    REFUSED(&p, "update");
    program_release(&p);
}

/* The sum is there for the one bucket, and read from the other before its gather. */
static void sum_read_before_its_gather(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile(&p, "llama", 1);
    int index = find_op(&p, &function, OP_ALL_GATHER);
    struct op gather = p.functions[function].ops[index];
    remove_op(&p, function, index);
    program_emit(&p, function, &gather);
    REFUSED(&p, "update: sumsq", ".grad", "is read as whole while sums over ranks are owed");
    program_release(&p);
}

/* A reduce in every micro-batch of what adds micro-batches up would count them twice. */
static void summed_twice(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 1);
    for (int f = 0; f < p.n_functions; f++)
        for (int i = 0; i < p.functions[f].n_ops; i++)
            if (p.functions[f].ops[i].kind == OP_LINEAR_DW)
                p.functions[f].ops[i].first = FIRST_MICRO_BATCH;
    REFUSED(&p, "linear_dw", ".grad", "is added to after its sum over ranks was begun");
    program_release(&p);
}

static void partial_read_as_same(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile(&p, "llama", 0);
    int index = find_op(&p, &function, OP_SUMSQ);
    struct op *op = &p.functions[function].ops[index];
    p.values[op->in[0]].spread[AXIS_DP] = SPREAD_PARTIAL;
    REFUSED(&p, "update", "over dp", "sumsq: x is partial");
    program_release(&p);
}

/* The loss of this rank alone in place of all ranks'. */
static void host_reads_partial_sum(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 0);
    p.ports.loss_total = p.ports.loss;
    REFUSED(&p, "loss is partial over dp where the host reads it");
    program_release(&p);
    compile(&p, "llama", 0);
    p.ports.eval_total = p.ports.eval_loss;
    REFUSED(&p, "eval_loss is partial over dp where the host reads it");
    program_release(&p);
}

static void spread_that_no_op_gives(void **state)
{
    struct program p;
    int function;

    (void)state;
    compile(&p, "llama", 0);
    int index = find_op(&p, &function, OP_SWIGLU_GRAD);
    p.values[p.functions[function].ops[index].out[0]].spread[AXIS_DP] = SPREAD_SAME;
    REFUSED(&p, "backward 0", "swiglu_grad", "does not have the spread its op gives");
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_program_passes),
        cmocka_unit_test(read_before_written),
        cmocka_unit_test(read_after_its_function),
        cmocka_unit_test(written_twice),
        cmocka_unit_test(wrong_shape),
        cmocka_unit_test(never_loaded),
        cmocka_unit_test(overlapping_places),
        cmocka_unit_test(overlapping_lifetimes),
        cmocka_unit_test(memory_of_a_collective_under_way),
        cmocka_unit_test(memory_of_a_collective_that_nobody_awaits),
        cmocka_unit_test(outside_its_segment),
        cmocka_unit_test(slot_reused_too_early),
        cmocka_unit_test(micro_batches_out_of_order),
        cmocka_unit_test(accumulator_never_started),
        cmocka_unit_test(mistake_among_repeats),
        cmocka_unit_test(reading_after_repeats),
        cmocka_unit_test(staging_with_two_buckets),
        cmocka_unit_test(missing_reduce),
        cmocka_unit_test(missing_gather),
        cmocka_unit_test(missing_gather_of_weights),
        cmocka_unit_test(updated_after_its_gather),
        cmocka_unit_test(wrong_local_shard),
        cmocka_unit_test(shard_read_as_whole),
        cmocka_unit_test(sum_read_before_its_gather),
        cmocka_unit_test(summed_twice),
        cmocka_unit_test(partial_read_as_same),
        cmocka_unit_test(host_reads_partial_sum),
        cmocka_unit_test(spread_that_no_op_gives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
