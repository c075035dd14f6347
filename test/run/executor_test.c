/*
 * executor_test.c - small programs executed: order, slots, hooks, poison
 *
 * The program: y = x + x and z = y + x forward, w = z + x and grad += w' z backward, total = grad +
 * grad in the end. With x = c everywhere, z = 3 c, w = 4 c and each of the 4 rows adds 12 c^2 to
 * each of grad.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/num.h"
#include "program/passes.h"
#include "run/run.h"
#include "support/tiny_model.h"

#define ROWS 4
#define COLS 8
#define N_TRACE_MAX 64

struct rig {
    struct program program;
    struct pool *pool;
    struct kernels *kernels;
    struct run *run;
    int x, y, z, w, grad, total, view;
    int forward, backward, end;
    int fail_at; /* micro-batch whose load fails; -1 none */
    int fail_gate;
    char trace[N_TRACE_MAX];
    int n_trace;
};

static void emit_add(struct rig *rig, int function, int a, int b, int y)
{
    program_emit(&rig->program, function,
                 &(struct op){ .kind = OP_ADD, .in = { a, b }, .out = { y }, .layer = 3 });
}

static void build_program(struct rig *rig, enum first_mode first)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program *p = &rig->program;

    program_init(p, &mesh);
    rig->x = program_cell(p, ROLE_INPUT, "x", ROWS, COLS, DTYPE_F32);
    rig->y = program_value(p, ROWS, COLS, DTYPE_F32);
    rig->z = program_value(p, ROWS, COLS, DTYPE_F32);
    rig->w = program_value(p, ROWS, COLS, DTYPE_F32);
    rig->grad = program_cell(p, ROLE_GRADIENT, "grad", COLS, COLS, DTYPE_F32);
    rig->view = program_view(p, rig->grad, COLS, 2, COLS, COLS);
    rig->total = program_cell(p, ROLE_SCALAR, "total", COLS, COLS, DTYPE_F32);
    rig->forward = program_function(p, "forward 0", 0);
    rig->backward = program_function(p, "backward 0", 0);
    rig->end = program_function(p, "end", 0);
    emit_add(rig, rig->forward, rig->x, rig->x, rig->y);
    emit_add(rig, rig->forward, rig->y, rig->x, rig->z);
    emit_add(rig, rig->backward, rig->z, rig->x, rig->w);
    program_emit(p, rig->backward,
                 &(struct op){ .kind = OP_LINEAR_DW,
                               .in = { rig->w, rig->z },
                               .out = { rig->grad },
                               .first = first,
                               .layer = 3 });
    emit_add(rig, rig->end, rig->grad, rig->grad, rig->total);
}

static struct action load_action(int micro_batch)
{
    return (struct action){ .kind = ACTION_LOAD, .micro_batch = micro_batch };
}

static struct action run_action(int function, int micro_batch, int first)
{
    return (struct action){ .kind = ACTION_RUN,
                            .function = (int16_t)function,
                            .micro_batch = micro_batch,
                            .first = (uint8_t)first };
}

/* Two forwards ahead of their backwards, which takes two slots, then the end behind a gate. */
static void set_actions(struct rig *rig)
{
    const struct action actions[] = {
        load_action(0),
        run_action(rig->forward, 0, 1),
        load_action(1),
        run_action(rig->forward, 1, 0),
        run_action(rig->backward, 0, 1),
        run_action(rig->backward, 1, 0),
        { .kind = ACTION_GATE, .micro_batch = -1 },
        run_action(rig->end, -1, 0),
    };
    struct entry *step = &rig->program.entries[ENTRY_STEP];
    struct entry *alone = &rig->program.entries[ENTRY_EVALUATE];

    step->actions = arena_array(&rig->program.arena, struct action, 8);
    memcpy(step->actions, actions, sizeof actions);
    step->n_actions = 8;
    alone->actions = arena_array(&rig->program.arena, struct action, 3);
    alone->actions[0] = actions[0];
    alone->actions[1] = actions[1];
    alone->actions[2] = actions[4];
    alone->n_actions = 3;
}

