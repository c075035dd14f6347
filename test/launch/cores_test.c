/*
 * cores_test.c - shares cover the allowed cores once, or every rank has one
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <sched.h>
#include <cmocka.h>

#include "launch/cores.h"

static void test_shares(void **state)
{
    cpu_set_t allowed;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int n_allowed = CPU_COUNT(&allowed);
    for (int size = 1; size <= n_allowed + 3; size++) {
        int total = 0, last = -1;

        for (int rank = 0; rank < size; rank++) {
            int cores[1024];
            int n = launch_cores(rank, size, cores, 1024);

            assert_in_range(n, 1, n_allowed);
            for (int i = 0; i < n; i++) {
                assert_true(CPU_ISSET((size_t)cores[i], &allowed));
                if (size <= n_allowed || i)
                    assert_true(cores[i] > last);
                last = cores[i];
            }
            total += n;
        }
        assert_int_equal(total, size <= n_allowed ? n_allowed : size);
    }
}

/* Only what this process may use, and no more than there is room for. */
static void test_bounds(void **state)
{
    cpu_set_t allowed, one;
    int first = 0, cores[4] = { -1, -1, -1, -1 };

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_int_equal(launch_cores(0, 1, cores, 1), 1);
    assert_int_equal(cores[1], -1);
    while (!CPU_ISSET((size_t)first, &allowed))
        first++;
    CPU_ZERO(&one);
    CPU_SET((size_t)first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(launch_cores(0, 1, cores, 4), 1);
    assert_int_equal(cores[0], first);
    assert_int_equal(launch_cores(6, 7, cores, 4), 1);
    assert_int_equal(cores[0], first);
    assert_int_equal(sched_setaffinity(0, sizeof allowed, &allowed), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
