/*
 * run_watch_test.c - what is said of a run from its status files, in every width
 */
#include "report_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "report/live_line.h"
#include "report/run_watch.h"

#define NOW 1700000100.0

static void put(const char *folder, const char *name, const char *text)
{
    struct err err;

    assert_ok(file_write(fixture_path(folder, name), text, strlen(text), &err), &err);
}

/* A run folder whose rank 0 was heard at that time, in a process that is not on this host. */
static void put_run(const char *folder, const char *state, double written_at)
{
    struct str text = { 0 };
    struct err err;

    assert_ok(file_make_folder(fixture_path(folder, "status"), &err), &err);
    str_printf(&text,
               "{\"written_at\":%.3f,\"said_at\":%.3f,\"pid\":4711,\"started_at\":%.3f,"
               "\"begun_at\":%.3f,\"n_ranks\":2,\"host\":\"another.host\",\"state\":\"%s\","
               "\"text\":\"why\",\"step\":40,\"steps\":300,\"loss\":5.2134,\"loss_mean\":5.3,"
               "\"grad_norm\":0.25,\"lr\":0.001,\"tokens_per_s\":12400,\"step_s\":0.5,\"mfu\":0.41,"
               "\"memory_bytes\":1288490189,\"saved_step\":20,\"left_s\":67,\"status\":\"\","
               "\"note\":\"\"}",
               written_at, written_at, NOW - 90, NOW - 100, state);
    put(folder, "status/run.json", str_text(&text));
    str_release(&text);
}

static void put_ranks(const char *folder, const char *name, double said_at, int first, int n)
{
    struct str text = { 0 };

    str_printf(&text, "{\"written_at\":%.3f,\"said_at\":%.3f,\"host\":\"n1\",\"ranks\":[", said_at,
               said_at);
    for (int i = first; i < first + n; i++)
        str_printf(&text,
                   "%s{\"rank\":%d,\"state\":\"%s\",\"step\":41,\"micro_batch\":%d,\"doing\":"
                   "\"attention layers.9\",\"waits\":%s,\"resident_bytes\":1048576,\"heard_s\":%d}",
                   i == first ? "" : ",", i, i == 7 ? "ended" : "running", i,
                   i % 2 ? "true" : "false", i == 5 ? 30 : 0);
    str_add(&text, "]}");
    put(folder, name, str_text(&text));
    str_release(&text);
}

static struct run_watch watch(const char *folder)
{
    struct run_watch w;
    struct err err;

    assert_ok(run_watch_read(&w, folder, NOW, &fixture_arena, &err), &err);
    return w;
}

static void a_run_that_goes_on(void **state)
{
    put_run(*state, "running", NOW - 0.5);
    put_ranks(*state, "status/ranks-n1.json", NOW - 2, 1, 1);
    put_ranks(*state, "status/ranks-n0.json", NOW - 1, 0, 1);
    put(*state, "metrics.jsonl",
        "{\"step\":0,\"event\":\"started\",\"text\":\"a\\u001bb\",\"time\":1700000000}\n"
        "{\"step\":20,\"eval_loss\":5.5}\n{\"step\":40,\"eval_loss\":5.25}\n{\"step\":4");
    struct run_watch w = watch(*state);
    assert_int_equal(w.state, WATCH_RUNNING);
    assert_true(fabs(w.age_s - 0.5) < 1e-3);
    assert_int_equal(w.step.step, 40);
    assert_true(w.step.loss_mean == 5.3);
    assert_int_equal(w.total_steps, 300);
    assert_int_equal(w.n_listed, 2);
    assert_int_equal(w.ranks[1].rank, 1);
    assert_string_equal(w.ranks[1].host, "n1");
    assert_true(w.ranks[1].waits);
    assert_true(fabs(w.ranks[1].heard_s - 2) < 1e-3);
    assert_int_equal(w.n_evaluations, 1);
    assert_true(w.evaluations[0].loss == 5.25);
    assert_int_equal(w.n_events, 1);
    assert_null(strchr(w.events[0].text, '\033'));
    struct str out = { 0 };
    run_watch_print(&w, "runs/a", &(struct watch_screen){ .width = INT32_MAX }, &out);
    assert_non_null(strstr(str_text(&out), "step 40/300  loss 5.213  12.4k tok/s  MFU 41 %  "
                                           "1.2 GiB  left 1:07\n"));
    assert_non_null(strstr(str_text(&out), "waits in attention layers.9, micro-batch 1\n"));
    assert_non_null(strstr(str_text(&out), "held-out 5.2500 (step 40)"));
    str_release(&out);
}

/* Under srun what sees ranks end is gone with them: their record says why. */
static void ranks_that_died(void **state)
{
    static const char died[] = "{\"step\":0,\"event\":\"started\",\"text\":\"a\"}\n"
                               "{\"step\":4,\"event\":\"died\",\"text\":\"rank 1 was killed\"}\n";
    char restarted[512];
    struct str out = { 0 };

    put_run(*state, "running", NOW - 4);
    put(*state, "metrics.jsonl", died);
    struct run_watch w = watch(*state);
    assert_int_equal(w.state, WATCH_RUNNING);
    run_watch_print(&w, "runs/a", &(struct watch_screen){ .width = INT32_MAX }, &out);
    assert_non_null(strstr(str_text(&out), "its ranks have ended; heard 4.0 s ago: rank 1 was "));
    put_run(*state, "running", NOW - 20);
    w = watch(*state);
    assert_int_equal(w.state, WATCH_FAILED);
    assert_string_equal(w.text, "rank 1 was killed");
    snprintf(restarted, sizeof restarted, "%s{\"step\":4,\"event\":\"started\",\"text\":\"b\"}\n",
             died);
    put(*state, "metrics.jsonl", restarted);
    assert_int_equal(watch(*state).state, WATCH_SILENT);
    str_release(&out);
}

