/*
 * supervise_test.c - ranks that end well, die, hang and are stopped, under the real PMIx server
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "launch/launch.h"
#include "launch/progress.h"
#include "support/run_job.h"

/* ---- the ranks --------------------------------------------------------------------------------
 */

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    signalled = number;
}

static void set_progress(const struct launch_rank *rank, const char *text, int waits)
{
    struct progress_slot *slot = progress_join(rank->local_rank);

    snprintf(slot->text, sizeof slot->text, "%s", text);
    atomic_store(&slot->step, 7);
    atomic_store(&slot->micro_batch, 3);
    atomic_store(&slot->op, 12);
    atomic_store(&slot->waits, waits);
    atomic_fetch_add(&slot->beat, 1);
}

static int leave(int status)
{
    launch_leave();
    return status;
}

/* All put, all get; the world's shape is what it should be. */
static int play_exchange(const struct launch_rank *rank)
{
    struct err err;
    char mine[32];

    snprintf(mine, sizeof mine, "hello from %d", rank->world_rank);
    if (launch_put("greeting", mine, sizeof mine, &err) || launch_fence(30, &err))
        launch_abort((int)err.code, err.text);
    for (int other = 0; other < rank->world_size; other++) {
        char theirs[32], expected[32];
        size_t n_bytes = sizeof theirs;

        if (launch_get("greeting", other, theirs, &n_bytes, 10, &err))
            launch_abort((int)err.code, err.text);
        snprintf(expected, sizeof expected, "hello from %d", other);
        CHECK(n_bytes == sizeof theirs);
        CHECK(!strcmp(theirs, expected));
    }
    size_t too_few = 3;
    CHECK(launch_get("greeting", 0, mine, &too_few, 10, &err) == -1);
    CHECK(err.code == ERR_PEER);
    CHECK(rank->local_size == rank->world_size && rank->local_rank == rank->world_rank);
    printf("rank %d of %d\n", rank->world_rank, rank->world_size);
    fprintf(stderr, "plain stderr of %d\n", rank->world_rank);
    log_warn("a warning of %d", rank->world_rank);
    return leave(0);
}

/* Rank 1 fails in the way that scenario says; the others wait in a fence for it. */
static int play_failure(const struct launch_rank *rank, const char *scenario)
{
    struct err err;

    CHECK(!launch_fence(30, &err));
    set_progress(rank, "attention layers.9", 0);
    if (rank->world_rank != 1) {
        launch_fence(30, &err);
        launch_abort(ERR_PEER, err.text);
    }
    usleep(20000);
    if (!strcmp(scenario, "kill"))
        raise(SIGKILL);
    if (!strcmp(scenario, "bug"))
        CHECK(rank->world_rank == 0);
    if (!strcmp(scenario, "exit3")) {
        fprintf(stderr, "last words\n");
        _exit(3);
    }
    if (!strcmp(scenario, "exit0"))
        _exit(0);
    if (!strcmp(scenario, "peer"))
        _exit(ERR_PEER);
    launch_abort(4, "device is full");
}

/* Ranks that don't end by SIGTERM, with a child each, while rank 1 dies. */
static int play_stubborn(const struct launch_rank *rank)
{
    struct err err;
    pid_t child;

    signal(SIGTERM, SIG_IGN);
    child = fork();
    if (!child) {
        for (;;)
            pause();
    }
    run_job_note_pid(child);
    CHECK(!launch_fence(30, &err));
    if (rank->world_rank == 1)
        raise(SIGKILL);
    for (;;)
        pause();
}

static int play_hang(const struct launch_rank *rank)
{
    struct err err;

    CHECK(!launch_fence(30, &err));
    if (rank->world_rank == 1)
        set_progress(rank, "attention layers.9", 0);
    else
        set_progress(rank, "reduce_scatter dp layers.7", 1);
    for (;;)
        pause();
}

/* Rank 2 saw a peer die and is faster to end than the one that failed. */
static int play_late_cause(const struct launch_rank *rank)
{
    struct err err;

    CHECK(!launch_fence(30, &err));
    if (rank->world_rank == 2)
        _exit(ERR_PEER);
    usleep(30000);
    if (rank->world_rank == 1)
        _exit(4);
    for (;;)
        pause();
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
    return leave(ERR_REQUEUE);
}

/* The time from the supervisor's start until this rank is past a fence. */
static int play_fence(const struct launch_rank *rank)
{
    struct err err;
    struct timespec now;

    CHECK(!launch_fence(30, &err));
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!rank->world_rank)
        printf("%.6f\n", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    fflush(stdout);
    return leave(0);
}

/* A fence to which a rank that left early never comes must end by itself. */
static int play_fence_timeout(const struct launch_rank *rank)
{
    struct err err = { 0 };

    CHECK(!launch_fence(30, &err));
    if (rank->world_rank == 1)
        return leave(0);
    CHECK(launch_fence(1, &err) == -1);
    CHECK(err.code == ERR_PEER);
    return leave(0);
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
    if (!strcmp(scenario, "exchange"))
        return play_exchange(&rank);
    if (!strcmp(scenario, "stubborn"))
        return play_stubborn(&rank);
    if (!strcmp(scenario, "hang"))
        return play_hang(&rank);
    if (!strcmp(scenario, "late"))
        return play_late_cause(&rank);
    if (!strcmp(scenario, "signal"))
        return play_wait_for_signal(&rank);
    if (!strcmp(scenario, "fence"))
        return play_fence(&rank);
    if (!strcmp(scenario, "fence-timeout"))
        return play_fence_timeout(&rank);
    return play_failure(&rank, scenario);
}

/* ---- the tests --------------------------------------------------------------------------------
 */

