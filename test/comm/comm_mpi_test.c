/*
 * comm_mpi_test.c - ranks as processes under our server: what comm_thread_test tries, and MPI's
 * pieces
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "comm/comm_impl.h"
#include "support/comm_process.h"
#include "support/run_job.h"

static int create(struct comm **comm, const struct launch_rank *rank, struct err *err)
{
    (void)rank;
    return comm_mpi_create_pieces(comm, 1000, err);
}

static void test_all_calls(void **state)
{
    (void)state;
    comm_process_test_calls(NULL, 0);
}

static void test_failures(void **state)
{
    (void)state;
    comm_process_test_failures(NULL);
}

static void test_late(void **state)
{
    (void)state;
    comm_process_test_late();
}

static void test_without_mpi(void **state)
{
    struct comm *comm;
    struct err err = { .code = ERR_NONE };

    (void)state;
    assert_int_equal(comm_mpi_create(&comm, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "built without MPI"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest with[] = {
        cmocka_unit_test(test_all_calls),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_late),
    };
    const struct CMUnitTest without[] = {
        cmocka_unit_test(test_without_mpi),
    };

    if (argc > 1 && run_job_is_rank())
        return comm_process_play(argv[1], create);
#ifdef __SANITIZE_THREAD__
    return 0; /* libevent and Open MPI are not built with it: their locks look like errors */
#endif
    if (LMTRAIN_MPI)
        return cmocka_run_group_tests(with, NULL, NULL);
    return cmocka_run_group_tests(without, NULL, NULL);
}
