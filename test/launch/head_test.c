/*
 * head_test.c - what comes to a head from outside: signals, once and twice and too early, and kills
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
#include "launch/launch.h"
#include "launch/pmix_client_impl.h"
#include "support/run_job.h"

/* ---- the ranks ---- */

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    signalled = number;
}

static int play_wait_for_signal(const struct launch_rank *rank)
{
    struct err err;

    signal(SIGTERM, on_signal);
    signal(SIGUSR1, on_signal);
    CHECK(!launch_fence(30, &err));
    if (!rank->world_rank) {
        printf("ready\n");
        fflush(stdout);
    }
    while (!signalled)
        usleep(1000);
    printf("signal %d\n", (int)signalled);
    return run_job_leave(ERR_REQUEUE);
}

/* Takes half a second from being asked to stop until it has saved; or ends well by itself. */
static int play_slow(int waits)
{
    struct err err;

    signal(SIGTERM, on_signal);
    CHECK(!launch_fence(30, &err));
    printf("ready\n");
    fflush(stdout);
    while (waits && !signalled)
        usleep(1000);
    usleep(500000);
    return run_job_leave(waits ? ERR_REQUEUE : 0);
}

/* Says that it is ready, and dies of the signal that comes, in a step or before it began. */
static int play_killed_by_signal(const struct launch_rank *rank, int has_begun)
{
    struct err err;

    if (has_begun)
        run_job_publish(rank, "attention layers.9", 0);
    CHECK(!launch_fence(30, &err));
    if (!rank->world_rank)
        printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* Makes progress for ever, as its node has seen before it says that it is ready. */
static int play_busy(const struct launch_rank *rank)
{
    struct err err;

    run_job_publish(rank, "attention layers.9", 0);
    CHECK(!launch_fence(30, &err));
    if (!rank->world_rank)
        printf("ready\n");
    fflush(stdout);
    for (;;) {
        run_job_publish(rank, "attention layers.9", 0);
        usleep(20000);
    }
}

/* The first dies at once, the others wait. */
static int play_death(const struct launch_rank *rank)
{
    struct err err;

    CHECK(!launch_fence(30, &err));
    if (!rank->world_rank) {
        printf("dying\n");
        fflush(stdout);
        raise(SIGKILL);
    }
    for (;;)
        pause();
}

/*
 * Rank 1 ends as Open MPI ends a process whose connection breaks, and so, a little later, does rank
 * 0; if somebody dies, it is rank 2, in between.
 */
static int play_connections_break(const struct launch_rank *rank, int somebody_dies)
{
    char path[256];
    struct err err;

    snprintf(path, sizeof path, "%s/broken", getenv("TEST_FOLDER"));
    CHECK(!launch_fence(30, &err));
    if (rank->world_rank == 1) {
        FILE *file = fopen(path, "w");

        CHECK(file && !fclose(file));
        launch_client_abort(-1, "a connection broke");
        _exit(255);
    }
    while (access(path, F_OK))
        usleep(1000);
    usleep(rank->world_rank ? 30000 : 60000);
    if (rank->world_rank && somebody_dies)
        raise(SIGKILL);
    if (!rank->world_rank) {
        launch_client_abort(-1, "a connection broke");
        _exit(255);
    }
    for (;;)
        pause();
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
    if (!strcmp(scenario, "busy"))
        return play_busy(&rank);
    if (!strcmp(scenario, "signal"))
        return play_wait_for_signal(&rank);
    if (!strcmp(scenario, "slow") || !strcmp(scenario, "short"))
        return play_slow(!strcmp(scenario, "slow"));
    if (!strcmp(scenario, "dies"))
        return play_death(&rank);
    if (!strcmp(scenario, "breaks") || !strcmp(scenario, "broken"))
        return play_connections_break(&rank, !strcmp(scenario, "broken"));
    return play_killed_by_signal(&rank, !strcmp(scenario, "stubborn"));
}

/* ---- the tests ---- */

static void test_signals_passed_on(void **state)
{
    static const int signals[] = { SIGTERM, SIGUSR1 };
    char expected[64];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct job_result result;

        run_job(&(struct job_plan){ "signal", 2, .signal = signals[i] }, &result);
        if (result.status != ERR_REQUEUE)
            fail_msg("status %d; stderr:\n%s", result.status, result.err);
        snprintf(expected, sizeof expected, "ready\nsignal %d\n", signals[i]);
        assert_string_equal(result.out, expected);
        run_job_check_clean(&result);
    }
}

/* timeout(1) says it twice and means it once. */
static void test_signal_twice(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "slow", 2, .signal = SIGTERM, .is_twice = 1 }, &result);
    if (result.status != ERR_REQUEUE)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_clean(&result);
}

static void test_nohup(void **state)
{
    struct job_result result;

    (void)state;
    signal(SIGHUP, SIG_IGN);
    run_job(&(struct job_plan){ "short", 2, .signal = SIGHUP }, &result);
    signal(SIGHUP, SIG_DFL);
    if (result.status)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_clean(&result);
}

static int stop_now(void *context, int attempt, int n_possible, char *const **argv, struct err *err)
{
    (void)context;
    (void)attempt;
    (void)argv;
    (void)err;
    kill(getpid(), SIGTERM);
    return n_possible;
}

