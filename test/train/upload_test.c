/* Uploads, with commands that succeed, fail, take too long, cannot be ended, or lose their run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "train/upload.h"

enum { PATIENCE_SECONDS = 60 };

static char dir[64];

static const char *path_of(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* The commands' folder, in which they also find $TEST_DIR. */
static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/upload-test.XXXXXX");
    log_set_level(LOG_ERROR);
    return !mkdtemp(dir) || setenv("TEST_DIR", dir, 1) < 0;
}

static int tear_down(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(dir, &err);
}

static struct upload *create(const char *command, double seconds)
{
    struct upload_options options = { command, path_of("log"), seconds, .grace_seconds = 0.5 };
    struct upload *upload;
    struct err err;

    assert_int_equal(upload_create(&upload, &options, &err), 0);
    return upload;
}

static bool wait_on(void *context)
{
    (void)context;
    return true;
}

static void destroy(struct upload *upload, double seconds)
{
    upload_finish(upload, seconds, wait_on, NULL);
    upload_destroy(upload);
}

static struct upload_report next_report(struct upload *upload)
{
    struct upload_report report = { 0 };
    double end = clock_seconds() + PATIENCE_SECONDS;

    while (!upload_take_report(upload, &report) && clock_seconds() < end)
        usleep(10000);
    assert_true(*report.text);
    return report;
}

static void expect_report(struct upload *upload, int64_t step, bool is_done, const char *part)
{
    struct upload_report report = next_report(upload);

    if (report.step != step || report.is_done != is_done || !strstr(report.text, part))
        fail_msg("%s (step %lld), not one of step %lld with '%s'", report.text,
                 (long long)report.step, (long long)step, part);
}

/* The numbers in a file of $TEST_DIR, as soon as there are n of them. */
static void wait_for_numbers(const char *name, int n, int *numbers)
{
    double end = clock_seconds() + PATIENCE_SECONDS;
    int n_found = 0;

    while (n_found < n && clock_seconds() < end) {
        FILE *file = fopen(path_of(name), "r");

        for (n_found = 0; file && n_found < n; n_found++)
            if (fscanf(file, "%d", &numbers[n_found]) != 1)
                break;
        if (file)
            fclose(file);
        usleep(10000);
    }
    assert_int_equal(n_found, n);
}

/* A zombie does nothing any more. */
static bool is_running(int process)
{
    char path[64], state = 'X';

    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'X';
    fclose(file);
    return state != 'X' && state != 'Z';
}

static void expect_ended(const int *processes, int n)
{
    double end = clock_seconds() + PATIENCE_SECONDS;

    for (int i = 0; i < n; i++) {
        while (is_running(processes[i]) && clock_seconds() < end)
            usleep(10000);
        assert_false(is_running(processes[i]));
    }
}

/* $$ of a list of commands, of each side of a pipe, and of a job in the background. */
#define MANY_PROCESSES \
    "cd \"$TEST_DIR\"; sleep 1000 & echo $! >>ids; " \
    "sh -c 'echo $$ >>ids; sleep 1000; true' | sh -c 'echo $$ >>ids; cat; true' && echo never; "

static void test_environment(void **state)
{
    (void)state;
    setenv("PMIX_RANK", "0", 1);
    setenv("OMPI_X", "0", 1);
    setenv("LMTRAIN_HOST", "a", 1);
    struct upload *upload =
        create("cd \"$TEST_DIR\" && test \"$LMTRAIN_CHECKPOINT\" = \"$(pwd -P)\" && "
               "test $LMTRAIN_STEP = 8 && ! env | grep -E '^(PMIX_|OMPI_|LMTRAIN_HOST)'",
               60);
    upload_add(upload, dir, 8);
    expect_report(upload, 8, true, "the checkpoint of step 8 is uploaded, in ");
    destroy(upload, 60);
    unsetenv("PMIX_RANK");
    unsetenv("OMPI_X");
    unsetenv("LMTRAIN_HOST");
}

