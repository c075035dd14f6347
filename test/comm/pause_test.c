/*
 * pause_test.c - who waits lets others have the core
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdbool.h>
#include <cmocka.h>

#include "comm/comm.h"
#include "comm/pause.h"

enum { N_CALLS = 5000, N_YIELDS_MAX = 1000 };

/* However long data moves, a sleep comes after a bounded number of yields. */
static void test_sleeps_between_yields(void **state)
{
    struct comm_pause pause;
    int n_yields = 0, n_most = 0, n_sleeps = 0;

    (void)state;
    comm_pause_begin(&pause);
    for (int i = 0; i < N_CALLS; i++) {
        bool sleeps = comm_pause_next(&pause, COMM_MOVING) > 0;

        n_sleeps += sleeps;
        n_yields = sleeps ? 0 : n_yields + 1;
        n_most = n_most > n_yields ? n_most : n_yields;
    }
    assert_true(n_most <= N_YIELDS_MAX);
    assert_true(n_sleeps >= N_CALLS / (N_YIELDS_MAX + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sleeps_between_yields),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
