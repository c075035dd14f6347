/*
 * pool_test.c - every tile once, whatever the number of threads, and nothing lost between runs
 */
#include "device/pool.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define N_TILES_MAX 1000

static struct pool *make_pool(int n_threads)
{
    struct pool *pool;
    struct err err;

    if (pool_create(&pool, n_threads, NULL, &err))
        fail_msg("%s", err.text);
    assert_int_equal(pool_n_threads(pool), n_threads);
    return pool;
}

struct count {
    _Atomic int tiles[N_TILES_MAX];
    _Atomic int busy[16]; /* by thread */
    int n_threads;
};

static void count_tile(void *context, int64_t tile, int thread)
{
    struct count *count = context;

    /* Not cmocka's, which would jump out of another thread's stack. */
    CHECK(0 <= thread);
    CHECK(thread < count->n_threads);
    CHECK(atomic_fetch_add(&count->busy[thread], 1) == 0);
    atomic_fetch_add(&count->tiles[tile], 1);
    atomic_fetch_sub(&count->busy[thread], 1);
}

static void test_each_tile_once(void **state)
{
    static const int thread_counts[] = { 1, 2, 3, 7 };
    static const int tile_counts[] = { 0, 1, 2, 3, 8, N_TILES_MAX };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct pool *pool = make_pool(thread_counts[i]);

        for (int j = 0; j < 6; j++) {
            struct count count = { .n_threads = thread_counts[i] };

            pool_run(pool, tile_counts[j], count_tile, &count);
            for (int tile = 0; tile < N_TILES_MAX; tile++)
                assert_int_equal(count.tiles[tile], tile < tile_counts[j]);
        }
        pool_destroy(pool);
    }
}

/* Each run reads what the one before wrote in plain memory, on other threads. */
struct chain {
    int64_t *from, *to;
    int64_t n;
};

static void chain_tile(void *context, int64_t tile, int thread)
{
    const struct chain *chain = context;

    (void)thread;
    chain->to[tile] = chain->from[(tile + 1) % chain->n] + 1;
}

static void test_many_runs_see_each_other(void **state)
{
    enum { N_RUNS = 20000, WIDTH = 5 };
    int64_t buffers[2][WIDTH] = { { 0, 10, 20, 30, 40 } };
    struct pool *pool = make_pool(3);

    (void)state;
    for (int i = 0; i < N_RUNS; i++) {
        struct chain chain = { buffers[i % 2], buffers[(i + 1) % 2], WIDTH };

        pool_run(pool, WIDTH, chain_tile, &chain);
    }
    for (int i = 0; i < WIDTH; i++)
        assert_int_equal(buffers[0][i], N_RUNS + (i + N_RUNS) % WIDTH * 10);
    pool_destroy(pool);
}

/* Threads that sleep are woken: the spin is over after a few milliseconds. */
static void test_sleepers_wake(void **state)
{
    struct pool *pool = make_pool(4);

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct count count = { .n_threads = 4 };

        usleep(3000);
        pool_run(pool, 50, count_tile, &count);
        for (int tile = 0; tile < 50; tile++)
            assert_int_equal(count.tiles[tile], 1);
    }
    pool_destroy(pool);
}

/* Two tiles that wait for each other end only if two threads run. */
struct meeting {
    _Atomic int n_arrived;
};

static void meet(void *context, int64_t tile, int thread)
{
    struct meeting *meeting = context;

    (void)tile;
    (void)thread;
    atomic_fetch_add(&meeting->n_arrived, 1);
    while (atomic_load(&meeting->n_arrived) < 2)
        sched_yield();
}

static void test_tiles_run_at_once(void **state)
{
    struct pool *pool = make_pool(2);

    (void)state;
    for (int i = 0; i < 50; i++) {
        struct meeting meeting = { 0 };

        if (i % 10 == 0)
            usleep(2000);
        pool_run(pool, 2, meet, &meeting);
        assert_int_equal(meeting.n_arrived, 2);
    }
    pool_destroy(pool);
}

static double cpu_seconds(void)
{
    struct timespec time;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void test_idle_threads_take_no_time(void **state)
{
    struct count count = { .n_threads = 4 };
    struct pool *pool = make_pool(4);
    double before;

    (void)state;
    pool_run(pool, 50, count_tile, &count);
    usleep(50000);
    before = cpu_seconds();
    usleep(200000);
    assert_true(cpu_seconds() - before < 0.02);
    pool_destroy(pool);
}

static void test_binds_and_unbinds_the_caller(void **state)
{
    cpu_set_t before, during, after;
    int cores[2] = { -1, -1 };
    struct pool *pool;
    struct err err;

    (void)state;
    sched_getaffinity(0, sizeof before, &before);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET((size_t)core, &before))
            cores[0] = cores[1] = core;
    if (pool_create(&pool, 2, cores, &err))
        fail_msg("%s", err.text);
    sched_getaffinity(0, sizeof during, &during);
    assert_int_equal(CPU_COUNT(&during), 1);
    assert_true(CPU_ISSET((size_t)cores[0], &during));
    pool_destroy(pool);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
}

struct spread {
    const struct pool *pool;
    cpu_set_t born, spread;
};

static void *spread_main(void *argument)
{
    struct spread *s = argument;

    sched_getaffinity(0, sizeof s->born, &s->born);
    pool_spread(s->pool);
    sched_getaffinity(0, sizeof s->spread, &s->spread);
    return NULL;
}

/* A thread of a bound caller is bound to its core, and need not stay there. */
static void test_spreads_other_threads(void **state)
{
    cpu_set_t before, bound, after;
    struct spread s;
    struct pool *pool;
    pthread_t thread;
    struct err err;
    int core = sched_getcpu();

    (void)state;
    sched_getaffinity(0, sizeof before, &before);
    if (pool_create(&pool, 1, &core, &err))
        fail_msg("%s", err.text);
    s.pool = pool;
    assert_int_equal(pthread_create(&thread, NULL, spread_main, &s), 0);
    pthread_join(thread, NULL);
    assert_int_equal(CPU_COUNT(&s.born), 1);
    assert_true(CPU_EQUAL(&s.spread, &before));
    sched_getaffinity(0, sizeof bound, &bound);
    assert_true(CPU_EQUAL(&bound, &s.born));
    pool_destroy(pool);

    if (pool_create(&pool, 1, NULL, &err))
        fail_msg("%s", err.text);
    pool_spread(pool);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&after, &before));
    pool_destroy(pool);
}

static void test_refuses_cores_that_are_not_there(void **state)
{
    struct pool *pool = NULL;
    cpu_set_t before, after;
    struct err err;

    (void)state;
    sched_getaffinity(0, sizeof before, &before);
    assert_int_equal(pool_create(&pool, 1, (int[]){ -1 }, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "core -1"));
    assert_int_equal(pool_create(&pool, 2, (int[]){ sched_getcpu(), CPU_SETSIZE - 1 }, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "cannot bind"));
    assert_null(pool);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
    pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_tile_once),
        cmocka_unit_test(test_many_runs_see_each_other),
        cmocka_unit_test(test_sleepers_wake),
        cmocka_unit_test(test_tiles_run_at_once),
        cmocka_unit_test(test_idle_threads_take_no_time),
        cmocka_unit_test(test_binds_and_unbinds_the_caller),
        cmocka_unit_test(test_spreads_other_threads),
        cmocka_unit_test(test_refuses_cores_that_are_not_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
