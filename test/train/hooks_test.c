/*
 * hooks_test.c - hooks that succeed, fail, are slow, hang, or leave processes behind
 */
#include "support/folder_fixture.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "train/hooks.h"

enum { PATIENCE_SECONDS = 60 };

static struct str said;

static void hear(void *context, enum log_level level, const char *text)
{
    (void)context;
    if (level >= LOG_INFO)
        str_printf(&said, "%s\n", text);
}

static int set_up(void **state)
{
    log_set_sink(hear, NULL);
    str_clear(&said);
    return fixture_setup(state);
}

static int tear_down(void **state)
{
    log_set_sink(NULL, NULL);
    str_release(&said);
    said = (struct str){ 0 };
    return fixture_teardown(state);
}

/* %s of the command is the test's folder. */
static struct hooks *create(const char *folder, enum hook_kind kind, const char *command,
                            double seconds)
{
    struct hooks_options options = { .log = fixture_path(folder, "log"),
                                     .run = "/runs/\"a\"",
                                     .seconds = seconds,
                                     .grace_seconds = 0.5 };
    struct str text = { 0 };
    struct hooks *hooks;
    struct err err;

    str_printf(&text, "cd %s; %s", folder, command);
    options.commands[kind] = str_text(&text);
    assert_ok(hooks_create(&hooks, &options, &err), &err);
    str_release(&text);
    assert_non_null(hooks);
    return hooks;
}

static bool wait_on(void *context)
{
    (void)context;
    return true;
}

static bool wait_no_more(void *context)
{
    (void)context;
    return false;
}

static const char *read_file(const char *path)
{
    struct err err;
    size_t n;
    char *text, *copy;

    if (file_read(path, 1 << 20, ERR_DATA, &text, &n, &err) < 0)
        return "";
    copy = arena_strdup(&fixture_arena, text);
    free(text);
    return copy;
}

static void wait_for_file(const char *path)
{
    for (double end = clock_seconds() + PATIENCE_SECONDS; clock_seconds() < end;) {
        if (access(path, F_OK) == 0)
            return;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    fail_msg("%s never came", path);
}

static void each_event_is_a_line_of_json(void **state)
{
    struct hooks *hooks =
        create(*state, HOOK_EVAL, "cat >>events; echo \"$LMTRAIN_HOOK\" >>names; echo out", 30);

    for (int i = 0; i < 3; i++)
        hooks_put(hooks, HOOK_EVAL, i ? "\"step\":2,\"eval_loss\":null" : "\"step\":1");
    hooks_put(hooks, HOOK_SAVE, "\"step\":9"); /* of which there is no command */
    hooks_close(hooks, PATIENCE_SECONDS, wait_on, NULL);
    const char *text = read_file(fixture_path(*state, "events"));
    int n = 0;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1, n++) {
        cJSON *event = cJSON_ParseWithLength(text, (size_t)(end - text));

        assert_non_null(event);
        assert_string_equal(cJSON_GetObjectItem(event, "hook")->valuestring, "on_eval");
        assert_string_equal(cJSON_GetObjectItem(event, "run")->valuestring, "/runs/\"a\"");
        assert_int_equal(cJSON_GetObjectItem(event, "left_out")->valueint, 0);
        assert_int_equal(cJSON_GetObjectItem(event, "step")->valueint, n ? 2 : 1);
        cJSON_Delete(event);
    }
    assert_int_equal(n, 3);
    assert_string_equal(read_file(fixture_path(*state, "names")), "on_eval\non_eval\non_eval\n");
    assert_string_equal(read_file(fixture_path(*state, "log")), "out\nout\nout\n");
    assert_string_equal(str_text(&said), "");
}

/* While the first runs, 999 others come: of which the last is run. No put waits for a command. */
static void steps_are_left_out_and_counted(void **state)
{
    struct hooks *hooks = create(
        *state, HOOK_STEP, "cat >>events; : >began; while ! test -e go; do sleep 0.02; done", 60);
    struct err err;

    hooks_put(hooks, HOOK_STEP, "\"step\":1");
    wait_for_file(fixture_path(*state, "began"));
    double begin = clock_seconds();
    for (int i = 0; i < 999; i++)
        hooks_put(hooks, HOOK_STEP, i < 998 ? "\"step\":2" : "\"step\":1000");
    assert_true(clock_seconds() - begin < 5);
    assert_ok(file_write(fixture_path(*state, "go"), "", 0, &err), &err);
    hooks_close(hooks, PATIENCE_SECONDS, wait_on, NULL);
    const char *events = read_file(fixture_path(*state, "events"));
    const char *second = strchr(events, '\n') + 1;
    assert_non_null(strstr(second, "\"left_out\":998,\"step\":1000}\n"));
    assert_null(strchr(strchr(second, '\n') + 1, '\n'));
    assert_non_null(strstr(str_text(&said), "hooks.on_step: 998 events left out"));
}

