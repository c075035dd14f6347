/*
 * comm_process.c - see comm_process.h
 */
#include "support/comm_process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "support/comm_exercise.h"
#include "support/run_job.h"

/* The processor time that this process takes while it waits half a second for a peer. */
static void try_idle_wait(struct comm *comm)
{
    struct comm_group *world = comm_exercise_world(comm, 20);
    struct timespec before, after;
    struct err err;

    CHECK(!comm_barrier(world, &err));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    if (comm_world_rank(comm) == 0)
        usleep(500000);
    CHECK(!comm_barrier(world, &err));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    CHECK((double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec) <
          0.25);
}

/* Rank 1 dies in the middle of a collective. */
static int die(struct comm *comm)
{
    struct comm_group *world = comm_exercise_world(comm, 20);
    struct err err;

    if (comm_world_rank(comm) == 1)
        raise(SIGKILL);
    if (comm_barrier(world, &err))
        launch_abort(ERR_PEER, err.text);
    return 0;
}

/* Rank 1 fails alone and leaves while the others wait: leaving must wait for nobody. */
static int fail_alone(struct comm *comm)
{
    struct comm_group *world = comm_exercise_world(comm, 20);
    struct err err;

    if (comm_world_rank(comm) == 1) {
        comm_destroy(comm);
        usleep(50000); /* the others see it first */
        launch_abort(ERR_DATA, "no such file");
    }
    if (comm_barrier(world, &err))
        launch_abort(ERR_PEER, err.text);
    return 0;
}

/* Rank 0 has still to write something when the others have given up waiting for it. */
static void leave(struct comm *comm, const char *scenario)
{
    if (!strcmp(scenario, "late") && comm_world_rank(comm) == 0)
        sleep(4);
    comm_destroy(comm);
    launch_leave();
    fflush(NULL);
    _exit(
        0); /* no leak check: Open MPI has leaks in modules that it unloads, past any suppression */
}

int comm_process_play(const char *scenario, comm_process_fn create)
{
    struct launch_rank rank;
    struct comm *comm;
    struct err err;

    run_job_note_pid(getpid());
    if (launch_join(&rank, &err) || create(&comm, &rank, &err)) {
        log_error("%s", err.text);
        return 1;
    }
    CHECK(comm_world_size(comm) == rank.world_size);
    CHECK(comm_world_rank(comm) == rank.world_rank);
    if (!strcmp(scenario, "die"))
        return die(comm);
    if (!strcmp(scenario, "fail-alone"))
        return fail_alone(comm);
    comm_exercise_calls(comm, 1000);
    if (!strcmp(scenario, "late"))
        leave(comm, scenario);
    comm_exercise_calls(comm, 5000);
    comm_exercise_overlap(comm, 300000);
    comm_exercise_reduce(comm);
    for (uint64_t seed = 0; seed < 3; seed++)
        comm_exercise_random(comm, seed, 60);
    try_idle_wait(comm);
    leave(comm, scenario);
    return 0;
}

static void try_calls(const char *hosts, int n_ranks)
{
    struct job_plan plan = { .scenario = "calls", .n_ranks = n_ranks, .hosts = hosts };
    struct job_result result;

    run_job(&plan, &result);
    if (result.status)
        fail_msg("%d ranks: status %d; stderr:\n%s", n_ranks, result.status, result.err);
    assert_string_equal(result.out, "");
    assert_string_equal(result.err, "");
    run_job_check_clean(&result);
}

void comm_process_test_calls(const char *hosts, int n_more)
{
    for (int n_ranks = 2; n_ranks <= 4; n_ranks++)
        try_calls(hosts, n_ranks);
    if (n_more)
        try_calls(hosts, n_more);
}

static void check_failure(const char *hosts, const char *scenario, int status, const char *words)
{
    struct job_plan plan = { .scenario = scenario, .n_ranks = 3, .hosts = hosts };
    struct job_result result;

    run_job(&plan, &result);
    if (result.status != status || !strstr(result.err, words))
        fail_msg("status %d, not %d; stderr:\n%s", result.status, status, result.err);
    assert_true(result.seconds < 20);
    run_job_check_clean(&result);
}

void comm_process_test_failures(const char *hosts)
{
    check_failure(hosts, "die", ERR_PEER, "was killed by signal 9");
    check_failure(hosts, "fail-alone", ERR_DATA, "failed with status 3: no such file");
}

/* It waited for the others in MPI_Finalize, forever. */
void comm_process_test_late(void)
{
    struct job_result result;

    run_job(&(struct job_plan){ .scenario = "late", .n_ranks = 2 }, &result);
    if (result.status || result.seconds > 40)
        fail_msg("status %d after %.0f s; stderr:\n%s", result.status, result.seconds, result.err);
    run_job_check_clean(&result);
}
