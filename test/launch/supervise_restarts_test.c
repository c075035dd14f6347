/*
 * supervise_restarts_test.c - jobs that begin again after a death or without a host that is lost
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "launch/failing_rank.h"
#include "launch/launch.h"
#include "progress/progress.h"
#include "support/run_job.h"

/* ---- the ranks ---- */

static int attempt(void)
{
    const char *text = getenv("LMTRAIN_ATTEMPT");

    CHECK(text);
    return (int)strtol(text, NULL, 10);
}

/* The last rank dies before attempt `until`, after a step if it is "dies-late". */
static int play_death(const struct launch_rank *rank, int until, int64_t step)
{
    struct progress_slot *slot = progress_join(rank->local_rank);
    struct err err;

    if (!rank->world_rank)
        printf("attempt %d of %d ranks\n", attempt(), rank->world_size);
    fflush(stdout);
    atomic_store(&slot->step, step);
    progress_publish(slot, "attention", 0);
    CHECK(!launch_fence(30, &err));
    if (attempt() >= until)
        return run_job_leave(0);
    if (rank->world_rank == rank->world_size - 1)
        raise(SIGKILL);
    for (;;)
        pause();
}

/* In attempt 0 the test kills a daemon; whoever is left goes on to the end. */
static int play_node_loss(const struct launch_rank *rank)
{
    struct err err;

    CHECK(!launch_fence(30, &err));
    if (!rank->world_rank)
        printf("attempt %d of %d ranks\n", attempt(), rank->world_size);
    fflush(stdout);
    while (!attempt())
        pause();
    return run_job_leave(0);
}

static int play(const char *scenario)
{
    struct launch_rank rank;
    struct err err;

    run_job_note_pid(getpid());
    if (launch_join(&rank, &err)) {
        log_error("%s", err.text);
        return 1;
    }
    if (!strcmp(scenario, "dies-once"))
        return play_death(&rank, 1, 0);
    if (!strcmp(scenario, "dies-always"))
        return play_death(&rank, 1000, 0);
    if (!strcmp(scenario, "dies-later"))
        return play_death(&rank, 4, attempt());
    if (!strcmp(scenario, "node-loss"))
        return play_node_loss(&rank);
    return play_failure(&rank, scenario);
}

/* ---- the tests ---- */

static void test_restart(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "dies-once", 3, .n_restarts = 2 }, &result);
    if (result.status)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    assert_string_equal(result.out, "attempt 0 of 3 ranks\nattempt 1 of 3 ranks\n");
    run_job_check_says(&result, "rank 2 on ");
    run_job_check_says(&result, "restarting (1 of 2) from the newest checkpoint\n");
    run_job_check_clean(&result);
}

/* No use: nobody gets anywhere. With steps done it is used up instead. */
static void test_restarts_end(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "dies-always", 2, .n_restarts = 10 }, &result);
    assert_int_equal(result.status, ERR_PEER);
    run_job_check_says(&result, "restarting (2 of 10)");
    assert_null(strstr(result.err, "restarting (3 of 10)"));
    run_job_check_says(&result, "no restart: 3 times in a row the job failed");
    run_job_check_clean(&result);

    run_job(&(struct job_plan){ "dies-later", 2, .n_restarts = 3 }, &result);
    assert_int_equal(result.status, ERR_PEER);
    run_job_check_says(&result, "no restart: all 3 of 3 restarts are used");
    run_job_check_clean(&result);

    run_job(&(struct job_plan){ "dies-later", 2, .n_restarts = 4 }, &result);
    assert_int_equal(result.status, 0);
    run_job_check_clean(&result);

    /* A verdict comes again. */
    run_job(&(struct job_plan){ "exit3", 2, .n_restarts = 3 }, &result);
    assert_int_equal(result.status, 3);
    assert_null(strstr(result.err, "restart"));
    run_job_check_clean(&result);
}

static int even(void *context, int attempt, int n_possible, char *const **argv, struct err *err)
{
    (void)context;
    (void)attempt;
    (void)argv;
    return n_possible < 2 ? err_set(err, ERR_CONFIG, "two at least") + 1 : n_possible / 2 * 2;
}

/* A lost host is left out, and the job goes on with as many ranks as the others can have. */
static void test_fewer_hosts(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "node-loss", 6, .signal = SIGKILL, .victim = VICTIM_DAEMON,
                                .n_restarts = 3, .hosts = "alpha:3,beta:3", .again = even },
            &result);
    if (result.status)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    assert_string_equal(result.out, "attempt 0 of 6 ranks\nattempt 1 of 2 ranks\n");
    run_job_check_says(&result, "node beta is lost (its link closed), with ranks 3 to 5");
    run_job_check_says(&result, "restarting (1 of 3) from the newest checkpoint, with 2 ranks");
    free(result.out);
    free(result.err);

    run_job(&(struct job_plan){ "node-loss", 4, .signal = SIGKILL, .victim = VICTIM_DAEMON,
                                .n_restarts = 3, .hosts = "alpha,beta" },
            &result);
    assert_int_equal(result.status, ERR_PEER);
    run_job_check_says(
        &result, "no restart: 4 ranks are more than the 2 for which the remaining hosts have room");
    free(result.out);
    free(result.err);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_restarts_end),
        cmocka_unit_test(test_fewer_hosts),
    };

    run_job_as_daemon(argc, argv);
    if (argc > 1 && run_job_is_rank())
        return play(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