static void test_newest_first(void **state)
{
    int64_t steps[2];

    (void)state;
    struct upload *upload =
        create("echo $LMTRAIN_STEP >>$TEST_DIR/begun; until test -e $TEST_DIR/go; do sleep 0.01; "
               "done",
               60);
    upload_add(upload, dir, 4);
    wait_for_numbers("begun", 1, (int[1]){ 0 });
    upload_add(upload, dir, 8);
    upload_add(upload, dir, 12);
    assert_int_equal(upload_holds(upload, steps), 2);
    assert_int_equal(steps[0], 4);
    assert_int_equal(steps[1], 12);
    expect_report(upload, 8, false, "a newer one comes first");
    assert_int_equal(mkdir(path_of("go"), 0700), 0);
    expect_report(upload, 4, true, "is uploaded");
    expect_report(upload, 12, true, "is uploaded");
    assert_int_equal(upload_holds(upload, steps), 0);
    destroy(upload, 0);
}

static void test_tried_again(void **state)
{
    (void)state;
    struct upload *upload = create("cd $TEST_DIR; test -e again || { mkdir again; exit 3; }", 60);
    upload_add(upload, dir, 4);
    expect_report(upload, 4, true, "is uploaded");
    destroy(upload, 60);
}

/* All processes of a try that takes too long end, and the next begins. */
static void test_time_limit(void **state)
{
    int ids[6];

    (void)state;
    struct upload *upload = create("trap '' TERM; " MANY_PROCESSES, 0.5);
    upload_add(upload, dir, 4);
    wait_for_numbers("ids", 6, ids);
    expect_ended(ids, 3);
    upload_finish(upload, 0, wait_on, NULL);
    expect_report(upload, 4, false, "(2 tries");
    upload_destroy(upload);
    expect_ended(ids, 6);
}

static void test_end_of_run(void **state)
{
    int ids[3];

    (void)state;
    struct upload *upload = create(MANY_PROCESSES, 600);
    upload_add(upload, dir, 4);
    wait_for_numbers("ids", 3, ids);
    upload_add(upload, dir, 8);
    upload_finish(upload, 0.1, wait_on, NULL);
    expect_report(upload, 4, false, "the run has ended (1 try");
    expect_report(upload, 8, false, "the run has ended (0 tries");
    upload_destroy(upload);
    expect_ended(ids, 3);
}

/* Who started this process may have SIGCHLD ignored, and a library may ignore it later. */
static void test_ignored_children(void **state)
{
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    struct upload *upload = create("exit $((LMTRAIN_STEP - 4))", 60);
    upload_add(upload, dir, 4);
    expect_report(upload, 4, true, "is uploaded");
    upload_add(upload, dir, 9);
    upload_finish(upload, 0.5, wait_on, NULL);
    expect_report(upload, 9, false, "the command exits with status 5");
    upload_destroy(upload);

    upload = create("true", 60);
    signal(SIGCHLD, SIG_IGN);
    upload_add(upload, dir, 4);
    upload_finish(upload, 0.5, wait_on, NULL);
    expect_report(upload, 4, false, "how the command ended is not known");
    upload_destroy(upload);
    signal(SIGCHLD, SIG_DFL);
}

/* Nothing of a list or a pipe survives this process, though none of it is its child. */
static void test_death_of_run(void **state)
{
    int ids[3];

    (void)state;
    pid_t run = fork();
    assert_true(run >= 0);
    if (run == 0) {
        upload_add(create(MANY_PROCESSES, 600), dir, 4);
        for (;;)
            pause();
    }
    wait_for_numbers("ids", 3, ids);
    for (int i = 0; i < 3; i++)
        assert_true(is_running(ids[i]));
    kill(run, SIGKILL);
    assert_int_equal(waitpid(run, NULL, 0), run);
    expect_ended(ids, 3);
}