/* Asked to stop while nobody is there to hear it, or before it can. */
static void test_stop_while_starting(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "dies", 3, .n_restarts = 2, .again = stop_now }, &result);
    if (result.status != ERR_REQUEUE)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    assert_string_equal(result.out, "dying\n");
    run_job_check_says(&result, "stopped by signal 15 (Terminated) before any rank was started");
    run_job_check_clean(&result);

    run_job(&(struct job_plan){ "deaf", 2, .signal = SIGTERM, .n_restarts = 1 }, &result);
    if (result.status != ERR_REQUEUE)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    assert_null(strstr(result.err, "restarting"));
    run_job_check_clean(&result);

    /* In a step it would have had something to save. */
    run_job(&(struct job_plan){ "stubborn", 2, .signal = SIGTERM, .n_restarts = 3 }, &result);
    assert_int_equal(result.status, ERR_PEER);
    assert_null(strstr(result.err, "restarting"));
    run_job_check_clean(&result);
}

/* Who tells of a broken connection is no first cause, and -1 is no exit status. */
static void test_broken_connections(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ .scenario = "broken", .n_ranks = 3 }, &result);
    if (result.status != ERR_PEER)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_says(&result, "rank 2 on ");
    run_job_check_says(&result, "was killed by signal 9");
    assert_null(strstr(result.err, "failed with status"));
    run_job_check_clean(&result);

    run_job(&(struct job_plan){ .scenario = "breaks", .n_ranks = 3, .n_restarts = 1 }, &result);
    if (result.status != ERR_PEER)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_says(&result, "failed with status -1: a connection broke");
    run_job_check_says(&result, "restarting (1 of 1)");
    run_job_check_clean(&result);
}

/* Ranks and folder must not outlive a head that was killed. */
static void test_head_killed(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "signal", 2, .signal = SIGKILL }, &result);
    assert_int_equal(result.status, 101);
    run_job_check_clean(&result);
}

static void test_daemon_killed(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "signal", 3, .signal = SIGKILL, .victim = VICTIM_DAEMON }, &result);
    if (result.status != ERR_PEER)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_says(&result,
                       " is lost (its daemon was killed by signal 9, Killed), with ranks 0 to 2");
    run_job_check_says(&result, "3 other ranks terminated as a result");
    run_job_check_clean(&result);
}

/* Its ranks make progress that the head does not see: they are not to blame. */
static void test_daemon_stopped(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "busy", 2, .hang_seconds = 1, .hang_abort_seconds = 2,
                                .signal = SIGSTOP, .victim = VICTIM_DAEMON },
            &result);
    if (result.status != ERR_PEER)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_says(&result, "lmtrain: warn: the daemon of node ");
    run_job_check_says(&result, "lmtrain: error: the daemon of node ");
    run_job_check_says(
        &result,
        "has been stopped by a signal for 2 s: its ranks cannot be monitored (hint: kill -CONT ");
    assert_null(strstr(result.err, "made no progress"));
    assert_null(strstr(result.err, "no progress for"));
    run_job_check_clean(&result);

    setenv("LMTRAIN_LINK_SECONDS", "1", 1); /* silent after half of it, lost after three times */
    run_job(&(struct job_plan){ "busy", 2, .hang_seconds = 2, .hang_abort_seconds = 2,
                                .signal = SIGSTOP, .victim = VICTIM_DAEMON, .hosts = "alpha,beta" },
            &result);
    unsetenv("LMTRAIN_LINK_SECONDS");
    if (result.status != ERR_PEER)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_says(&result, "lmtrain: error: no heartbeat from the daemon of node beta for ");
    assert_null(strstr(result.err, "made no progress"));
    free(result.out);
    free(result.err);
}

/* Nobody is left to remove the folder: that goes with the next start. */
static void test_both_killed(void **state)
{
    struct job_result killed, next;

    (void)state;
    run_job(&(struct job_plan){ "signal", 2, .signal = SIGKILL, .victim = VICTIM_BOTH }, &killed);
    assert_int_equal(killed.status, 101);
    run_job_await_processes(&killed); /* a daemon that is still dying has its folder */
    run_job(&(struct job_plan){ .scenario = "short", .n_ranks = 1 }, &next);
    assert_int_equal(next.status, 0);
    run_job_check_clean(&next);
    run_job_check_clean(&killed);
}

static void test_signals_on_other_hosts(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "signal", 2, .signal = SIGTERM, .hosts = "alpha,beta" }, &result);
    if (result.status != ERR_REQUEUE)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    assert_string_equal(result.out, "ready\nsignal 15\n");
    run_job_check_clean(&result);
}

/* Whoever is killed, on both hosts all is gone. */
static void test_killed_with_hosts(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "signal", 4, .signal = SIGKILL, .hosts = "alpha,beta" }, &result);
    assert_int_equal(result.status, 101);
    run_job_check_clean(&result);

    run_job(&(struct job_plan){ "signal", 3, .signal = SIGKILL, .victim = VICTIM_DAEMON,
                                .hosts = "alpha,beta" },
            &result);
    assert_int_equal(result.status, ERR_PEER);
    run_job_check_says(&result, "node beta is lost (its link closed), with rank 2");
    free(result.out);
    free(result.err);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_passed_on),
        cmocka_unit_test(test_signal_twice),
        cmocka_unit_test(test_nohup),
        cmocka_unit_test(test_stop_while_starting),
        cmocka_unit_test(test_broken_connections),
        cmocka_unit_test(test_head_killed),
        cmocka_unit_test(test_daemon_killed),
        cmocka_unit_test(test_daemon_stopped),
        cmocka_unit_test(test_both_killed),
        cmocka_unit_test(test_signals_on_other_hosts),
        cmocka_unit_test(test_killed_with_hosts),
    };

    run_job_as_daemon(argc, argv);
    if (argc > 1 && run_job_is_rank())
        return play(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
