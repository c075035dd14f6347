/*
 * spaces_test.c - values in host memory: where they are placed, and what verify refuses of them
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "program/passes.h"
#include "support/golden_text.h"
#include "support/offload.h"

static const struct offload_shape shape = {
    .n_layers = 8, .tp_size = 1, .n_micro_batches = 6, .rows = 4, .cols = 16
};
enum { H_BYTES = 4 * 16 * 4 };

static void refused(const struct program *p, const char *what)
{
    struct err err;

    assert_int_equal(verify(p, &err), -1);
    if (!strstr(err.text, what))
        fail_msg("\"%s\" is not \"%s\"", err.text, what);
}

static void accepted(const struct program *p)
{
    struct err err;

    if (verify(p, &err) < 0)
        fail_msg("%s", err.text);
}

/*
 * On the device are five values of layers at a time, whatever the number of layers: those on their
 * way, what is computed and what from. On the host are all, of the three micro-batches that are
 * under way.
 */
static void test_memory_of_each_space(void **state)
{
    struct offload o;

    (void)state;
    offload_build(&o, &shape);
    place(&o.program);
    accepted(&o.program);
    assert_true(o.program.segment_bytes[SEGMENT_SCRATCH] <= 5 * H_BYTES);
    assert_int_equal(o.program.segment_bytes[SEGMENT_HOST_STASH], 3 * shape.n_layers * H_BYTES);
    assert_int_equal(o.program.segment_bytes[SEGMENT_HOST_SCRATCH], 0);
    for (int l = 0; l < shape.n_layers; l++) {
        assert_int_equal(o.program.values[o.h[l]].segment, SEGMENT_SCRATCH);
        assert_int_equal(o.program.values[o.kept[l]].segment, SEGMENT_HOST_STASH);
    }
    program_release(&o.program);
}

/* In a file each begins where a disk transfers directly. */
static void test_memory_of_a_file(void **state)
{
    struct offload_shape in_file = shape;
    struct offload o;

    (void)state;
    in_file.in_file = true;
    offload_build(&o, &in_file);
    place(&o.program);
    accepted(&o.program);
    assert_int_equal(o.program.segment_bytes[SEGMENT_FILE_STASH], 3 * shape.n_layers * 4096);
    assert_int_equal(o.program.segment_bytes[SEGMENT_HOST_STASH], 0);
    assert_int_equal(program_space_bytes(&o.program, SPACE_FILE), 3 * shape.n_layers * 4096);
    assert_int_equal(program_space_bytes(&o.program, SPACE_DEVICE),
                     program_memory_bytes(&o.program));
    for (int l = 0; l < shape.n_layers; l++) {
        assert_int_equal(o.program.values[o.kept[l]].segment, SEGMENT_FILE_STASH);
        assert_int_equal(o.program.values[o.kept[l]].place_bytes % 4096, 0);
    }
    o.program.values[o.kept[1]].segment = SEGMENT_HOST_STASH;
    refused(&o.program, "lies in segment host stash, wanted memory of the file");
    program_release(&o.program);
}

static void test_text(void **state)
{
    struct offload o;
    struct str text = { 0 };
    struct offload_shape two_ranks = shape;

    (void)state;
    two_ranks.n_layers = 4;
    two_ranks.tp_size = 2;
    offload_build(&o, &two_ranks);
    place(&o.program);
    accepted(&o.program);
    print_program(&o.program, PRINT_SEGMENTS, &text);
    golden_text_check("test/program/golden/offload.txt", str_text(&text));
    str_release(&text);
    program_release(&o.program);
}

static void test_kernels_reach_the_device_alone(void **state)
{
    struct offload o;

    (void)state;
    offload_build(&o, &shape);
    place(&o.program);
    struct op *last = &o.program.functions[o.backward].ops[0];
    while (last->kind != OP_ADD)
        last++;
    int back = last->in[ADD_B];
    last->in[ADD_B] = o.kept[0];
    refused(&o.program, "add (layer 6): %13 lies in memory of the host, wanted of the device");
    last->in[ADD_B] = back;
    accepted(&o.program);
    o.program.values[o.kept[2]].space = SPACE_DEVICE;
    refused(&o.program, "lies in memory of the device, wanted of the host");
    program_release(&o.program);
}

static void test_places_lie_in_their_space(void **state)
{
    struct offload o;

    (void)state;
    offload_build(&o, &shape);
    place(&o.program);
    struct value *kept = &o.program.values[o.kept[1]];
    kept->segment = SEGMENT_STASH;
    refused(&o.program, "lies in segment stash, wanted memory of the host");
    kept->segment = SEGMENT_HOST_STASH;
    accepted(&o.program);
    size_t at = kept->place_bytes;
    kept->place_bytes = o.program.values[o.kept[0]].place_bytes + 64;
    refused(&o.program, "overlap in memory");
    kept->place_bytes = at;
    struct stash *stash = &o.program.stashes[kept->stash];
    assert_int_equal(stash->n_slots, 3);
    stash->n_slots = 2;
    refused(&o.program, "its slot was reused too early");
    stash->n_slots = 4;
    refused(&o.program, "the last stash ends outside segment host stash");
    program_release(&o.program);
}