static void rig_open_first(struct rig *rig, int poison, struct progress_slot *progress,
                           enum first_mode first)
{
    struct err err;

    memset(rig, 0, sizeof *rig);
    rig->fail_at = -1;
    build_program(rig, first);
    set_actions(rig);
    if (pool_create(&rig->pool, 2, NULL, &err) < 0 ||
        kernels_cpu_create(&rig->kernels, rig->pool, NULL, &err) < 0)
        fail_msg("%s", err.text);
    struct run_scratch scratch = { .kernels = rig->kernels, .mesh = rig->program.mesh };
    program_size_scratch(&rig->program, run_scratch_bytes, &scratch);
    place(&rig->program);
    if (verify(&rig->program, &err) < 0)
        fail_msg("%s", err.text);
    struct run_options options = { .program = &rig->program,
                                   .kernels = rig->kernels,
                                   .progress = progress,
                                   .poison = poison,
                                   .timed = 1 };
    if (run_create(&rig->run, &options, &err) < 0)
        fail_msg("%s", err.text);
    run_set_timed(rig->run, 1);
}

static void rig_open(struct rig *rig, int poison, struct progress_slot *progress)
{
    rig_open_first(rig, poison, progress, FIRST_MICRO_BATCH);
}

static void rig_close(struct rig *rig)
{
    run_destroy(rig->run);
    program_release(&rig->program);
    kernels_destroy(rig->kernels);
    pool_destroy(rig->pool);
}

static void trace(struct rig *rig, char c)
{
    assert_true(rig->n_trace + 1 < N_TRACE_MAX);
    rig->trace[rig->n_trace++] = c;
}

static int load(void *context, int micro_batch, struct err *err)
{
    struct rig *rig = context;
    float *x = run_data(rig->run, rig->x, micro_batch);

    trace(rig, (char)('0' + micro_batch));
    if (micro_batch == rig->fail_at)
        return err_set(err, ERR_DATA, "the data end at micro-batch %d", micro_batch);
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(micro_batch + 1);
    return 0;
}

static int gate(void *context, struct err *err)
{
    struct rig *rig = context;

    trace(rig, 'g');
    return rig->fail_gate ? err_set(err, ERR_FAILED, "the save failed") : 0;
}

static int run_rig(struct rig *rig, enum entry_kind entry, int first, struct err *err)
{
    struct run_hooks hooks = { .context = rig, .load = load, .gate = gate };

    return run_entry(rig->run, entry, first, &hooks, err);
}

static void must_run(struct rig *rig, enum entry_kind entry, int first)
{
    struct err err;

    if (run_rig(rig, entry, first, &err) < 0)
        fail_msg("%s", err.text);
}

static void check_all(struct rig *rig, int value, float expected)
{
    const float *data = run_data(rig->run, value, 0);

    for (int i = 0; i < COLS * COLS; i++)
        assert_true(data[i] == expected);
}

/* ---- tests ---- */

/* 48 (1 + 4), and the same in the next step: the first micro-batch starts over. */
static void a_step(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, NULL);
    for (int step = 0; step < 3; step++) {
        must_run(&rig, ENTRY_STEP, 0);
        check_all(&rig, rig.grad, 240);
        check_all(&rig, rig.total, 480);
    }
    assert_string_equal(rig.trace, "01g01g01g");
    rig_close(&rig);
}

