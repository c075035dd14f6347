/*
 * excluded_test.c - the file of excluded hosts, as lmtrain and people write it
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
#include "base/str.h"
#include "launch/excluded.h"
#include "support/temporary.h"

static char folder[256];
static char path[300];

static int make_folder(void **state)
{
    (void)state;
    if (temporary_folder(folder, sizeof folder))
        return -1;
    snprintf(path, sizeof path, "%s/excluded_hosts", folder);
    return 0;
}

static int remove_folder(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

static void write_text(const char *text)
{
    struct err err;

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
}

static void test_none(void **state)
{
    struct excluded_hosts list = { .n = 7 };
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    unlink(path);
    assert_int_equal(excluded_read(&list, folder, &arena, &err), 0);
    assert_int_equal(list.n, 0);
    assert_null(excluded_find(&list, "a"));
    arena_release(&arena);
}

static void test_added_once(void **state)
{
    struct excluded_hosts list;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    unlink(path);
    assert_int_equal(excluded_add(folder, "root@n7", "product of rank 3:\twrong\nbits", &err), 0);
    assert_int_equal(excluded_add(folder, "n8", "slow", &err), 0);
    assert_int_equal(excluded_add(folder, "root@n7", "again", &err), 0);
    assert_int_equal(excluded_read(&list, folder, &arena, &err), 0);
    assert_int_equal(list.n, 2);
    assert_string_equal(list.hosts[0].host, "root@n7");
    assert_string_equal(list.hosts[0].reason, "product of rank 3: wrong bits");
    assert_int_equal(strlen(list.hosts[0].time), strlen("2026-11-26T16:00:00Z"));
    assert_int_equal(list.hosts[0].time[10], 'T');
    assert_string_equal(excluded_find(&list, "n8")->reason, "slow");
    assert_null(excluded_find(&list, "n"));
    assert_null(excluded_find(&list, "n7"));
    arena_release(&arena);
}

/* What people write stays, and a line that they remove readmits its host. */
static void test_edited(void **state)
{
    struct excluded_hosts list;
    struct arena arena = { 0 };
    struct err err;
    char *text;
    size_t n_bytes;

    (void)state;
    write_text(
        "# rack 4 is being moved\n\n  n1\nn2 no fan \r\nn3\t2026-11-26T16:00:00Z\tslow disk");
    assert_int_equal(excluded_add(folder, "n4", "", &err), 0);
    assert_int_equal(excluded_read(&list, folder, &arena, &err), 0);
    assert_int_equal(list.n, 4);
    assert_string_equal(excluded_find(&list, "n1")->reason, "");
    assert_string_equal(excluded_find(&list, "n2")->reason, "no fan");
    assert_string_equal(excluded_find(&list, "n2")->time, "");
    assert_string_equal(excluded_find(&list, "n3")->reason, "slow disk");
    assert_string_equal(excluded_find(&list, "n3")->time, "2026-11-26T16:00:00Z");
    assert_non_null(excluded_find(&list, "n4"));
    assert_int_equal(file_read(path, 4096, ERR_CONFIG, &text, &n_bytes, &err), 0);
    assert_non_null(strstr(text, "# rack 4 is being moved\n\n  n1\n"));
    assert_non_null(strstr(text, "slow disk\nn4\t"));
    free(text);
    write_text("n2 no fan\n");
    assert_int_equal(excluded_read(&list, folder, &arena, &err), 0);
    assert_int_equal(list.n, 1);
    assert_null(excluded_find(&list, "n4"));
    arena_release(&arena);
}

static void test_wrong(void **state)
{
    struct excluded_hosts list;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    unlink(path);
    assert_int_equal(excluded_add(folder, "", "x", &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_int_equal(excluded_add(folder, "a b", "x", &err), -1);
    assert_non_null(strstr(err.text, "'a b'"));
    assert_int_equal(excluded_add(folder, "a\nb", "x", &err), -1);
    assert_int_equal(file_exists(path), 0);
    assert_int_equal(excluded_add("/nowhere/at/all", "a", "x", &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(excluded_read(&list, folder, &arena, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    rmdir(path);
    arena_release(&arena);
}

/* The launcher's name comes first, then Slurm's. */
static void test_host(void **state)
{
    char name[256] = "";

    (void)state;
    setenv("LMTRAIN_HOST", "root@n7", 1);
    setenv("SLURMD_NODENAME", "n8", 1);
    assert_string_equal(launch_host(), "root@n7");
    setenv("LMTRAIN_HOST", "", 1);
    assert_string_equal(launch_host(), "n8");
    unsetenv("SLURMD_NODENAME");
    gethostname(name, sizeof name - 1);
    assert_string_equal(launch_host(), name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),   cmocka_unit_test(test_added_once),
        cmocka_unit_test(test_edited), cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_host),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
