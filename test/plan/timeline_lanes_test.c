/*
 * timeline_lanes_test.c - joined lanes keep what is long, where it is; kinds add up
 */
#include "support/folder_fixture.h"

#include <math.h>

#include "base/num.h"
#include "layout/axes.h"
#include "plan/timeline_lanes.h"

enum { N_OPS = 3 };

/* One function of three ops, run by one action. */
static struct op ops[N_OPS] = { { .kind = OP_LINEAR, .layer = 0 },
                                { .kind = OP_ATTENTION, .layer = 1 },
                                { .kind = OP_LINEAR, .layer = 2 } };
static struct function function = { .name = "forward 0", .ops = ops, .n_ops = N_OPS };
static struct action action = { .function = 0 };

static void make_program(struct program *program)
{
    *program = (struct program){ .functions = &function, .n_functions = 1 };
    program->entries[ENTRY_STEP] = (struct entry){ .actions = &action, .n_actions = 1 };
}

static struct timeline_span span_of(int op, enum stream stream, int64_t begin, int64_t ns,
                                    enum time_class class)
{
    return (struct timeline_span){ .op = op,
                                   .stream = stream,
                                   .begin = begin,
                                   .end = begin + ns,
                                   .class = class };
}

static struct mesh one_rank(void)
{
    struct mesh mesh = { .size = { 0 } };

    for (int axis = 0; axis < N_AXES; axis++)
        mesh.size[axis] = 1;
    return mesh;
}

/* A thousand short products with a long wait in their middle, and a transfer beside. */
static int fill(struct timeline_span *spans, int64_t shift)
{
    int n = 0;
    int64_t at = shift;

    for (int i = 0; i < 1000; i++, at += 12) {
        if (i == 500) {
            spans[n++] = span_of(-1, STREAM_COMPUTE, at, 20000, TIME_STAGES);
            spans[n++] = span_of(1, STREAM_F_TO_NEXT, at + 100, 5000, TIME_TRANSFERS);
            at += 20000;
        }
        spans[n++] =
            span_of(i % 3, STREAM_COMPUTE, at, 10, i % 3 == 1 ? TIME_ATTENTION : TIME_PRODUCTS);
    }
    return n;
}

static void test_lanes(void **state)
{
    static const int most[] = { 5000, 100, 8, 1 };
    struct timeline_span spans[2][1100];
    struct program program;
    struct mesh mesh = one_rank();
    struct timeline_rank ranks[2];

    (void)state;
    make_program(&program);
    for (int i = 0; i < 2; i++)
        ranks[i] = (struct timeline_rank){ .rank = 0,
                                           .step = 10,
                                           .shift = i ? 77 : 0,
                                           .program = &program,
                                           .spans = spans[i],
                                           .n = fill(spans[i], 1000000 * i),
                                           .is_measured = i };
    const struct timeline timeline = { .mesh = &mesh, .ranks = ranks, .n = 2 };
    for (int m = 0; m < 4; m++) {
        struct timeline_lanes lanes;
        int n = 0, n_spans = 0;

        timeline_lanes_find(&lanes, &timeline, most[m], &fixture_arena);
        assert_int_equal(lanes.n, 4);
        assert_true(m ? lanes.joined_ns > 0 : lanes.joined_ns == 0);
        for (int i = 0; i < 4; i++) {
            const struct timeline_lane *lane = &lanes.items[i];

            assert_int_equal(lane->stream, i % 2 ? STREAM_F_TO_NEXT : STREAM_COMPUTE);
            assert_int_equal(lane->is_measured, i / 2);
            assert_int_equal(lane->slices[0].begin, i % 2 ? 6100 : 0);
            assert_int_equal(lane->slices[lane->n - 1].end, i % 2 ? 11100 : 31998);
            for (int k = 0; k < lane->n; k++) {
                n_spans += lane->slices[k].n_spans;
                assert_true(!k || lane->slices[k].begin >= lane->slices[k - 1].end);
            }
            n += lane->n;
        }
        assert_int_equal(n_spans, 2 * 1002);
        assert_true(n <= max_int(most[m], 4));
    }
}

/* What is long is a slice of its own, of its class, from its begin to its end. */
static void test_long(void **state)
{
    struct timeline_span spans[1100];
    struct program program;
    struct mesh mesh = one_rank();
    struct timeline_lanes lanes;

    (void)state;
    make_program(&program);
    const struct timeline_rank rank = { .program = &program, .spans = spans, .n = fill(spans, 0) };
    timeline_lanes_find(&lanes, &(struct timeline){ .mesh = &mesh, .ranks = &rank, .n = 1 }, 4,
                        &fixture_arena);
    const struct timeline_lane *lane = &lanes.items[0];
    assert_int_equal(lane->n, 3);
    assert_int_equal(lane->slices[1].begin, 6000);
    assert_int_equal(lane->slices[1].end, 26000);
    assert_int_equal(lane->slices[1].class, TIME_STAGES);
    assert_int_equal(lane->slices[1].kind, -1);
    assert_int_equal(lane->slices[0].kind, OP_LINEAR);
    assert_int_equal(lane->slices[0].n_spans, 500);
}

static void test_kinds(void **state)
{
    struct timeline_span spans[1100];
    struct program program;
    struct mesh mesh = one_rank();
    struct timeline_kind *kinds;

    (void)state;
    make_program(&program);
    const struct timeline_rank ranks[2] = {
        { .program = &program, .spans = spans, .n = fill(spans, 0), .is_measured = true },
        { .program = &program, .spans = spans, .n = 100, .is_measured = true },
    };
    const struct timeline timeline = { .mesh = &mesh, .ranks = ranks, .n = 2 };
    assert_int_equal(timeline_kinds_find(&kinds, &timeline, &fixture_arena), 2);
    assert_int_equal(kinds[0].kind, OP_LINEAR);
    assert_true(kinds[0].measured_ns == (10 * 667 + 10 * 67) / 2.0);
    assert_true(kinds[0].predicted_ns == -1);
    assert_int_equal(kinds[1].kind, OP_ATTENTION);
    assert_true(kinds[1].measured_ns == (10 * 333 + 10 * 33) / 2.0);
    const struct timeline none = { .mesh = &mesh };
    assert_int_equal(timeline_kinds_find(&kinds, &none, &fixture_arena), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lanes, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_long, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_kinds, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
