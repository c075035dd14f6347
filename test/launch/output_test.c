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
#include "launch/head/output_impl.h"

struct fixture {
    char folder[64];
    struct output *output;
    int saved[2]; /* our own stdout and stderr, which go to files meanwhile */
};

static struct fixture f;

static int redirect(const char *name, int fd)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", f.folder, name);
    int copy = dup(fd), file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(file, fd);
    close(file);
    return copy;
}

static int setup(void **state)
{
    const char *temporary = getenv("TMPDIR");
    char path[128];
    struct err err;

    (void)state;
    snprintf(f.folder, sizeof f.folder, "%.40s/output-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(f.folder))
        return -1;
    snprintf(path, sizeof path, "%s/log/deep", f.folder);
    if (output_create(&f.output, 2, path, NULL, &err))
        return -1;
    fflush(NULL);
    f.saved[0] = redirect("face", 1);
    f.saved[1] = redirect("screen", 2);
    return 0;
}

static int teardown(void **state)
{
    struct err err;

    (void)state;
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(f.saved[i], i + 1);
        close(f.saved[i]);
    }
    output_destroy(f.output);
    output_destroy(NULL);
    return file_remove_tree(f.folder, &err);
}

static void say(enum output_stream stream, const char *text)
{
    output_take(f.output, 1, stream, text, strlen(text));
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
    struct str tail = { 0 };

    (void)state;
    say(OUTPUT_STDERR, "plain\nlmtrain: err");
    assert_file("screen", "");
    say(OUTPUT_STDOUT, "on stdout: lmtrain: error: no\nlmtrain: error: stdout is not shown\n");
    say(OUTPUT_STDERR, "or: bad\nlmtrain: warn: hm\nlmtrain: bug: x\nlmtrain: info\n");
    assert_file("screen", "rank 1: lmtrain: error: bad\nrank 1: lmtrain: warn: hm\n"
                          "rank 1: lmtrain: bug: x\n");
    output_quiet(f.output);
    say(OUTPUT_STDERR, "lmtrain: error: quiet\nunfinished");
    output_end(f.output, 1);
    output_end(f.output, 1);
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
    for (int i = 0; i < 3; i++)
        output_take(f.output, 1, OUTPUT_STDERR, line, N + 1);
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

/* Rank 0 is the job's face: every byte as it is, and no log. */
static void test_rank_0(void **state)
{
    struct str tail = { 0 };

    (void)state;
    output_quiet(f.output);
    output_take(f.output, 0, OUTPUT_STDOUT, "step 1\rst", 9);
    output_take(f.output, 0, OUTPUT_STDERR, "lmtrain: warn: w", 16);
    output_end(f.output, 0);
    assert_file("face", "step 1\rst");
    assert_file("screen", "lmtrain: warn: w");
    output_tail(f.output, 0, &tail);
    assert_int_equal(tail.length, 0);
    str_release(&tail);
}

static void test_errors(void **state)
{
    struct output *output;
    char path[128];
    struct err err;

    (void)state;
    snprintf(path, sizeof path, "%s/file", f.folder);
    assert_int_equal(file_write(path, "x", 1, &err), 0);
    assert_int_equal(output_create(&output, 2, path, NULL, &err), -1);
    assert_int_equal(output_create(&output, 2, NULL, NULL, &err), 0);
    output_take(output, 1, OUTPUT_STDOUT, "x\n", 2);
    output_destroy(output);

    /* A log that is a link to elsewhere is not written. */
    snprintf(path, sizeof path, "%s/rank-1.log", f.folder);
    assert_int_equal(symlink("/nowhere/else", path), 0);
    assert_int_equal(output_create(&output, 2, f.folder, NULL, &err), -1);
    assert_non_null(strstr(err.text, "rank-1.log"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rank_0, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