static void failures_are_reported_once(void **state)
{
    struct hooks *hooks = create(*state, HOOK_EVAL, "exit 3", 30);

    for (int i = 0; i < 4; i++)
        hooks_put(hooks, HOOK_EVAL, "\"step\":1");
    hooks_close(hooks, PATIENCE_SECONDS, wait_on, NULL);
    const char *first = strstr(str_text(&said), "hooks.on_eval: it exits with status 3 (hint: ");
    assert_non_null(first);
    assert_null(strstr(strchr(first, '\n'), "status 3"));
    assert_non_null(strstr(str_text(&said), "hooks.on_eval: 4 commands failed"));
}

static pid_t number_in(const char *path)
{
    return (pid_t)strtol(read_file(path), NULL, 10);
}

/* SIGTERM is ignored, and so it is by what it started. */
static void one_that_hangs_is_ended_with_its_group(void **state)
{
    struct hooks *hooks = create(
        *state, HOOK_EVAL, "trap '' TERM; sleep 1000 & echo $! >child; echo $$ >self; wait", 0.3);

    hooks_put(hooks, HOOK_EVAL, "\"step\":1");
    hooks_close(hooks, PATIENCE_SECONDS, wait_on, NULL);
    assert_non_null(strstr(str_text(&said), "it takes more than "));
    pid_t child = number_in(fixture_path(*state, "child")),
          self = number_in(fixture_path(*state, "self"));
    assert_true(child > 0 && self > 0);
    for (double end = clock_seconds() + PATIENCE_SECONDS;
         kill(child, 0) == 0 && clock_seconds() < end;)
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    assert_int_equal(kill(child, 0), -1);
    assert_int_equal(kill(self, 0), -1);
}

/* A signal does not wait for commands, nor for what stands behind them. */
static void the_end_may_be_at_once(void **state)
{
    struct hooks *hooks = create(*state, HOOK_EVAL, ": >began; exec sleep 1000", 2000);

    hooks_put(hooks, HOOK_EVAL, "\"step\":1");
    hooks_put(hooks, HOOK_EVAL, "\"step\":2");
    wait_for_file(fixture_path(*state, "began"));
    double begin = clock_seconds();
    hooks_close(hooks, 1000, wait_no_more, NULL);
    assert_true(clock_seconds() - begin < 30);
    assert_non_null(strstr(str_text(&said), "the run has ended"));
    assert_non_null(strstr(str_text(&said), "1 event left at the end"));
}

static void a_command_that_reads_nothing(void **state)
{
    struct hooks *hooks = create(*state, HOOK_EVAL, "true", 30);
    char *large = malloc(1 << 20);

    assert_non_null(large);
    memset(large, 'x', 1 << 20);
    memcpy(large, "\"a\":\"", 5);
    memcpy(large + (1 << 20) - 2, "\"", 2);
    hooks_put(hooks, HOOK_EVAL, large);
    free(large);
    hooks_close(hooks, PATIENCE_SECONDS, wait_on, NULL);
    assert_string_equal(str_text(&said), "");
}

static void none(void **state)
{
    const struct hooks_options options = { .commands = { "" }, .log = "", .run = "" };
    struct hooks *hooks;
    struct err err;

    (void)state;
    assert_ok(hooks_create(&hooks, &options, &err), &err);
    assert_null(hooks);
    hooks_put(NULL, HOOK_STEP, "");
    hooks_close(NULL, 1, wait_on, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_event_is_a_line_of_json, set_up, tear_down),
        cmocka_unit_test_setup_teardown(steps_are_left_out_and_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failures_are_reported_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_hangs_is_ended_with_its_group, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_end_may_be_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_command_that_reads_nothing, set_up, tear_down),
        cmocka_unit_test(none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
