/*
 * scores_test.c - means, standard errors, and what several parts make together
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <string.h>

#include "eval/scores.h"

static const char description[] = "parts:\n  one: [a, b]\n  other: [c]\n"
                                  "test:\n  - files: none\n"
                                  "styles:\n  lmeval:\n    prompt: p\n    target: t\n"
                                  "    choices: [x, y]\n    metrics: [acc]\n";

static void expect(const struct score_line *line, const char *name, int64_t n, double value,
                   double error)
{
    assert_string_equal(line->name, name);
    assert_int_equal(line->n, n);
    assert_true(fabs(line->values[0] - value) < 1e-6);
    assert_true(isnan(error) ? isnan(line->errors[0]) : fabs(line->errors[0] - error) < 1e-6);
}

/* lm_eval.api.metrics: mean_stderr, aggregate_subtask_metrics and pooled_sample_stderr of these. */
static void several_parts(void **state)
{
    struct item asked[] = { { .part = 0 }, { .part = 0 }, { .part = 0 }, { .part = 0 },
                            { .part = 1 }, { .part = 1 }, { .part = 2 } };
    struct item_result results[] = { { .values = { 1 } }, { .values = { 0 } }, { .values = { 0 } },
                                     { .values = { 1 } }, { .values = { 1 } }, { .values = { 1 } },
                                     { .values = { 0 } } };
    struct items items = { .items = asked, .n = 7 };
    struct arena arena = { 0 };
    struct scores scores;
    struct task task;
    struct err err;

    (void)state;
    if (task_parse(&task, "sums", "lmeval", description, "sums.yaml", &err) < 0)
        fail_msg("%s", err.text);
    scores_compute(&scores, &task, &items, results, &arena);
    assert_int_equal(scores.n, 6);
    expect(&scores.lines[0], "sums", 7, 4.0 / 7, 0.18898224);
    expect(&scores.lines[1], "one", 6, 4.0 / 6, 0.20412415);
    expect(&scores.lines[2], "a", 4, 0.5, 0.28867513);
    expect(&scores.lines[3], "b", 2, 1, 0);
    expect(&scores.lines[4], "other", 1, 0, NAN);
    expect(&scores.lines[5], "c", 1, 0, NAN);
    task_close(&task);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(several_parts) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
