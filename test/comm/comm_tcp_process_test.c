/*
 * comm_tcp_process_test.c - ranks as processes under our server, over sockets: on one machine, and
 * as on two
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "comm/comm_impl.h"
#include "support/comm_process.h"
#include "support/run_job.h"

static int create(struct comm **comm, const struct launch_rank *rank, struct err *err)
{
    static struct comm_wireup wireup;
    /* Hosts of a test are all this machine: nothing but the setting makes them use its network. */
    struct tcp_settings settings = { 1000, rank->local_size < rank->world_size };

    wireup = (struct comm_wireup){ rank->world_rank, rank->world_size, rank->local_size,
                                   launch_put,       launch_fence,     launch_get };
    return comm_tcp_create_as(comm, &wireup, &settings, err);
}

static void test_one_machine(void **state)
{
    (void)state;
    comm_process_test_calls(NULL, 8);
    comm_process_test_failures(NULL);
    comm_process_test_late();
}

static void test_two_machines(void **state)
{
    (void)state;
    comm_process_test_calls("a,b", 8);
    comm_process_test_failures("a,b");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_machine),
        cmocka_unit_test(test_two_machines),
    };

    run_job_as_daemon(argc, argv);
    if (argc > 1 && run_job_is_rank())
        return comm_process_play(argv[1], create);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