static void states(void **state)
{
    static const struct {
        const char *said;
        double run_age, ranks_age; /* ranks_age < 0: none */
        enum watch_state expected;
    } cases[] = {
        { "running", 1, 1, WATCH_RUNNING },   { "running", 10, -1, WATCH_RUNNING },
        { "running", 20, -1, WATCH_SILENT },  { "running", 20, 1, WATCH_RESTARTING },
        { "failed", 1, 1, WATCH_RESTARTING }, { "failed", 20, 20, WATCH_FAILED },
        { "failed", 20, -1, WATCH_FAILED },   { "done", 1000, 1000, WATCH_DONE },
        { "saved", 1000, -1, WATCH_SAVED },   { "running", 80, 80, WATCH_SILENT },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_run(*state, cases[i].said, NOW - cases[i].run_age);
        unlink(fixture_path(*state, "status/ranks.json"));
        if (cases[i].ranks_age >= 0)
            put_ranks(*state, "status/ranks.json", NOW - cases[i].ranks_age, 0, 2);
        struct run_watch w = watch(*state);
        if (w.state != cases[i].expected)
            fail_msg("case %zu: %s, not %s", i, run_watch_state(w.state),
                     run_watch_state(cases[i].expected));
    }
}

/* An earlier launch in the folder had other nodes. */
static void files_of_an_earlier_launch_are_left_out(void **state)
{
    put_run(*state, "running", NOW);
    put_ranks(*state, "status/ranks-n0.json", NOW - 1, 0, 1);
    put_ranks(*state, "status/ranks-n9.json", NOW - 200, 8, 4);
    assert_int_equal(watch(*state).n_listed, 1);
}

static void without_a_status(void **state)
{
    struct run_watch w;
    struct err err;

    assert_int_equal(run_watch_read(&w, *state, NOW, &fixture_arena, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "(hint: "));
    put(*state, "metrics.jsonl", "{\"step\":3,\"loss\":2.5,\"step_s\":0.1}\n[1]\nnonsense\n");
    w = watch(*state);
    assert_int_equal(w.state, WATCH_NO_STATUS);
    assert_true(w.step.loss == 2.5);
    assert_ok(file_make_folder(fixture_path(*state, "status"), &err), &err);
    put(*state, "status/run.json", "{\"step\":");
    assert_int_equal(watch(*state).state, WATCH_NO_STATUS);
    put(*state, "status/run.json", "[]");
    assert_int_equal(watch(*state).state, WATCH_NO_STATUS);
}

/* Of members of the wrong kind, of huge numbers, of none at all. */
static void a_damaged_status_is_survived(void **state)
{
    struct str out = { 0 };
    struct err err;

    assert_ok(file_make_folder(fixture_path(*state, "status"), &err), &err);
    put(*state, "status/run.json",
        "{\"step\":1e300,\"steps\":-4,\"pid\":\"x\",\"memory_bytes\":-1,\"mfu\":1e400,\"step_s\":"
        "null,\"host\":7,\"ranks\":[1,{},\"x\",{\"rank\":-5,\"heard_s\":1e300}],\"started_at\":1}");
    struct run_watch w = watch(*state);
    run_watch_print(&w, "x", &(struct watch_screen){ .width = 40, .height = 10 }, &out);
    run_watch_json(&w, "x", &out);
    assert_true(out.length > 0);
    str_release(&out);
}

static void every_line_fits(void **state)
{
    struct str out = { 0 };

    put_run(*state, "running", NOW - 1);
    put_ranks(*state, "status/ranks.json", NOW - 1, 0, 12);
    put(*state, "metrics.jsonl",
        "{\"step\":0,\"event\":\"started\",\"text\":\"a long text of an event that says "
        "something\",\"time\":1700000000}\n{\"step\":40,\"eval_loss\":5.25}\n");
    struct run_watch w = watch(*state);
    for (int width = 1; width <= 140; width++)
        for (int height = 1; height <= 30; height++) {
            int n = 0;

            str_clear(&out);
            run_watch_print(&w, "runs/a", &(struct watch_screen){ width, height, width % 2, false },
                            &out);
            for (char *rest = out.data, *line; (line = strsep(&rest, "\n")) && rest; n++)
                if (live_line_width(line) > width && width >= 8)
                    fail_msg("%d x %d: '%s' is longer", width, height, line);
            if (n > height)
                fail_msg("%d x %d: %d lines", width, height, n);
        }
    str_release(&out);
}

/* The rank that ended and the silent one are among the few that have a line. */
static void troubled_ranks_come_first(void **state)
{
    struct str out = { 0 };

    put_run(*state, "running", NOW - 1);
    put_ranks(*state, "status/ranks.json", NOW - 1, 0, 12);
    struct run_watch w = watch(*state);
    run_watch_print(&w, "runs/a", &(struct watch_screen){ 100, 10, false, false }, &out);
    assert_non_null(strstr(str_text(&out), "\n   5  "));
    assert_non_null(strstr(str_text(&out), "\n   7  "));
    assert_non_null(strstr(str_text(&out), "ended\n"));
    assert_non_null(strstr(str_text(&out), " more, in steps 41 to 41\n"));
    assert_null(strstr(str_text(&out), "\n  11  "));
    str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_that_goes_on, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(ranks_that_died, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(states, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(files_of_an_earlier_launch_are_left_out, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(without_a_status, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_damaged_status_is_survived, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(every_line_fits, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(troubled_ranks_come_first, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
