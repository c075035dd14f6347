/*
 * log_file_test.c - a bounded number of files, whoever writes; and their last lines
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/log_file.h"
#include "support/temporary.h"

#define LIMIT_BYTES ((size_t)64 << 10)

static char folder[256], path[300], older[310];

static int set_up(void **state)
{
    (void)state;
    if (temporary_folder(folder, sizeof folder))
        return -1;
    snprintf(path, sizeof path, "%s/rank-0.log", folder);
    snprintf(older, sizeof older, "%s.1", path);
    log_file_set_limit(LIMIT_BYTES);
    return 0;
}

static int tear_down(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

/* Lines of 1 KiB that begin with their number. */
static void write_lines(struct log_file *file, int first, int n)
{
    char line[1025];

    for (int i = first; i < first + n; i++) {
        memset(line, '.', sizeof line);
        snprintf(line, sizeof line, "%08d", i);
        line[8] = ' ';
        line[1023] = '\n';
        log_file_write(file, line, 1024);
    }
}

/* The number at the start of a file; -1: there is none. */
static int first_line(const char *name)
{
    char text[9] = "";
    FILE *file = fopen(name, "re");
    int number = file && fread(text, 1, 8, file) == 8 ? (int)strtol(text, NULL, 10) : -1;

    if (file)
        fclose(file);
    return number;
}

/* PATH.i */
static const char *old_file(int i)
{
    static char name[320];

    snprintf(name, sizeof name, "%s.%d", path, i);
    return name;
}

static void test_turns_over(void **state)
{
    enum { LINES = LIMIT_BYTES / 1024 };
    struct err err;
    struct log_file *file = log_file_open(path, &err);

    (void)state;
    assert_non_null(file);
    write_lines(file, 0, LINES);
    assert_int_equal(file_size(path), LIMIT_BYTES);
    assert_int_equal(access(older, F_OK), -1);
    write_lines(file, LINES, 1);
    assert_int_equal(file_size(path), 1024);
    assert_int_equal(file_size(older), LIMIT_BYTES);
    assert_int_equal(first_line(older), 0);
    assert_int_equal(first_line(path), LINES);
    log_file_close(file);

    file = log_file_open(path, &err); /* as after a restart */
    assert_non_null(file);
    write_lines(file, LINES + 1, 6 * LINES);
    log_file_close(file);
    assert_true(file_size(path) <= (int64_t)LIMIT_BYTES);
    assert_int_equal(first_line(path), 7 * LINES);
    for (int i = 1; i <= LOG_FILE_N_OLD; i++) {
        assert_int_equal(file_size(old_file(i)), LIMIT_BYTES);
        assert_int_equal(first_line(old_file(i)), (7 - i) * LINES);
    }
    assert_int_equal(access(old_file(LOG_FILE_N_OLD + 1), F_OK), -1);
}

static void test_tail(void **state)
{
    enum { LINES = LIMIT_BYTES / 1024 };
    struct err err;
    char text[2200];

    (void)state;
    log_file_tail(path, 0, text, sizeof text);
    assert_string_equal(text, "");
    struct log_file *file = log_file_open(path, &err);
    assert_non_null(file);
    write_lines(file, 0, 3);
    log_file_tail(path, 2048, text, sizeof text); /* the first two are of another job */
    assert_int_equal(strtol(text, NULL, 10), 2);
    assert_int_equal(strlen(text), 1023);
    log_file_tail(path, 0, text, sizeof text); /* the first one is not whole */
    assert_int_equal(strtol(text, NULL, 10), 1);
    assert_int_equal(strlen(text), 2047);
    write_lines(file, 3, LINES - 2); /* its last line goes to a new file */
    log_file_tail(path, 2048, text, sizeof text);
    assert_int_equal(strtol(text, NULL, 10), LINES - 1);
    assert_int_equal(strlen(text), 2047);
    assert_int_equal(strtol(text + 1024, NULL, 10), LINES);
    log_file_close(file);
}

static void test_deleted(void **state)
{
    struct err err;
    struct log_file *file = log_file_open(path, &err);
    double deadline = clock_seconds() + 60;
    int n = 0;

    (void)state;
    assert_non_null(file);
    write_lines(file, n++, 1);
    assert_int_equal(unlink(path), 0);
    while (access(path, F_OK) && clock_seconds() < deadline) {
        write_lines(file, n++, 1);
        usleep(20000);
    }
    assert_int_equal(first_line(path), n - 1);
    log_file_close(file);
}

static void test_bounds_others(void **state)
{
    char bytes[4096];
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    size_t written = 0;

    (void)state;
    memset(bytes, 'x', sizeof bytes);
    assert_true(fd >= 0);
    assert_int_equal(log_file_bound(path), 0);
    for (; written <= LIMIT_BYTES; written += sizeof bytes)
        assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(log_file_bound(path), 1);
    assert_int_equal(file_size(path), 0);
    assert_int_equal(file_size(older), written);
    assert_int_equal(write(fd, bytes, 10), 10); /* through the descriptor it has had all along */
    assert_int_equal(file_size(path), 10);
    assert_int_equal(log_file_bound(path), 0);
    for (size_t i = 0; i <= LIMIT_BYTES; i += sizeof bytes)
        assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(log_file_bound(path), 1);
    assert_int_equal(file_size(old_file(2)), written); /* what was the older one */
    written = (size_t)file_size(older);
    close(fd);

    char link_path[320];
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    assert_int_equal(symlink(older, link_path), 0);
    assert_int_equal(log_file_bound(link_path), 0);
    assert_int_equal(file_size(older), written);
    assert_int_equal(log_file_bound("/dev/null"), 0);
}

static void ignore(void *context, enum log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void test_copies_the_log(void **state)
{
    struct err err;
    char *text;
    size_t n_bytes;
    struct log_file *file = log_file_open(path, &err);

    (void)state;
    assert_non_null(file);
    log_set_sink(ignore, NULL);
    log_set_file(file);
    log_info("a line");
    log_to_file("step 3/12");
    log_error("it is %s", "broken");
    log_set_file(NULL);
    log_info("after it");
    log_set_sink(NULL, NULL);
    assert_int_equal(file_read(path, 1 << 20, ERR_DATA, &text, &n_bytes, &err), 0);
    assert_string_equal(text, "a line\nstep 3/12\nlmtrain: error: it is broken\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turns_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_deleted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bounds_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copies_the_log, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
