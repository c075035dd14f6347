/*
 * absolute_test.c - a job's relative paths, from another folder
 */
#include "config_fixture.h"

static void test_paths(void **state)
{
    struct arena arena = { 0 };
    struct job job;

    (void)state;
    must_read(
        &job,
        "{model: llama-tiny, kind: finetune, data: {train: [a, {path: ./b/c, weight: 2}, /d], "
        "tokenizer: ../t, template: x.jinja}, train: {steps: 1, init: .//m}, output: ., eval: "
        "{data: e/f}}",
        &arena);
    const struct job before = job;
    job_make_absolute(&job, "/here", &arena);
    assert_string_equal(job.data.train[0].path, "/here/a");
    assert_string_equal(job.data.train[1].path, "/here/b/c");
    assert_true(job.data.train[1].weight > 1.5);
    assert_string_equal(job.data.train[2].path, "/d");
    assert_string_equal(job.data.tokenizer, "/here/../t");
    assert_string_equal(job.data.chat_template, "/here/x.jinja");
    assert_string_equal(job.train.init, "/here/m");
    assert_string_equal(job.eval.data, "/here/e/f");
    assert_string_equal(job.output, "/here");
    /* A copy of the struct keeps its own. */
    assert_string_equal(before.data.train[0].path, "a");
    arena_release(&arena);
}

/* A template by its name is no path, and what is not said stays so. */
static void test_what_is_no_path(void **state)
{
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct job job;

    (void)state;
    must_read(
        &job,
        "{model: llama-tiny, kind: finetune, data: {train: a, template: chatml}, train: {steps: "
        "1}}",
        &arena);
    job_make_absolute(&job, "/here", &arena);
    assert_string_equal(job.data.chat_template, "chatml");
    assert_null(job.data.tokenizer);
    assert_null(job.train.init);
    assert_null(job.eval.data);
    job_print_absolute(&job, &out);
    must_read(&job, str_text(&out), &arena);
    assert_string_equal(job.data.train[0].path, "/here/a");
    str_release(&out);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_what_is_no_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
