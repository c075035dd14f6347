/*
 * step_traces_test.c - traces of steps, written and found again: which are chosen, in which order
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "support/temporary.h"
#include "train/step_traces.h"

enum { N_RANKS = 70, N_MAX = 64 };

static void write_traces(const char *run, int64_t step)
{
    struct err err;

    for (int rank = 0; rank < N_RANKS; rank++) {
        struct run_record records[2] = { { .action = rank, .begin_ns = 5, .end_ns = 7 },
                                         { .action = 1, .op = 2, .stream = 3, .waited = 4 } };
        struct step_trace trace = { .step = step,
                                    .begin = { 1, -2, 3 },
                                    .end = { 4, INT64_MIN, 6 },
                                    .rank = rank,
                                    .world_size = N_RANKS,
                                    .n = 2,
                                    .records = records };

        if (step_trace_write(&trace, run, &err))
            fail_msg("%s", err.text);
    }
}

static struct step_traces read_traces(const char *run, const struct step_traces_choice *choice,
                                      struct arena *arena)
{
    struct step_traces traces;
    struct err err;

    if (step_traces_read(&traces, run, choice, arena, &err))
        fail_msg("%s", err.text);
    return traces;
}

static void chosen(void **state)
{
    const int64_t steps[] = { 8, 10 }, ranks[] = { 2, 64, 69 }, none[] = { 9 }, far[] = { 70 };
    struct step_traces_choice choice = { .n_ranks_max = N_MAX };
    struct arena arena = { 0 };
    struct step_traces traces;
    struct err err;
    char run[128];

    (void)state;
    assert_int_equal(temporary_folder(run, sizeof run), 0);
    assert_int_equal(step_traces_read(&traces, run, &choice, &arena, &err), -1);
    assert_non_null(strstr(err.text, "has no traced steps (hint: trace.steps: [10, 11]"));
    write_traces(run, 8);
    write_traces(run, 10);

    /* The last step, the first ranks by number and not by name. */
    traces = read_traces(run, &choice, &arena);
    assert_int_equal(traces.n, N_MAX);
    assert_int_equal(traces.n_left_out, N_RANKS - N_MAX);
    assert_int_equal(traces.world_size, N_RANKS);
    for (int i = 0; i < traces.n; i++) {
        const struct step_trace *t = &traces.items[i];

        assert_true(t->step == 10 && t->rank == i && t->n == 2);
        assert_true(t->begin.ns == -2 && t->end.ns == INT64_MIN && t->end.error == 6);
        assert_true(t->records[0].action == i && t->records[1].waited == 4);
    }
    choice = (struct step_traces_choice){ steps, ranks, 2, 3, N_MAX };
    traces = read_traces(run, &choice, &arena);
    assert_int_equal(traces.n, 6);
    assert_int_equal(traces.n_left_out, 0);
    for (int i = 0; i < 6; i++)
        assert_true(traces.items[i].step == steps[i / 3] && traces.items[i].rank == ranks[i % 3]);
    choice.steps = none;
    choice.n_steps = 1;
    assert_int_equal(step_traces_read(&traces, run, &choice, &arena, &err), -1);
    assert_non_null(strstr(err.text, "has no trace of step 9 (hint: trace.steps: [9]"));
    choice = (struct step_traces_choice){ steps, far, 2, 1, N_MAX };
    assert_int_equal(step_traces_read(&traces, run, &choice, &arena, &err), -1);
    assert_non_null(strstr(err.text, "has no trace of rank 70 at step 8"));
    arena_release(&arena);
    assert_int_equal(file_remove_tree(run, &err), 0);
}

static void lists(void **state)
{
    static const char *const wrong[] = { "", "a", "1-", "-1", "3-2", "1,,2", "1 2", "0-4" };
    struct arena arena = { 0 };
    struct err err;
    int64_t *list;

    (void)state;
    assert_int_equal(step_traces_parse("--ranks", "5,0-2,1", 5, &list, &arena, &err), 4);
    assert_true(list[0] == 0 && list[1] == 1 && list[2] == 2 && list[3] == 5);
    assert_int_equal(step_traces_parse("--step", "10", 1, &list, &arena, &err), 1);
    assert_int_equal(list[0], 10);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(step_traces_parse("--ranks", wrong[i], 4, &list, &arena, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_non_null(strstr(err.text, "--ranks is '"));
    }
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen),
        cmocka_unit_test(lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
