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

static void all_calls(struct comm *comm, void *context)
{
    (void)context;
    comm_exercise_calls(comm, 1000);
    comm_exercise_overlap(comm, 100000);
    comm_exercise_reduce(comm);
}

static void test_all_calls(void **state)
{
    static const int sizes[] = { 1, 2, 3, 4, 7, 8 };

    (void)state;
    for (int i = 0; i < 6; i++)
        run_ranks(sizes[i], all_calls, NULL);
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

/* A send must not return before its receive was called. */
static void send_then_receive(struct comm *comm, void *context)
{
    _Atomic int *received = context;
    struct comm_group *world = comm_exercise_world(comm, 0);
    int word = 42;
    struct err err;

    if (comm_world_rank(comm) == 0) {
        CHECK(!comm_send(world, &word, sizeof word, 1, &err));
        CHECK(atomic_load(received));
    } else {
        usleep(20000);
        atomic_store(received, 1);
        word = 0;
        CHECK(!comm_receive(world, &word, sizeof word, 0, &err));
        CHECK(word == 42);
    }
}

static void test_send_blocks(void **state)
{
    _Atomic int received = 0;

    (void)state;
    run_ranks(2, send_then_receive, &received);
}

/* Rank 2 leaves; a collective with it and a send to it fail, rank 0 and 1 alone go on. */
static void one_leaves(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0), *pair = NULL, *third = NULL;
    int rank = comm_world_rank(comm), words[3] = { rank };
    struct err err = { .code = ERR_NONE };

    (void)context;
    if (rank < 2)
        CHECK(!comm_group_create(&pair, comm, (int[]){ 1, 0 }, 2, 0, &err));
    if (rank != 1)
        CHECK(!comm_group_create(&third, comm, (int[]){ 0, 2 }, 2, 0, &err));
    if (rank == 2)
        return;
    CHECK(!comm_barrier(pair, &err));
    CHECK(comm_all_gather(world, &rank, words, sizeof rank, &err) == -1);
    CHECK(err.code == ERR_PEER);
    CHECK(strstr(err.text, "rank 2 has left"));
    CHECK(comm_barrier(world, &err) == -1);
    if (rank == 0) {
        CHECK(comm_send(third, words, 4, 1, &err) == -1);
        CHECK(comm_receive(third, words, 4, 1, &err) == -1);
        CHECK(comm_group_create(&third, comm, (int[]){ 2, 0 }, 2, 5, &err) == -1);
    }
    CHECK(!comm_barrier(pair, &err));
}

/* Of three that share a group, one that is done leaves; the others may still talk in it. */
static void early_leaver(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0);
    int rank = comm_world_rank(comm), word = 0;
    struct err err;

    (void)context;
    if (rank == 0)
        CHECK(!comm_receive(world, &word, sizeof word, 1, &err));
    if (rank == 1) {
        usleep(20000);
        CHECK(!comm_send(world, &word, sizeof word, 0, &err));
    }
}

static void test_leaving(void **state)
{
    (void)state;
    run_ranks(3, one_leaves, NULL);
    run_ranks(3, early_leaver, NULL);
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
