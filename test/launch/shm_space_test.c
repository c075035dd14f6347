/*
 * shm_space_test.c - ranks that would not fit into shared memory are refused before they start
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdlib.h>
#include <string.h>

#include "launch/node/shm_space.h"

#define MIB ((uint64_t)1 << 20)

/* Docker's default of 64 MiB holds 8 ranks of Open MPI and not 32. */
static void test_a_container(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(shm_space_judge("/dev/shm", 8, 64 * MIB, 64 * MIB, &err), 0);
    assert_int_equal(shm_space_judge("/dev/shm", 32, 64 * MIB, 64 * MIB, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "/dev/shm has 64.0 MiB, 32 ranks take 137 MiB there"));
    assert_non_null(strstr(err.text, "--shm-size"));
    assert_non_null(strstr(err.text, "LMTRAIN_COMM=tcp"));
}

static void test_what_others_took(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(shm_space_judge("/dev/shm", 2, 10 * MIB, 64 * MIB, &err), -1);
    assert_non_null(strstr(err.text, "10.0 MiB of 64.0 MiB free"));
}

static void test_the_edge(void **state)
{
    struct err err = { 0 };

    (void)state;
    for (int n = 1; n <= 4096; n *= 2) {
        uint64_t need = shm_space_needed(n);

        assert_true(need >= (uint64_t)n * 4 * MIB);
        assert_int_equal(shm_space_judge("x", n, need, need, &err), 0);
        assert_int_equal(shm_space_judge("x", n, need - 1, need, &err), -1);
    }
}

static void test_settings(void **state)
{
    struct err err = { 0 };

    (void)state;
    /* No machine has what a million ranks take. */
    assert_int_equal(shm_space_check("/dev/shm", 1000000000, &err), -1);
    setenv("LMTRAIN_COMM", "tcp", 1);
    setenv("OMPI_MCA_btl_vader_segment_size", "1000000000000", 1);
    assert_int_equal(shm_space_check("/dev/shm", 1, &err), 0);
    setenv("LMTRAIN_COMM", "mpi", 1);
    assert_int_equal(shm_space_check("/dev/shm", 1, &err), -1);
    setenv("OMPI_MCA_btl_vader_segment_size", "1000000000000", 1);
    assert_int_equal(shm_space_check("/dev/shm", 1000000, &err), -1);
    setenv("OMPI_MCA_btl", "self,tcp", 1);
    assert_int_equal(shm_space_check("/dev/shm", 1, &err), 0);
    setenv("OMPI_MCA_btl", "^vader", 1);
    assert_int_equal(shm_space_check("/dev/shm", 1, &err), 0);
    setenv("OMPI_MCA_btl", "^tcp", 1);
    assert_int_equal(shm_space_check("/dev/shm", 1000000, &err), -1);
    unsetenv("OMPI_MCA_btl");
    unsetenv("OMPI_MCA_btl_vader_segment_size");
    unsetenv("LMTRAIN_COMM");
    assert_int_equal(shm_space_check("/no/such/folder", 1000000000, &err), 0);
}

/* A daemon on another host has other variables than the ranks that it starts. */
static void test_settings_of_the_job(void **state)
{
    char *plain[] = { "OMPI_MCA_btl_vader_segment_sizes=1", NULL };
    char *tcp[] = { "A=b", "OMPI_MCA_btl=self,tcp", NULL };
    char *large[] = { "LMTRAIN_COMM=mpi", "OMPI_MCA_btl_vader_segment_size=1000000000000", NULL };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(shm_space_check_for("/dev/shm", 1, tcp, &err), 0);
    assert_int_equal(shm_space_check_for("/dev/shm", 1000000000, plain, &err), -1);
    assert_int_equal(shm_space_check_for("/dev/shm", 1000000, large, &err), -1);
    setenv("OMPI_MCA_btl", "self,tcp", 1);
    assert_int_equal(shm_space_check_for("/dev/shm", 1000000000, plain, &err), -1);
    unsetenv("OMPI_MCA_btl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_container),
        cmocka_unit_test(test_what_others_took),
        cmocka_unit_test(test_the_edge),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_settings_of_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
