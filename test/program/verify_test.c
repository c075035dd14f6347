/*
 * verify_test.c - broken programs are refused, in words that name function, op and value
 *
 * Programs are broken by hand, one bug each, from a small one that passes; compiled models with a
 * bug in their sums over ranks are in verify_sums_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/tiny_model.h"
#include "support/tp_layers.h"
#include "verify_judge.h"

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
    struct chunk_functions chunk = { .forward = s->forward,
                                     .backward = s->backward,
                                     .weight = s->backward,
                                     .last = s->backward,
                                     .receive_forward = -1,
                                     .send_forward = -1,
                                     .receive_backward = -1,
                                     .send_backward = -1 };
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