/* What comes back in the same function shares memory with others of its space, by time. */
static void build_round_trips(struct program *p, int n, int *hosted)
{
    struct mesh mesh = mesh_data_parallel(1);

    program_init(p, &mesh);
    int function = program_function(p, "forward 0", 0);
    int x = program_cell(p, ROLE_SCALAR, "x", 4, 16, DTYPE_F32);
    for (int i = 0; i < n; i++) {
        int y = program_value(p, 4, 16, DTYPE_F32);

        hosted[i] = program_host_value(p, 4, 16, DTYPE_F32);
        program_emit(
            p, function,
            &(struct op){
                .kind = OP_TO_HOST, .in = { x }, .out = { hosted[i] }, .stream = STREAM_COPY_OUT });
        program_emit(p, function,
                     &(struct op){ .kind = OP_TO_DEVICE,
                                   .in = { hosted[i] },
                                   .out = { y },
                                   .stream = STREAM_COPY_IN });
        x = program_value(p, 4, 16, DTYPE_F32);
        program_emit(p, function, &(struct op){ .kind = OP_ADD, .in = { y, y }, .out = { x } });
    }
    struct entry *step = &p->entries[ENTRY_STEP];
    step->actions = arena_array(&p->arena, struct action, 1);
    step->actions[step->n_actions++] = (struct action){ .kind = ACTION_RUN, .first = 1 };
}

static void test_host_memory_is_shared_by_time(void **state)
{
    struct program p;
    int hosted[5];

    (void)state;
    build_round_trips(&p, 5, hosted);
    place(&p);
    accepted(&p);
    assert_int_equal(p.segment_bytes[SEGMENT_HOST_SCRATCH], H_BYTES);
    p.segment_bytes[SEGMENT_HOST_SCRATCH] *= 3;
    /* Whose lives meet must lie apart; they do not meet here. */
    p.values[hosted[1]].place_bytes = 64;
    accepted(&p);
    /* The one on the device may lie at the same offset. */
    p.values[hosted[1]].place_bytes = 0;
    accepted(&p);
    program_release(&p);
}

static void test_what_is_on_its_way_is_not_written_over(void **state)
{
    struct program p;
    int hosted[2];

    (void)state;
    build_round_trips(&p, 2, hosted);
    struct function *f = &p.functions[0];
    /* The first goes out, and nothing waits for it: the second goes out meanwhile. */
    f->ops[1] = (struct op){ .kind = OP_TO_HOST,
                             .in = { f->ops[0].in[0] },
                             .out = { hosted[1] },
                             .stream = STREAM_COPY_OUT };
    f->ops[2] = (struct op){ .kind = OP_TO_DEVICE,
                             .in = { hosted[1] },
                             .out = { f->ops[1].out[0] },
                             .stream = STREAM_COPY_IN };
    f->ops[2].out[0] = program_value(&p, 4, 16, DTYPE_F32);
    f->ops[3] = (struct op){ .kind = OP_TO_DEVICE,
                             .in = { hosted[0] },
                             .out = { program_value(&p, 4, 16, DTYPE_F32) },
                             .stream = STREAM_COPY_IN };
    f->n_ops = 4;
    place(&p);
    accepted(&p);
    assert_int_equal(p.segment_bytes[SEGMENT_HOST_SCRATCH], 2 * H_BYTES);
    p.values[hosted[1]].place_bytes = p.values[hosted[0]].place_bytes;
    refused(&p, "overlap in memory");
    program_release(&p);
}

/* Copies meet nobody: ranks that copy are not in each other's way. */
static void test_ranks(void **state)
{
    struct offload_shape four = shape;
    const struct program *list[OFFLOAD_TP_MAX];
    struct offload o;
    struct err err;

    (void)state;
    four.tp_size = OFFLOAD_TP_MAX;
    offload_build(&o, &four);
    place(&o.program);
    for (int i = 0; i < OFFLOAD_TP_MAX; i++)
        list[i] = &o.program;
    if (verify_ranks(list, &o.program.mesh, &err) < 0)
        fail_msg("%s", err.text);
    program_release(&o.program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_each_space),
        cmocka_unit_test(test_memory_of_a_file),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_kernels_reach_the_device_alone),
        cmocka_unit_test(test_places_lie_in_their_space),
        cmocka_unit_test(test_host_memory_is_shared_by_time),
        cmocka_unit_test(test_what_is_on_its_way_is_not_written_over),
        cmocka_unit_test(test_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
