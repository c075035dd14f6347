/*
 * launch_test.c - one rank alone, with no PMIx; ranks under PMIx are supervise_test's
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "launch/launch.h"

static void test_is_rank(void **state)
{
    (void)state;
    unsetenv("PMIX_NAMESPACE");
    unsetenv("PMIX_RANK");
    assert_false(launch_is_rank());
    setenv("PMIX_NAMESPACE", "x", 1);
    assert_false(launch_is_rank());
    setenv("PMIX_RANK", "0", 1);
    assert_true(launch_is_rank());
    setenv("PMIX_RANK", "", 1);
    assert_false(launch_is_rank());
    unsetenv("PMIX_NAMESPACE");
    unsetenv("PMIX_RANK");
}

static void test_alone(void **state)
{
    struct launch_rank rank = { 9, 9, 9, 9, 9 };
    char value[8] = "";
    size_t n_bytes = sizeof value;
    struct err err;

    (void)state;
    assert_int_equal(launch_join(&rank, &err), 0);
    assert_int_equal(rank.world_rank, 0);
    assert_int_equal(rank.world_size, 1);
    assert_int_equal(rank.local_rank, 0);
    assert_int_equal(rank.local_size, 1);
    assert_false(rank.under_pmix);

    assert_int_equal(launch_put("key", "old", 4, &err), 0);
    assert_int_equal(launch_put("key", "newer", 6, &err), 0);
    assert_int_equal(launch_put("none", NULL, 0, &err), 0);
    assert_int_equal(launch_fence(1, &err), 0);
    assert_int_equal(launch_get("key", 0, value, &n_bytes, 1, &err), 0);
    assert_int_equal(n_bytes, 6);
    assert_string_equal(value, "newer");
    n_bytes = 5;
    assert_int_equal(launch_get("key", 0, value, &n_bytes, 1, &err), -1);
    assert_non_null(strstr(err.text, "6 bytes, at most 5"));
    n_bytes = sizeof value;
    assert_int_equal(launch_get("none", 0, value, &n_bytes, 1, &err), 0);
    assert_int_equal(n_bytes, 0);
    assert_int_equal(launch_get("other", 0, value, &n_bytes, 1, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_int_equal(launch_get("key", 1, value, &n_bytes, 1, &err), -1);
    launch_leave();
    assert_int_equal(launch_get("key", 0, value, &n_bytes, 1, &err), -1);
}

/* Variables that name a server which is not there: an error, soon. */
static void test_no_server(void **state)
{
    int status;

    (void)state;
    pid_t child = fork();
    if (!child) {
        struct launch_rank rank;
        struct err err = { .code = ERR_NONE };

        setenv("PMIX_NAMESPACE", "nobody", 1);
        setenv("PMIX_RANK", "0", 1);
        _exit(launch_join(&rank, &err) == -1 && err.code == ERR_PEER ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_abort_alone(void **state)
{
    int status;

    (void)state;
    pid_t child = fork();
    if (!child)
        launch_abort(3, "no data");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_rank),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_no_server),
        cmocka_unit_test(test_abort_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
