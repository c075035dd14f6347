/*
 * death_notices_test.c - what one node's watcher tells is heard by those of its launch, as it was
 * told
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "launch/watch/death_notices_impl.h"

enum { DEADLINE_SECONDS = 60 };

static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/lmtrain-news-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

static struct death_notices *open_notices(uint64_t launch_id)
{
    struct death_notices *notices = death_notices_open(folder, launch_id);

    assert_non_null(notices);
    return notices;
}

static void tell(struct death_notices *notices, const char *text)
{
    death_notices_post(notices, text);
    death_notices_flush(notices, DEADLINE_SECONDS);
}

static void test_first_is_heard(void **state)
{
    struct death_notices *a = open_notices(7), *b = open_notices(7), *late = open_notices(7);

    (void)state;
    assert_null(death_notices_first(b, 0));
    assert_null(death_notices_first(b, DEADLINE_SECONDS));
    tell(a, "rank 3 on n2 died");
    tell(b, "rank 1 on n1 died");
    tell(a, "rank 4 on n2 died");
    assert_string_equal(death_notices_first(b, DEADLINE_SECONDS), "rank 3 on n2 died");
    assert_string_equal(death_notices_first(late, DEADLINE_SECONDS), "rank 3 on n2 died");
    /* Nobody needs to ask: the thread looks. */
    for (int i = 0; i < DEADLINE_SECONDS * 100 && !death_notices_first(a, 0); i++)
        usleep(10000);
    assert_string_equal(death_notices_first(a, 0), "rank 3 on n2 died");
}

static void test_other_launches(void **state)
{
    struct death_notices *old = open_notices(7), *next = open_notices(8);

    (void)state;
    tell(old, "rank 3 on n2 died");
    assert_null(death_notices_first(next, DEADLINE_SECONDS));
    tell(next, "rank 1 on n1 died");
    assert_string_equal(death_notices_first(next, DEADLINE_SECONDS), "rank 1 on n1 died");
    assert_string_equal(death_notices_first(old, DEADLINE_SECONDS), "rank 3 on n2 died");
}

/* A line that is not yet whole is not believed; one that is too long is cut. */
static void test_lines(void **state)
{
    static const char half[] = "0000000000000007 rank 3 on n2 di";
    char path[128], longest[1024];
    struct death_notices *notices = open_notices(7);
    struct err err;

    (void)state;
    snprintf(path, sizeof path, "%s/watchers", folder);
    assert_int_equal(file_write(path, half, sizeof half - 1, &err), 0);
    assert_null(death_notices_first(notices, DEADLINE_SECONDS));
    assert_int_equal(unlink(path), 0);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    tell(notices, longest);
    const char *heard = death_notices_first(notices, DEADLINE_SECONDS);
    assert_non_null(heard);
    assert_true(strlen(heard) >= 64 && strlen(heard) < sizeof longest - 1);
    assert_int_equal(strspn(heard, "x"), strlen(heard));
}

/* Nothing is written through a link or into a pipe, and where there is not a folder nobody
 * hears. */
static void test_no_file(void **state)
{
    char path[128], other[128], *data;
    size_t size;
    struct err err;

    (void)state;
    snprintf(path, sizeof path, "%s/watchers", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(file_write(other, "mine", 4, &err), 0);
    assert_int_equal(symlink(other, path), 0);
    struct death_notices *notices = open_notices(7), *second = open_notices(7);
    tell(notices, "rank 3 on n2 died");
    assert_null(death_notices_first(second, DEADLINE_SECONDS));
    assert_int_equal(file_read(other, 64, ERR_FAILED, &data, &size, &err), 0);
    assert_int_equal(size, 4);
    free(data);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    notices = open_notices(7);
    tell(notices, "rank 3 on n2 died");
    assert_null(death_notices_first(second, DEADLINE_SECONDS));
    notices = death_notices_open("/nonexistent", 7);
    tell(notices, "x");
    assert_null(death_notices_first(notices, DEADLINE_SECONDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_first_is_heard, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_launches, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_file, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
