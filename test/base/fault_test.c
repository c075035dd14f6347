/*
 * fault_test.c - which rule fires where, once, and what each action does to a process
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"

static char last_line[512];

static void keep_line(void *context, enum log_level level, const char *line)
{
    (void)context;
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static int set_up(void **state)
{
    (void)state;
    log_set_sink(keep_line, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unsetenv("LMTRAIN_FAULT");
    log_set_sink(NULL, NULL);
    return 0;
}

static void init(const char *rules, int rank, int attempt)
{
    struct err err;

    setenv("LMTRAIN_FAULT", rules, 1);
    if (fault_init(rank, attempt, &err) < 0)
        fail_msg("%s: %s", rules, err.text);
}

static void test_nothing_asked(void **state)
{
    struct err err;

    (void)state;
    unsetenv("LMTRAIN_FAULT");
    assert_int_equal(fault_init(0, 0, &err), 0);
    assert_int_equal(fault_at("step", 1), FAULT_NONE);
    init("", 0, 0);
    assert_int_equal(fault_at("step", 1), FAULT_NONE);
}

static void test_place_and_number(void **state)
{
    (void)state;
    init("rank1:step7:flip,rank1:gradients:3:nan", 1, 0);
    assert_int_equal(fault_at("step", 6), FAULT_NONE);
    assert_int_equal(fault_at("gradients", 7), FAULT_NONE);
    assert_int_equal(fault_at("step", 7), FAULT_FLIP);
    assert_string_equal(last_line, "LMTRAIN_FAULT: rank 1 at step:7: flip");
    assert_int_equal(fault_at("step", 7), FAULT_NONE);
    assert_int_equal(fault_at("gradients", 3), FAULT_NAN);
    assert_int_equal(fault_at("gradients", 3), FAULT_NONE);
}

static void test_slow(void **state)
{
    struct err err;

    (void)state;
    init("rank0:step5:slow,rank0:load:7:slow,rank0:step9:slow", 0, 0);
    assert_int_equal(fault_at("step", 5), FAULT_SLOW);
    assert_int_equal(fault_at("load", 6), FAULT_NONE);
    assert_int_equal(fault_at("load", 7), FAULT_SLOW);
    assert_int_equal(fault_at("step", 9), FAULT_SLOW);
    setenv("LMTRAIN_FAULT", "rank0:gradients:5:slow", 1);
    assert_int_equal(fault_init(0, 0, &err), -1);
    assert_non_null(strstr(err.text, "slow, which is for step:N, load:N and preflight,"));
}

static void test_without_number_the_first(void **state)
{
    (void)state;
    init("rank0:step:flip", 0, 0);
    assert_int_equal(fault_at("step", 41), FAULT_FLIP);
    assert_int_equal(fault_at("step", 42), FAULT_NONE);
}

static void test_other_ranks_and_attempts(void **state)
{
    (void)state;
    init("rank1:step2:flip,attempt1:rank0:step3:flip", 0, 0);
    assert_int_equal(fault_at("step", 2), FAULT_NONE);
    assert_int_equal(fault_at("step", 3), FAULT_NONE);
    init("rank1:step2:flip,attempt1:rank0:step3:flip", 0, 1);
    assert_int_equal(fault_at("step", 2), FAULT_NONE);
    assert_int_equal(fault_at("step", 3), FAULT_FLIP);
    init("rank1:step2:flip", 1, 1);
    assert_int_equal(fault_at("step", 2), FAULT_NONE);
}

static void test_refused(void **state)
{
    static const char *const bad[] = {
        "step3",
        "rank:step3",
        "rankx:step3",
        "rank1",
        "rank1:",
        "rank1:stepx",
        "rank1:lunch",
        "rank1:save",
        "rank1:save:lunch",
        "rank1:step3:explode",
        "rank1:step3:sigkill:sigkill",
        "rank99999999999999999999:step3",
        "attempt1:step3",
        "rank1:step3:nan",
        "rank1:save:begin:3:flip",
        "rank1:step3:flips",
        "rank1:op:",
        "rank0:step1,rank1:lunch", /* of another rank */
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = { 0 };

        setenv("LMTRAIN_FAULT", bad[i], 1);
        if (fault_init(0, 0, &err) == 0)
            fail_msg("%s is taken", bad[i]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_non_null(strstr(err.text, "save:before_rename"));
        assert_non_null(strstr(err.text, "sigkill"));
        assert_int_equal(fault_at("step", 1), FAULT_NONE);
    }
}

/* The status of a process in which rules are at work at `place`. */
static int status_of(const char *rules, const char *place, int wait_options)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit no_core = { 0, 0 };

        setrlimit(RLIMIT_CORE, &no_core);
        init(rules, 2, 0);
        if (strncmp(place, "op:", 3) == 0)
            fault_at_op(place + 3, 5, 0);
        else
            fault_at(place, 5);
        _exit(42);
    }
    assert_int_equal(waitpid(pid, &status, wait_options), pid);
    if (WIFSTOPPED(status)) {
        int ended;
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &ended, 0), pid);
    }
    return status;
}

static void test_deaths(void **state)
{
    static const struct {
        const char *rule;
        int number;
    } deaths[] = {
        { "rank2:save:before_rename", SIGKILL },
        { "rank2:save:before_rename:5:sigterm", SIGTERM },
        { "rank2:save:before_rename:segv", SIGSEGV },
        { "rank2:save:before_rename:abort", SIGABRT },
    };
    int status;

    (void)state;
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        status = status_of(deaths[i].rule, "save:before_rename", 0);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), deaths[i].number);
    }
    status = status_of("rank2:save:before_rename:exit", "save:before_rename", 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    status = status_of("rank2:save:before_rename:stop", "save:before_rename", WUNTRACED);
    assert_true(WIFSTOPPED(status));
    status = status_of("rank2:save:before_rename:6", "save:before_rename", 0);
    assert_int_equal(WEXITSTATUS(status), 42);
}

/* A flip happens once, and not where something is computed again; flips from a step on. */
static void test_flips_of_ops(void **state)
{
    (void)state;
    init("rank0:op:linear layers.1:5:flip,rank0:op:rope layers.0:5:flips", 0, 0);
    assert_true(fault_watches_ops());
    assert_int_equal(fault_at_op("linear layers.1", 4, 0), FAULT_NONE);
    assert_int_equal(fault_at_op("linear layers.1", 5, 1), FAULT_NONE);
    assert_int_equal(fault_at_op("linear layers.1", 5, 0), FAULT_FLIP);
    assert_int_equal(fault_at_op("linear layers.1", 5, 0), FAULT_NONE);
    assert_int_equal(fault_at_op("rope layers.0", 4, 0), FAULT_NONE);
    for (int step = 5; step < 8; step++) {
        assert_int_equal(fault_at_op("rope layers.0", step, 1), FAULT_FLIP);
        assert_int_equal(fault_at_op("rope layers.0", step, 0), FAULT_FLIP);
    }
    init("rank0:step:flip", 0, 0);
    assert_false(fault_watches_ops());
}

static void test_ops(void **state)
{
    (void)state;
    assert_int_equal(
        WTERMSIG(status_of("rank2:op:attention layers.1:5", "op:attention layers.1", 0)), SIGKILL);
    assert_int_equal(
        WEXITSTATUS(status_of("rank2:op:attention layers.1:5", "op:attention layers.0", 0)), 42);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_asked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_place_and_number, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_slow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_without_number_the_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_ranks_and_attempts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_deaths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_flips_of_ops, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ops, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