/* Each op that ran has a time, in all of them no more than the step took; the others have none. */
static void times(void **state)
{
    struct rig rig;
    double sum = 0;

    (void)state;
    rig_open(&rig, 0, NULL);
    double begin = clock_seconds();
    must_run(&rig, ENTRY_STEP, 0);
    double took = clock_seconds() - begin;
    for (int f = 0; f < rig.program.n_functions; f++)
        for (int i = 0; i < rig.program.functions[f].n_ops; i++) {
            assert_true(run_op_seconds(rig.run, f, i) > 0);
            sum += run_op_seconds(rig.run, f, i);
        }
    assert_true(sum > 0);
    assert_true(sum <= took);
    run_clear_times(rig.run);
    for (int f = 0; f < rig.program.n_functions; f++)
        for (int i = 0; i < rig.program.functions[f].n_ops; i++)
            assert_true(run_op_seconds(rig.run, f, i) == 0);
    assert_true(run_wait_seconds(rig.run) == 0);
    rig_close(&rig);
}

/* Kinds of ops have times in one step of seven, from the second one on, and in no evaluation. */
static void times_of_kinds(void **state)
{
    struct rig rig;
    struct run_op_times t;

    (void)state;
    rig_open(&rig, 0, NULL);
    run_set_timed(rig.run, 0);
    for (int step = 1; step <= 16; step++) {
        double begin = clock_seconds(), sum = 0;
        bool is_timed = step % 7 == 2;

        rig.n_trace = 0;
        must_run(&rig, ENTRY_STEP, 0);
        double took = clock_seconds() - begin;
        must_run(&rig, ENTRY_EVALUATE, 1);
        t = run_take_op_times(rig.run);
        assert_int_equal(t.n_steps, is_timed);
        for (int kind = 0; kind < N_OP_KINDS; kind++) {
            assert_true((t.seconds[kind] > 0) ==
                        (is_timed && (kind == OP_ADD || kind == OP_LINEAR_DW)));
            sum += t.seconds[kind];
        }
        assert_true(sum <= took);
    }
    rig_close(&rig);
}

/* Where an entry is one micro-batch, its caller says what starts over. */
static void first_comes_from_the_caller(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, NULL);
    must_run(&rig, ENTRY_EVALUATE, 1);
    check_all(&rig, rig.grad, 48);
    must_run(&rig, ENTRY_EVALUATE, 0);
    check_all(&rig, rig.grad, 96);
    must_run(&rig, ENTRY_EVALUATE, 1);
    check_all(&rig, rig.grad, 48);
    rig_close(&rig);
}

/* The last micro-batch alone, 48 * 4. */
static void starting_over_always(void **state)
{
    struct rig rig;

    (void)state;
    rig_open_first(&rig, 0, NULL, FIRST_ALWAYS);
    must_run(&rig, ENTRY_STEP, 0);
    check_all(&rig, rig.grad, 192);
    rig_close(&rig);
}

static size_t slot_bytes_of(const struct rig *rig, int id)
{
    return rig->program.stashes[rig->program.values[id].stash].slot_bytes;
}

static void addresses(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, NULL);
    unsigned char *x = run_data(rig.run, rig.x, 0), *z = run_data(rig.run, rig.z, 0);
    assert_ptr_equal(run_data(rig.run, rig.x, 1), x + slot_bytes_of(&rig, rig.x));
    assert_ptr_equal(run_data(rig.run, rig.z, 1), z + slot_bytes_of(&rig, rig.z));
    assert_ptr_equal(run_data(rig.run, rig.grad, 1), run_data(rig.run, rig.grad, 0));
    assert_ptr_equal(run_data(rig.run, rig.view, 0),
                     (float *)run_data(rig.run, rig.grad, 0) + COLS);
    must_run(&rig, ENTRY_STEP, 0);
    /* Both slots hold their own micro-batch. */
    assert_true(*(float *)run_data(rig.run, rig.x, 0) == 1);
    assert_true(*(float *)run_data(rig.run, rig.x, 1) == 2);
    assert_true(*(float *)run_data(rig.run, rig.z, 0) == 3);
    assert_true(*(float *)run_data(rig.run, rig.z, 1) == 6);
    rig_close(&rig);
}

