/*
 * output_test.c - lines to logs and screen: split, long, unfinished, quiet
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "launch/output_impl.h"

struct fixture {
    char folder[64];
    struct output *output;
    int fds[2];       /* our copies of rank 1's stdout and stderr */
    int saved_stderr; /* ours goes to a file meanwhile */
};

static struct fixture f;

static int setup(void **state)
{
    const char *temporary = getenv("TMPDIR");
    char path[128];
    int fds[2];
    struct err err;

    (void)state;
    snprintf(f.folder, sizeof f.folder, "%.40s/output-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(f.folder))
        return -1;
    snprintf(path, sizeof path, "%s/log/deep", f.folder);
    if (output_create(&f.output, 2, path, &err) || output_prepare(f.output, 0, fds, &err) ||
        fds[0] != 1 || fds[1] != 2 || output_prepare(f.output, 1, fds, &err))
        return -1;
    f.fds[0] = dup(fds[0]);
    f.fds[1] = dup(fds[1]);
    output_started(f.output, 1);
    snprintf(path, sizeof path, "%s/screen", f.folder);
    fflush(NULL);
    f.saved_stderr = dup(2);
    int screen = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(screen, 2);
    close(screen);
    return 0;
}

static int teardown(void **state)
{
    struct err err;

    (void)state;
    close(f.fds[0]);
    close(f.fds[1]);
    dup2(f.saved_stderr, 2);
    close(f.saved_stderr);
    output_destroy(f.output);
    output_destroy(NULL);
    return file_remove_tree(f.folder, &err);
}

static void say(int stream, const char *text)
{
    assert_int_equal(write(f.fds[stream], text, strlen(text)), strlen(text));
    output_read(f.output, -1);
}

static void assert_file(const char *name, const char *expected)
{
    char path[128], *text;
    size_t n_bytes;
    struct err err;

    snprintf(path, sizeof path, "%s/%s", f.folder, name);
    assert_int_equal(file_read(path, 1 << 20, ERR_FAILED, &text, &n_bytes, &err), 0);
    assert_string_equal(text, expected);
    free(text);
}

static void test_lines(void **state)
{
    struct pollfd polls[4];
    struct str tail = { 0 };

    (void)state;
    assert_int_equal(output_poll(f.output, polls), 2);
    say(1, "plain\nlmtrain: err");
    assert_file("screen", "");
    say(0, "on stdout: lmtrain: error: no\nlmtrain: error: stdout is not shown\n");
    say(1, "or: bad\nlmtrain: warn: hm\nlmtrain: bug: x\nlmtrain: info\n");
    assert_file("screen", "rank 1: lmtrain: error: bad\nrank 1: lmtrain: warn: hm\n"
                          "rank 1: lmtrain: bug: x\n");
    output_quiet(f.output);
    say(1, "lmtrain: error: quiet\nunfinished");
    close(f.fds[0]);
    close(f.fds[1]);
    f.fds[0] = f.fds[1] = -1;
    output_read(f.output, 1);
    assert_int_equal(output_poll(f.output, polls), 0);
    assert_file("screen", "rank 1: lmtrain: error: bad\nrank 1: lmtrain: warn: hm\n"
                          "rank 1: lmtrain: bug: x\n");
    output_tail(f.output, 1, &tail);
    assert_non_null(strstr(str_text(&tail), "lmtrain: error: quiet\nunfinished\n"));
    assert_null(strstr(str_text(&tail), "on stdout"));
    str_release(&tail);
    assert_file("log/deep/rank-1.log", "plain\non stdout: lmtrain: error: no\n"
                                       "lmtrain: error: stdout is not shown\nlmtrain: error: bad\n"
                                       "lmtrain: warn: hm\nlmtrain: bug: x\nlmtrain: info\n"
                                       "lmtrain: error: quiet\nunfinished\n");
}

/* Lines longer than the buffer, bytes that are no text, more than fits the tail: nothing is lost.
 */
static void test_long_lines(void **state)
{
    enum { N = 10000 };
    static char line[N + 2], log[1 << 16];
    struct str tail = { 0 };
    char path[128];

    (void)state;
    for (int i = 0; i < N; i++)
        line[i] = (char)(i % 250 == '\n' ? 0 : i % 250);
    line[N] = '\n';
    for (int i = 0; i < 3; i++) {
        assert_int_equal(write(f.fds[1], line, N + 1), N + 1);
        output_read(f.output, 1);
    }
    snprintf(path, sizeof path, "%s/log/deep/rank-1.log", f.folder);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fread(log, 1, sizeof log, file), 3 * (N + 1));
    fclose(file);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(log + i * (N + 1), line, N + 1);
    output_tail(f.output, 1, &tail);
    assert_int_equal(tail.length, 1024);
    assert_memory_equal(tail.data, line + N + 1 - 1024, 1024);
    str_release(&tail);
}

static void test_errors(void **state)
{
    struct output *output;
    char path[128];
    int fds[2];
    struct err err;

    (void)state;
    snprintf(path, sizeof path, "%s/file", f.folder);
    assert_int_equal(file_write(path, "x", 1, &err), 0);
    assert_int_equal(output_create(&output, 2, path, &err), -1);
    assert_int_equal(output_create(&output, 2, NULL, &err), 0);
    assert_int_equal(output_prepare(output, 1, fds, &err), 0);
    output_started(output, 1);
    output_destroy(output);

    /* A log that is a link to elsewhere is not written. */
    snprintf(path, sizeof path, "%s/rank-1.log", f.folder);
    assert_int_equal(symlink("/nowhere/else", path), 0);
    assert_int_equal(output_create(&output, 2, f.folder, &err), 0);
    assert_int_equal(output_prepare(output, 1, fds, &err), -1);
    assert_non_null(strstr(err.text, "rank-1.log"));
    output_destroy(output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