static void assert_says(const struct job_result *result, const char *words)
{
    if (!strstr(result->err, words))
        fail_msg("'%s' is not in:\n%s", words, result->err);
}

static void test_exchange(void **state)
{
    struct job_result result;
    char path[128], text[256] = "";

    (void)state;
    run_job(&(struct job_plan){ .scenario = "exchange", .n_ranks = 4 }, &result);
    if (result.status)
        fail_msg("status %d, stderr:\n%s", result.status, result.err);
    assert_string_equal(result.out, "rank 0 of 4\n");
    assert_says(&result, "plain stderr of 0\n");
    assert_says(&result, "rank 3: lmtrain: warn: a warning of 3\n");
    assert_null(strstr(result.err, "plain stderr of 2"));
    snprintf(path, sizeof path, "%s/log/rank-2.log", result.folder);
    FILE *log = fopen(path, "re");
    assert_non_null(log);
    size_t n = fread(text, 1, sizeof text - 1, log);
    fclose(log);
    text[n] = '\0';
    assert_non_null(strstr(text, "rank 2 of 4\n"));
    assert_non_null(strstr(text, "plain stderr of 2\n"));
    assert_non_null(strstr(text, "lmtrain: warn: a warning of 2\n"));
    run_job_check_clean(&result);
}

static void check_failure(const char *scenario, int status, const char *words)
{
    struct job_result result;

    run_job(&(struct job_plan){ .scenario = scenario, .n_ranks = 3 }, &result);
    if (result.status != status)
        fail_msg("%s: status %d, not %d; stderr:\n%s", scenario, result.status, status, result.err);
    assert_says(&result, "rank 1 on ");
    assert_says(&result, words);
    assert_says(&result, "attention layers.9, step 7, micro-batch 3");
    assert_says(&result, "2 other ranks ended in consequence");
    assert_true(result.seconds < 15);
    run_job_check_clean(&result);
}

static void test_deaths(void **state)
{
    (void)state;
    check_failure("kill", ERR_PEER, "was killed by signal 9 (Killed)");
    check_failure("bug", 134, "was killed by signal 6");
    check_failure("exit3", 3, "exited with status 3");
    check_failure("exit3", 3, "last words");
    check_failure("exit0", 1, "exited with status 0 without leaving the job");
    check_failure("abort", 4, "failed with status 4: device is full");
}

/* All say that a peer died, and who was first cannot be told: but it ends, with that status. */
static void test_only_peers(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ .scenario = "peer", .n_ranks = 3 }, &result);
    assert_int_equal(result.status, ERR_PEER);
    assert_says(&result, "status 5");
    run_job_check_clean(&result);
}

static void test_stubborn(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ .scenario = "stubborn", .n_ranks = 3 }, &result);
    assert_int_equal(result.status, ERR_PEER);
    assert_says(&result, "rank 1 on ");
    run_job_check_clean(&result);
}

static void test_late_cause(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ .scenario = "late", .n_ranks = 3 }, &result);
    assert_int_equal(result.status, 4);
    assert_says(&result, "rank 1 on ");
    assert_null(strstr(result.err, "rank 2 on "));
    run_job_check_clean(&result);
}

static void test_hang(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ "hang", 3, .hang_seconds = 0.5, .hang_abort_seconds = 1.5 },
            &result);
    assert_int_equal(result.status, ERR_PEER);
    assert_says(&result, "no progress for");
    assert_says(&result, "): in attention layers.9, step 7, micro-batch 3 since ");
    assert_says(&result, "): waits in reduce_scatter dp layers.7, step 7, micro-batch 3 since ");
    assert_says(&result, "rank 1 on ");
    assert_says(&result, "made no progress for");
    run_job_check_clean(&result);
}

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

/* Ranks must not outlive a supervisor that was killed; its folder goes with the next one's start.
 */
static void test_supervisor_killed(void **state)
{
    struct job_result killed, next;
    pid_t supervisor;

    (void)state;
    run_job(&(struct job_plan){ "signal", 2, .signal = SIGKILL }, &killed);
    assert_int_equal(killed.status, 101);
    supervisor = killed.supervisor;
    run_job(&(struct job_plan){ .scenario = "exchange", .n_ranks = 1 }, &next);
    assert_int_equal(next.status, 0);
    run_job_check_clean(&next);
    killed.supervisor = supervisor;
    run_job_check_clean(&killed);
}

static void test_fence_times_out(void **state)
{
    struct job_result result;

    (void)state;
    run_job(&(struct job_plan){ .scenario = "fence-timeout", .n_ranks = 2 }, &result);
    if (result.status)
        fail_msg("status %d; stderr:\n%s", result.status, result.err);
    run_job_check_clean(&result);
}

static void test_many_ranks(void **state)
{
    static const int counts[] = { 1, 8, 32 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct job_result result;
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        double start = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        run_job(&(struct job_plan){ .scenario = "fence", .n_ranks = counts[i] }, &result);
        if (result.status)
            fail_msg("status %d; stderr:\n%s", result.status, result.err);
        double seconds = strtod(result.out, NULL) - start;
        print_message("%d ranks past the first fence: %.0f ms\n", counts[i], seconds * 1e3);
        assert_true(seconds > 0);
        assert_true(seconds < 10);
        run_job_check_clean(&result);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange),          cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_only_peers),        cmocka_unit_test(test_stubborn),
        cmocka_unit_test(test_late_cause),        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_signals_passed_on), cmocka_unit_test(test_supervisor_killed),
        cmocka_unit_test(test_fence_times_out),   cmocka_unit_test(test_many_ranks),
    };

    if (argc > 1 && run_job_is_rank())
        return play(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
