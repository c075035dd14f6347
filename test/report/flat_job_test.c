/*
 * flat_job_test.c - jobs as flat keys, what differs, and the scores beside a run
 */
#include "report_fixture.h"

#include <math.h>
#include <sys/stat.h>

#include "report/flat_job.h"
#include "report/run_scores.h"

static struct flat_job parse(const char *text)
{
    struct flat_job job;
    struct err err;

    assert_ok(flat_job_parse(&job, text, strlen(text), "job.yaml", &fixture_arena, &err), &err);
    return job;
}

static void test_flat(void **state)
{
    struct flat_job job = parse("model:\n  name: a\n  rope: {type: none, factor: 2.0}\n"
                                "trace:\n  steps: [1, {a: b, c: []}]\n  ranks: all\n"
                                "empty: {}\nnothing:\nlast: \"x: y\"\n");
    static const char *const flat[][2] = {
        { "model.name", "a" },
        { "model.rope.type", "none" },
        { "model.rope.factor", "2.0" },
        { "trace.steps", "[1, {a: b, c: []}]" },
        { "trace.ranks", "all" },
        { "empty", "{}" },
        { "nothing", "" },
        { "last", "x: y" },
    };

    (void)state;
    assert_int_equal(job.n, sizeof flat / sizeof *flat);
    for (int i = 0; i < job.n; i++) {
        assert_string_equal(job.values[i].key, flat[i][0]);
        assert_string_equal(job.values[i].text, flat[i][1]);
    }
    assert_string_equal(flat_job_find(&job, "trace.ranks"), "all");
    assert_null(flat_job_find(&job, "trace"));
}

static void test_differences(void **state)
{
    struct flat_job jobs[] = { parse("a: 1\nb: {c: 2, d: 3}\ne: 4\n"),
                               parse("a: 1\nb: {c: 5}\ne: 4\nf: 6\n"),
                               parse("f: 6\nb: {c: 2, d: 3}\na: 1\ne: 4\n") };
    struct flat_job_difference *differences;

    (void)state;
    assert_int_equal(flat_job_compare(&differences, jobs, 1, &fixture_arena), 0);
    assert_int_equal(flat_job_compare(&differences, jobs, 3, &fixture_arena), 3);
    assert_string_equal(differences[0].key, "b.c");
    assert_string_equal(differences[0].values[1], "5");
    assert_string_equal(differences[0].values[2], "2");
    assert_string_equal(differences[1].key, "b.d");
    assert_null(differences[1].values[1]);
    assert_string_equal(differences[2].key, "f");
    assert_null(differences[2].values[0]);
}

static void test_mistakes(void **state)
{
    struct flat_job job;
    struct err err;

    (void)state;
    assert_int_equal(flat_job_parse(&job, "[1]", 3, "job.yaml", &fixture_arena, &err), -1);
    assert_string_equal(err.text, "job.yaml: not a job: a map of keys was expected");
    assert_int_equal(flat_job_parse(&job, "a: [", 4, "job.yaml", &fixture_arena, &err), -1);
    assert_int_equal(flat_job_read(&job, "/nonexistent/job.yaml", &fixture_arena, &err), -1);
}

static void put(const char *path, const char *text)
{
    struct err err;

    assert_ok(file_write(path, text, strlen(text), &err), &err);
}

static void test_scores(void **state)
{
    static const char whole[] =
        "{\"model\":\"runs/a\",\"tasks\":[\n{\"task\":\"boolq\",\"style\":\"lmeval\",\"shots\":0,"
        "\"seconds\":1.5,\"scores\":{\"items\":20,\"acc\":0.75,\"acc_stderr\":0.0968,"
        "\"f1\":0.5,\"f1_stderr\":null},\"categories\":{},\"subjects\":{},"
        "\"samples\":[{\"answer\":\"{\\\"acc\\\":1\"}]},\n"
        "{\"task\":\"humaneval\",\"style\":\"lmeval\",\"shots\":null,"
        "\"scores\":{\"items\":3,\"pass@1\":0,\"pass@1_stderr\":null}}]}\n";
    struct run_scores scores;
    struct err err;

    assert_ok(file_make_folder(fixture_path(*state, "eval"), &err), &err);
    put(fixture_path(*state, "b.json"), whole);
    put(fixture_path(*state, "a.json"), "{\"other\":1}");
    put(fixture_path(*state, "half.json"), arena_strndup(&fixture_arena, whole, 200));
    put(fixture_path(*state, "eval/more.json"),
        "{\"model\":\"m\",\"tasks\":[{\"task\":\"mmlu\",\"scores\":{\"items\":1,\"acc\":0.25}}]}");
    run_scores_read(&scores, *state, &fixture_arena);
    assert_int_equal(scores.n, 4);
    assert_string_equal(scores.items[0].file, "b.json");
    assert_string_equal(scores.items[0].model, "runs/a");
    assert_string_equal(scores.items[0].metric, "acc");
    assert_true(same_double(scores.items[0].value, 0.75));
    assert_true(same_double(scores.items[0].error, 0.0968));
    assert_true(same_double(scores.items[0].n_items, 20));
    assert_int_equal(scores.items[0].n_shots, 0);
    assert_string_equal(scores.items[1].metric, "f1");
    assert_true(isnan(scores.items[1].error));
    assert_string_equal(scores.items[2].task, "humaneval");
    assert_int_equal(scores.items[2].n_shots, -1);
    assert_string_equal(scores.items[3].task, "mmlu");
    assert_string_equal(scores.items[3].style, "");

    run_scores_read(&scores, "/nonexistent", &fixture_arena);
    assert_int_equal(scores.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_flat, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_differences, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_mistakes, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_scores, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