static void test_cancel(void **state)
{
    int64_t steps[2];
    int ids[3];

    (void)state;
    struct upload *upload = create("test -e $TEST_DIR/ids && exit; " MANY_PROCESSES, 600);
    upload_add(upload, dir, 8);
    wait_for_numbers("ids", 3, ids);
    upload_add(upload, dir, 12);
    upload_cancel_after(upload, 8);
    expect_report(upload, 12, false, "the run has gone back to step 8");
    assert_int_equal(upload_holds(upload, steps), 1);
    assert_true(is_running(ids[0]));
    upload_cancel_after(upload, 4);
    assert_int_equal(upload_holds(upload, steps), 0);
    expect_ended(ids, 3);
    expect_report(upload, 8, false, "the run has gone back to step 4");
    upload_add(upload, dir, 8);
    expect_report(upload, 8, true, "is uploaded");
    destroy(upload, 60);
}

/*
 * A process that is traced cannot be waited for by its parent, even when it was killed, before the
 * tracer has: to the parent it is one that SIGKILL does not end. Returns the tracer, or 0 where
 * tracing is not allowed.
 */
static pid_t trace(int process)
{
    int ends[2], number;

    assert_int_equal(pipe(ends), 0);
    pid_t tracer = fork();
    assert_true(tracer >= 0);
    if (tracer == 0) {
        number = ptrace(PTRACE_SEIZE, process, NULL, NULL) < 0 ? errno : 0;
        if (write(ends[1], &number, sizeof number) != sizeof number)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ends[0], &number, sizeof number), sizeof number);
    close(ends[0]);
    close(ends[1]);
    if (!number)
        return tracer;
    kill(tracer, SIGKILL);
    waitpid(tracer, NULL, 0);
    return 0;
}

static void test_given_up(void **state)
{
    char part[64];
    int64_t steps[2];
    int id;

    (void)state;
    struct upload *upload = create("cd $TEST_DIR; test -e id && exit; echo $$ >id; "
                                   "while :; do sleep 0.01; done",
                                   600);
    upload_add(upload, dir, 8);
    wait_for_numbers("id", 1, &id);
    pid_t tracer = trace(id);
    if (!tracer) {
        destroy(upload, 0);
        skip();
    }
    /* Neither the calls of a step nor this hang. */
    upload_cancel_after(upload, 4);
    assert_int_equal(upload_holds(upload, steps), 0);
    snprintf(part, sizeof part, "process %d does not end on SIGKILL", id);
    expect_report(upload, 8, false, part);
    /* While it is there no other is started. */
    upload_add(upload, dir, 12);
    usleep(100000);
    upload_cancel_after(upload, 4);
    snprintf(part, sizeof part, "process %d of an earlier try has not ended", id);
    expect_report(upload, 12, false, part);
    kill(tracer, SIGKILL);
    waitpid(tracer, NULL, 0);
    upload_add(upload, dir, 16);
    expect_report(upload, 16, true, "is uploaded");
    destroy(upload, 60);
}

/* The log is a FIFO that nothing reads: the thread stays in open, as on a dead file system. */
static void test_stuck_thread(void **state)
{
    int64_t steps[2];

    (void)state;
    assert_int_equal(mkfifo(path_of("log"), 0600), 0);
    struct upload *upload = create("true", 60);
    upload_add(upload, dir, 8);
    assert_int_equal(upload_holds(upload, steps), 1);
    upload_finish(upload, 0.1, wait_on, NULL);
    expect_report(upload, 8, false, "the thread that uploads it does not end");
    upload_destroy(upload);
}

int main(void)
{
#define UPLOAD_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        UPLOAD_TEST(test_environment),  UPLOAD_TEST(test_newest_first),
        UPLOAD_TEST(test_tried_again),  UPLOAD_TEST(test_time_limit),
        UPLOAD_TEST(test_end_of_run),   UPLOAD_TEST(test_ignored_children),
        UPLOAD_TEST(test_death_of_run), UPLOAD_TEST(test_cancel),
        UPLOAD_TEST(test_given_up),     UPLOAD_TEST(test_stuck_thread),
    };

    alarm(600);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
