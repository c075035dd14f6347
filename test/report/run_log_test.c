/*
 * run_log_test.c - what metrics.h writes is read back: steps, sets, events, experts; and as JSON
 */
#include "report_fixture.h"

#include <math.h>

#include "report/metrics.h"
#include "report/run_json.h"
#include "report/run_log.h"

static void write_lines(const char *folder, const char *text)
{
    struct err err;

    assert_ok(file_write(fixture_path(folder, "metrics.jsonl"), text, strlen(text), &err), &err);
}

static struct run_log read_log(const char *folder)
{
    struct run_log log;
    struct err err;

    assert_ok(run_log_read(&log, folder, &fixture_arena, &err), &err);
    return log;
}

/* As a run writes them. */
static void test_written(void **state)
{
    static const double stats[] = { 1.02, 0.9, 1.1, 1.5, 0.25, 1.75 };
    static const int layers[] = { 1, 3 };
    const struct metrics_exposed exposed = {
        .n = 2,
        .kinds = (struct metrics_exposed_kind[]){ { "all_gather ep", 0.25 },
                                                  { "reduce_scatter dp", 0.5 } },
        .most_rank = 3,
        .most_seconds = 0.875,
    };
    struct metrics_step step = {
        .grad_norm = 0.5,
        .lr = 1e-3,
        .tokens_per_s = 1000,
        .mfu = 0.25,
        .balance = 1.5,
        .exposed = &exposed,
        .experts = { .n_layers = 2, .n_experts = 2, .layers = layers, .stats = stats },
    };
    struct metrics *metrics;
    struct err err;

    assert_ok(metrics_open(&metrics, *state, 1, &err), &err);
    assert_ok(
        metrics_event(metrics, 0, "started", "start 1 of the run: 8 ranks, the first on a", &err),
        &err);
    for (int i = 1; i <= 10; i++) {
        step.step = i;
        step.loss = i == 7 ? NAN : 0.1 * i;
        step.tokens = 100 * i;
        assert_ok(metrics_step(metrics, &step, &err), &err);
    }
    assert_ok(metrics_eval(metrics,
                           &(struct metrics_evaluation){ .step = 10, .loss = 2.5, .tokens = 999 },
                           &err),
              &err);
    assert_ok(metrics_event(metrics, 10, "spike", "a \"spike\" </script>", &err), &err);
    metrics_close(metrics);

    struct run_log log = read_log(*state);
    const double *loss = run_table_find(&log.steps, "loss");
    assert_int_equal(log.steps.n_rows, 10);
    for (int i = 0; i < 10; i++)
        assert_true(i == 6 ? isnan(loss[i]) : loss[i] == 0.1 * (i + 1));
    assert_true(same_double(run_table_last(&log.steps, "tokens"), 1000));
    assert_true(near_double(run_table_last(&log.steps, "exposed_s"), 0.75, 1e-9));
    assert_true(near_double(run_table_last(&log.steps, "exposed_max_s"), 0.875, 1e-9));
    assert_null(run_table_find(&log.steps, "loss_hex"));
    assert_int_equal(log.n_exposed, 2);
    assert_string_equal(log.exposed[1].kind, "reduce_scatter dp");
    assert_true(near_double(log.exposed[1].seconds / log.exposed[1].n_steps, 0.5, 1e-9));
    assert_int_equal(log.n_experts, 2);
    assert_int_equal(log.experts[1].layer, 3);
    assert_int_equal(log.experts[1].n_experts, 2);
    assert_true(same_double(log.experts[1].load[1], 1.75));
    assert_int_equal(log.n_evaluations, 1);
    assert_true(same_double(run_table_last(&log.evaluations[0], "eval_loss"), 2.5));
    assert_int_equal(log.n_events, 2);
    assert_int_equal(log.n_ranks, 8);
    assert_int_equal(log.n_starts, 1);
    assert_true(log.events[1].time > 1e9);
    assert_string_equal(log.events[1].text, "a \"spike\" </script>");
}

