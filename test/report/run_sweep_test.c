/*
 * run_sweep_test.c - states and values of trials, their order, torn lines
 */
#include "report_fixture.h"

#include "report/run_sweep.h"

static const char record[] =
    "{\"event\":\"sweep\",\"time\":1,\"version\":1,\"metric\":\"eval.loss\",\"goal\":\"minimize\","
    "\"rungs\":[4,8],\"trials\":5}\n"
    "{\"event\":\"trial\",\"trial\":0,\"settings\":{\"optimizer.lr\":0.001}}\n"
    "{\"event\":\"trial\",\"trial\":1,\"settings\":{\"optimizer.lr\":0.01}}\n"
    "{\"event\":\"trial\",\"trial\":2,\"settings\":{\"optimizer.lr\":1}}\n"
    "{\"event\":\"trial\",\"trial\":3,\"settings\":{\"optimizer.lr\":0.1}}\n"
    "{\"event\":\"trial\",\"trial\":4,\"settings\":{\"optimizer.lr\":0.2}}\n"
    "{\"event\":\"start\",\"trial\":0,\"rung\":0}\n{\"event\":\"start\",\"trial\":1,\"rung\":0}\n"
    "{\"event\":\"value\",\"trial\":0,\"rung\":0,\"step\":4,\"value\":3.5}\n"
    "{\"event\":\"value\",\"trial\":1,\"rung\":0,\"step\":4,\"value\":3}\n"
    "{\"event\":\"start\",\"trial\":2,\"rung\":0}\n"
    "{\"event\":\"fail\",\"trial\":2,\"rung\":0,\"text\":\"diverged\"}\n"
    "{\"event\":\"stop\",\"trial\":0,\"rung\":0}\n{\"event\":\"go_on\",\"trial\":1,\"rung\":0}\n"
    "{\"event\":\"start\",\"trial\":1,\"rung\":1}\n"
    "{\"event\":\"value\",\"trial\":1,\"rung\":1,\"step\":8,\"value\":3.75}\n"
    "{\"event\":\"start\",\"trial\":3,\"rung\":0}\n{\"event\":\"of the future\",\"trial\":1}\n";

static struct run_sweep read_sweep(const char *folder, const char *text)
{
    struct run_sweep sweep;
    struct err err;

    assert_ok(file_write(fixture_path(folder, "sweep.jsonl"), text, strlen(text), &err), &err);
    assert_true(run_sweep_is(folder));
    assert_ok(run_sweep_read(&sweep, folder, &fixture_arena, &err), &err);
    return sweep;
}

static void test_states(void **state)
{
    static const char *const states[] = { "stopped", "finished", "failed", "runs", "waits" };
    static const int by_rank[] = { 1, 0, 2, 3, 4 };
    struct run_sweep sweep = read_sweep(*state, record);
    int *order;

    assert_int_equal(sweep.n_trials, 5);
    assert_string_equal(sweep.metric, "eval.loss");
    for (int i = 0; i < 5; i++)
        assert_string_equal(sweep.trials[i].state, states[i]);
    assert_string_equal(sweep.trials[2].text, "diverged");
    assert_string_equal(sweep.trials[1].settings, "{\"optimizer.lr\":0.01}");
    assert_true(same_double(sweep.trials[1].value, 3.75));
    assert_int_equal(sweep.trials[1].step, 8);
    assert_int_equal(sweep.best, 1);
    assert_false(sweep.is_over);
    run_sweep_rank(&sweep, &order, &fixture_arena);
    for (int i = 0; i < 5; i++)
        assert_int_equal(order[i], by_rank[i]);

    cJSON *json = run_sweep_json(&sweep);
    char *text = cJSON_PrintUnformatted(json);
    assert_non_null(strstr(text, "\"best\":1,"));
    assert_non_null(strstr(text, "{\"trial\":2,\"state\":\"failed\",\"text\":\"diverged\","
                                 "\"settings\":{\"optimizer.lr\":1}}"));
    free(text);
    cJSON_Delete(json);
    assert_string_equal(run_sweep_folder("a", 7, &fixture_arena), "a/trial-007");
}

/* Interrupted, gone on with, to its end; a larger value is better. */
static void test_more(void **state)
{
    char *text =
        arena_printf(&fixture_arena, "%s%s", record,
                     "{\"event\":\"resume\"}\n{\"event\":\"more\",\"trials\":6}\n"
                     "{\"event\":\"value\",\"trial\":3,\"rung\":1,\"step\":8,\"value\":4}\n"
                     "{\"event\":\"end\",\"best\":3}\n{\"event\":\"start\",\"trial\":4,\"ru");
    struct run_sweep sweep = read_sweep(*state, text);

    assert_true(sweep.is_over);
    assert_string_equal(sweep.trials[4].state, "waits");
    assert_int_equal(sweep.best, 1);
    memcpy(strstr(text, "minimize"), "maximize", 8);
    sweep = read_sweep(*state, text);
    assert_int_equal(sweep.best, 3);
}

static void test_mistakes(void **state)
{
    static const char odd[] = "[]\n{\"event\":\"trial\",\"trial\":1e30}\nx\n";
    struct run_sweep sweep;
    struct err err;

    assert_false(run_sweep_is(*state));
    assert_int_equal(run_sweep_read(&sweep, *state, &fixture_arena, &err), -1);
    assert_ok(file_write(fixture_path(*state, "sweep.jsonl"), odd, strlen(odd), &err), &err);
    assert_int_equal(run_sweep_read(&sweep, *state, &fixture_arena, &err), -1);
    assert_non_null(strstr(err.text, "not the record of a sweep"));
    sweep = read_sweep(*state, "{\"event\":\"sweep\"}\n{\"event\":\"trial\",\"trial\":1e30}\n"
                               "{\"event\":\"start\",\"trial\":-1}\n{\"event\":\"end\"}\n");
    assert_int_equal(sweep.n_trials, 0);
    assert_int_equal(sweep.best, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_states, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_more, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_mistakes, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
