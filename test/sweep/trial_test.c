/*
 * trial_test.c - a trial's process: how long it is seen, how it ended, what it said last
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "support/temporary.h"
#include "sweep/trial.h"
#include "train/run_lock.h"

static char folder[64], path[128];

static const char *last_of(const char *log)
{
    static char text[256];
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    fputs(log, file);
    fclose(file);
    trial_last_line(path, text, sizeof text);
    return text;
}

static void the_line_that_says_why(void **state)
{
    (void)state;
    assert_string_equal(last_of(""), "");
    assert_string_equal(last_of("a\nlmtrain: error: job.yaml: b\n\n"), "job.yaml: b");
    assert_string_equal(last_of("done: step 12\r\n"), "done: step 12");
    assert_string_equal(
        last_of(
            "lmtrain: error: rank 1 on n was killed by signal 9; its last lines:\n"
            "x\nlmtrainy\nlmtrain: warn: z\nlmtrain: error: 1 other rank terminated as a result\n"),
        "rank 1 on n was killed by signal 9");
    assert_string_equal(last_of("lmtrain: error: rank 1 died; its last lines:\nx\n"
                                "lmtrain: the disk is full\n"),
                        "the disk is full");
    assert_string_equal(last_of("\033[2Jtitle\n"), "?[2Jtitle");
    /* Only the end of a long log is read. */
    char log[10001];
    memset(log, 'a', sizeof log);
    memcpy(log + sizeof log - 6, "\nend\n", 6);
    assert_string_equal(last_of(log), "end");
}

static void what_may_end_otherwise(void **state)
{
    static const int died[] = { 5, 134, 137, 139, 143 }, refused[] = { 0, 1, 2, 3, 4, 75 };

    (void)state;
    for (size_t i = 0; i < sizeof died / sizeof *died; i++)
        assert_true(trial_died(died[i]));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_false(trial_died(refused[i]));
}

static void nap(void)
{
    nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
}

/* This program as a trial: takes SIGTERM as a trial that saves does, ends once `path` is gone. */
static int be_trial(const char *gate)
{
    signal(SIGTERM, SIG_IGN);
    puts("runs");
    fflush(stdout);
    for (int i = 0; i < 6000 && access(gate, F_OK) == 0; i++)
        nap();
    return 0;
}

static void await_line(const char *log, const char *line)
{
    char text[64] = "";

    for (int i = 0; i < 6000 && strcmp(text, line) != 0; i++) {
        nap();
        trial_last_line(log, text, sizeof text);
    }
    assert_string_equal(text, line);
}

/* A sweep that is gone once its trial runs. */
static void start_and_leave(const char *const *argv, const char *log)
{
    const struct trial_place place = { .n_cores = 0 };
    struct err err;
    pid_t sweep = fork();

    if (!sweep) {
        if (trial_start(argv, &place, log, &err) < 0)
            _exit(1);
        await_line(log, "runs");
        _exit(0);
    }
    assert_int_equal(waitpid(sweep, NULL, 0), sweep);
}

static void a_trial_is_seen_until_it_is_gone(void **state)
{
    const struct trial_place place = { .n_cores = 0 };
    char gate[128], log[128];
    struct err err;
    int status = -1;

    (void)state;
    snprintf(gate, sizeof gate, "%s/gate", folder);
    snprintf(log, sizeof log, "%s/trial.log", folder);
    const char *const argv[] = { "trial_test", gate, NULL };
    assert_false(lock_is_held(log)); /* there is none */
    close(open(gate, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    pid_t process = trial_start(argv, &place, log, &err);
    assert_true(process > 0);
    assert_true(lock_is_held(log));
    await_line(log, "runs");
    assert_true(lock_is_held(log));
    remove(gate);
    for (int i = 0; i < 6000 && !trial_ended(process, &status); i++)
        nap();
    assert_int_equal(status, 0);
    assert_false(lock_is_held(log));
}

static void a_trial_outlives_its_sweep(void **state)
{
    char gate[128], log[128];
    bool is_seen = true;

    (void)state;
    snprintf(gate, sizeof gate, "%s/gate", folder);
    snprintf(log, sizeof log, "%s/orphan.log", folder);
    const char *const argv[] = { "trial_test", gate, NULL };
    close(open(gate, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    start_and_leave(argv, log);
    assert_true(lock_is_held(log));
    remove(gate);
    for (int i = 0; i < 6000 && is_seen; i++) {
        nap();
        is_seen = lock_is_held(log);
    }
    assert_false(is_seen);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return be_trial(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_that_says_why),
        cmocka_unit_test(what_may_end_otherwise),
        cmocka_unit_test(a_trial_is_seen_until_it_is_gone),
        cmocka_unit_test(a_trial_outlives_its_sweep),
    };
    struct err err;

    if (temporary_folder(folder, sizeof folder) < 0)
        return 1;
    snprintf(path, sizeof path, "%s/log", folder);
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(folder, &err);
    return status;
}