/* What others may write: several sets, fields of the future, lines of other kinds, torn ones. */
static void test_read(void **state)
{
    write_lines(
        *state,
        "{\"step\":1,\"loss\":3,\"loss_mean\":3.5,\"new\":7,\"name\":\"x\",\"list\":[1]}\n"
        "{\"step\":2,\"eval_set\":\"kjv\",\"eval_loss\":2,\"elapsed_s\":9}\n"
        "{\"step\":2,\"eval_set\":\"code\",\"eval_loss\":4}\n"
        "not JSON\n[1]\n{\"loss\":1}\n"
        "{\"step\":2,\"other\":1}\n"
        "{\"step\":3,\"ops_s\":{\"linear\":4,\"rope\":1,\"x\":null},\"rank_steps\":3}\n"
        "{\"step\":4,\"ops_s\":{\"linear\":8},\"rank_steps\":1}\n"
        "{\"step\":4,\"ops_s\":{\"linear\":8},\"rank_steps\":0}\n{\"step\":4,\"ops_s\":7}\n"
        "{\"step\":4,\"eval_set\":\"kjv\",\"eval_loss\":1.5}\n"
        "{\"step\":4,\"event\":\"started\",\"text\":\"start 2 of the run: 1 rank, x\"}\n"
        "{\"step\":4,\"event\":\"paused\",\"text\":\"saved: stopped\"}\n"
        "{\"step\":4,\"event\":\"resumed\",\"text\":\"start 3 of the run, paused at step 4: 2 "
        "ranks, x\"}\n"
        "{\"step\":4,\"event\":\"started\",\"text\":\"start 4 of the run: 3 ranks, x\"}\n"
        "{\"step\":5,\"loss\":2.5,\"lo");
    struct run_log log = read_log(*state);

    assert_int_equal(log.steps.n_rows, 1);
    assert_int_equal(log.steps.n_columns, 4);
    assert_true(same_double(run_table_last(&log.steps, "new"), 7));
    assert_int_equal(log.n_evaluations, 2);
    assert_string_equal(log.evaluations[0].name, "kjv");
    assert_int_equal(log.evaluations[0].n_rows, 2);
    assert_true(same_double(run_table_find(&log.evaluations[0], "elapsed_s")[0], 9));
    assert_int_equal(log.n_left_out, 4);
    assert_int_equal(log.n_ranks, 3);
    assert_int_equal(log.n_starts, 3);
    assert_int_equal(log.n_ops, 2);
    assert_string_equal(log.ops[0].kind, "linear");
    assert_true(near_double(log.ops[0].seconds, 5, 1e-12));
    assert_true(near_double(log.ops[1].seconds, 0.75, 1e-12));

    const struct run_json_options options = { .n_digits = 17 };
    cJSON *json = cJSON_CreateObject();
    run_json_add_log(json, &log, &options);
    char *text = cJSON_PrintUnformatted(json);
    assert_non_null(strstr(text, "\"steps\":{\"lines\":1,\"columns\":{\"step\":[1],\"loss\":[3],"
                                 "\"loss_mean\":[3.5],\"new\":[7]}}"));
    assert_non_null(strstr(text, "{\"set\":\"kjv\",\"lines\":2,\"columns\":{\"step\":[2,4],"
                                 "\"eval_loss\":[2,1.5],\"elapsed_s\":[9,null]},"
                                 "\"best_loss\":1.5,\"best_step\":4,\"last_loss\":1.5}"));
    assert_non_null(strstr(text, "\"loss\":3.5,"));
    assert_non_null(strstr(text, "\"restarts\":1,\"pauses\":1,\"lines_left_out\":4"));
    free(text);
    cJSON_Delete(json);
}

/* Numbers in a column, with few digits and exactly. */
static void test_digits(void **state)
{
    static const double values[] = { 0.1 + 0.2, 1.0 / 3, 123456789, -1.5e-9, 1e300 };
    struct run_table table;

    (void)state;
    run_table_init(&table, "", &fixture_arena);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        run_table_add_row(&table);
        run_table_set(&table, "x", values[i]);
    }
    for (int exact = 0; exact < 2; exact++) {
        cJSON *json =
            run_json_table(&table, &(struct run_json_options){ .n_digits = exact ? 17 : 6 });
        char *text = cJSON_PrintUnformatted(json);

        assert_string_equal(
            text, exact ? "{\"lines\":5,\"columns\":{\"x\":[0.30000000000000004,"
                          "0.3333333333333333,123456789,-1.5e-09,1e+300]}}"
                        : "{\"lines\":5,\"columns\":{\"x\":[0.3,0.333333,123456789,-1.5e-09,"
                          "1e+300]}}");
        free(text);
        cJSON_Delete(json);
    }
}

static void test_mistakes(void **state)
{
    struct run_log log;
    struct err err;

    assert_int_equal(run_log_read(&log, *state, &fixture_arena, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "has no metrics.jsonl (hint: RUN is the folder"));
    write_lines(*state, "");
    assert_int_equal(run_log_read(&log, *state, &fixture_arena, &err), -1);
    assert_non_null(strstr(err.text, "nothing has been recorded yet"));
    write_lines(*state, "\x01\xff\n\n{\"step\":1}\n");
    assert_int_equal(run_log_read(&log, *state, &fixture_arena, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_written, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_read, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_digits, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_mistakes, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
