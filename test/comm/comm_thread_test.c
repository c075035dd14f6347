/*
 * comm_thread_test.c - ranks as threads: every call, random groups, blocking sends, ends that leave
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "support/comm_exercise.h"

typedef void (*rank_fn)(struct comm *comm, void *context);

struct rank_thread {
    pthread_t thread;
    struct comm_hub *hub;
    int rank;
    rank_fn fn;
    void *context;
};

static void *rank_main(void *argument)
{
    struct rank_thread *mine = argument;
    struct comm *comm;
    struct err err;

    CHECK(!comm_thread_create(&comm, mine->hub, mine->rank, &err));
    CHECK(comm_world_rank(comm) == mine->rank);
    mine->fn(comm, mine->context);
    comm_destroy(comm);
    return NULL;
}

static void run_ranks(int n_ranks, rank_fn fn, void *context)
{
    struct rank_thread threads[16];
    struct comm_hub *hub;
    struct err err;

    assert_int_equal(comm_hub_create(&hub, n_ranks, &err), 0);
    for (int i = 0; i < n_ranks; i++) {
        threads[i] = (struct rank_thread){ .hub = hub, .rank = i, .fn = fn, .context = context };
        assert_int_equal(pthread_create(&threads[i].thread, NULL, rank_main, &threads[i]), 0);
    }
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i].thread, NULL);
    comm_hub_destroy(hub);
}

static void test_all_calls(void **state)
{
    static const int sizes[] = { 1, 2, 3, 4, 7, 8 };

    (void)state;
    for (int i = 0; i < 6; i++)
        run_ranks(sizes[i], comm_exercise_all, NULL);
}

static void random_calls(struct comm *comm, void *seed)
{
    comm_exercise_random(comm, *(uint64_t *)seed, 150);
}

static void test_random_calls(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++)
        run_ranks(1 + (int)(seed % 8), random_calls, &seed);
}

static void test_send_blocks(void **state)
{
    _Atomic int received = 0;

    (void)state;
    run_ranks(2, comm_exercise_send_waits, &received);
}

static void test_leaving(void **state)
{
    (void)state;
    run_ranks(3, comm_exercise_one_leaves, NULL);
    run_ranks(3, comm_exercise_early_leaver, NULL);
}

static void test_self(void **state)
{
    struct comm *comm;
    struct err err;

    (void)state;
    assert_int_equal(comm_self_create(&comm, &err), 0);
    assert_int_equal(comm_world_size(comm), 1);
    comm_exercise_calls(comm, 1000);
    comm_exercise_random(comm, 1, 20);
    comm_exercise_reduce(comm);
    comm_destroy(comm);
    comm_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),         cmocka_unit_test(test_all_calls),
        cmocka_unit_test(test_random_calls), cmocka_unit_test(test_send_blocks),
        cmocka_unit_test(test_leaving),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