static void failing_load_ends_the_entry(void **state)
{
    struct rig rig;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    rig.fail_at = 1;
    assert_int_equal(run_rig(&rig, ENTRY_STEP, 0, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_string_equal(err.text, "the data end at micro-batch 1");
    assert_string_equal(rig.trace, "01");
    check_all(&rig, rig.grad, 0);
    rig_close(&rig);
}

/* Nothing behind the gate is touched. */
static void failing_gate_keeps_the_cells(void **state)
{
    struct rig rig;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    rig.fail_gate = 1;
    assert_int_equal(run_rig(&rig, ENTRY_STEP, 0, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    check_all(&rig, rig.grad, 240);
    check_all(&rig, rig.total, 0);
    rig_close(&rig);
}

static void hooks_may_be_missing(void **state)
{
    struct rig rig;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < ROWS * COLS; i++)
            ((float *)run_data(rig.run, rig.x, m))[i] = 1;
    assert_int_equal(run_entry(rig.run, ENTRY_STEP, 0, NULL, &err), 0);
    check_all(&rig, rig.grad, 96);
    rig_close(&rig);
}

static int is_poison(const void *data, size_t n_bytes)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n_bytes; i++)
        if (bytes[i] != 0xff)
            return 0;
    return 1;
}

/* Dead values are NaN, what lives is not, and the results are the same. */
static void poison(void **state)
{
    const size_t n_bytes = ROWS * COLS * sizeof(float);
    struct rig rig;

    (void)state;
    rig_open(&rig, 1, NULL);
    assert_true(is_poison(run_data(rig.run, rig.z, 0), n_bytes));
    assert_false(is_poison(run_data(rig.run, rig.grad, 0), n_bytes));
    for (int step = 0; step < 2; step++) {
        must_run(&rig, ENTRY_STEP, 0);
        check_all(&rig, rig.grad, 240);
        check_all(&rig, rig.total, 480);
        assert_true(is_poison(run_data(rig.run, rig.y, 0), n_bytes));
        assert_true(is_poison(run_data(rig.run, rig.w, 0), n_bytes));
        for (int m = 0; m < 2; m++) {
            assert_true(is_poison(run_data(rig.run, rig.z, m), n_bytes));
            assert_false(is_poison(run_data(rig.run, rig.x, m), n_bytes));
        }
    }
    rig_close(&rig);
}

static void progress_is_published(void **state)
{
    static struct progress_slot slot;
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, &slot);
    uint64_t begin = atomic_load(&slot.beat);
    assert_true(begin > 0); /* kernels are prepared: no hang */
    must_run(&rig, ENTRY_STEP, 0);
    assert_int_equal(atomic_load(&slot.beat) - begin, 2 * 2 + 2 * 2 + 1 + 2); /* and 2 loads */
    assert_int_equal(atomic_load(&slot.position), 2 * 2 + 2 * 2 + 1);
    assert_int_equal(atomic_load(&slot.micro_batch), -1);
    assert_int_equal(atomic_load(&slot.waits), 0);
    assert_string_equal(slot.text, "add layers.3");
    rig_close(&rig);
}

static void too_large_to_allocate(void **state)
{
    struct rig rig;
    struct run *run = NULL;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    struct run_options options = { .program = &rig.program, .kernels = rig.kernels };
    rig.program.segment_bytes[SEGMENT_GRADIENTS] = (size_t)1 << 50;
    assert_int_equal(run_create(&run, &options, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_null(run);
    rig.program.segment_bytes[SEGMENT_GRADIENTS] = 256;
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step),
        cmocka_unit_test(times),
        cmocka_unit_test(times_of_kinds),
        cmocka_unit_test(first_comes_from_the_caller),
        cmocka_unit_test(starting_over_always),
        cmocka_unit_test(addresses),
        cmocka_unit_test(failing_load_ends_the_entry),
        cmocka_unit_test(failing_gate_keeps_the_cells),
        cmocka_unit_test(hooks_may_be_missing),
        cmocka_unit_test(poison),
        cmocka_unit_test(progress_is_published),
        cmocka_unit_test(too_large_to_allocate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
