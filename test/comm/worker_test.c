/*
 * worker_test.c - order, tickets, a full ring, the first error
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/comm.h"
#include "comm/worker.h"

struct counter {
    int n;
    int *order;
};

struct item {
    struct counter *counter;
    int number;
};

static int append(void *argument, struct err *err)
{
    struct item *item = argument;

    (void)err;
    item->counter->order[item->counter->n++] = item->number;
    return 0;
}

/* More work than the ring holds, in order, while the worker is slow to start. */
static void test_order(void **state)
{
    enum { N = 5000 };
    static int order[N];
    static struct item items[N];
    uint64_t middle = 0, ticket = 0;
    struct counter counter = { 0, order };
    struct worker *worker;
    struct err err;

    (void)state;
    assert_int_equal(worker_create(&worker, -1, &err), 0);
    for (int i = 0; i < N; i++) {
        items[i] = (struct item){ &counter, i };
        ticket = worker_post(worker, 1, append, &items[i]);
        assert_true(ticket > 0);
        if (i == 2999)
            middle = ticket;
    }
    assert_int_equal(worker_wait(worker, middle, &err), 0);
    assert_true(worker_done(worker, middle));
    assert_int_equal(worker_wait(worker, ticket, &err), 0);
    assert_int_equal(counter.n, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(order[i], i);
    assert_int_equal(worker_wait(worker, 0, &err), 0);
    worker_destroy(worker);
}

static int wait_for_flag(void *argument, struct err *err)
{
    (void)err;
    while (!atomic_load((_Atomic int *)argument))
        usleep(100);
    return 0;
}

static void test_done_does_not_block(void **state)
{
    _Atomic int flag = 0;
    struct worker *worker;
    struct err err;

    (void)state;
    assert_int_equal(worker_create(&worker, -1, &err), 0);
    uint64_t ticket = worker_post(worker, 0, wait_for_flag, &flag);
    assert_true(worker_done(worker, 0));
    assert_false(worker_done(worker, ticket));
    atomic_store(&flag, 1);
    assert_int_equal(worker_wait(worker, ticket, &err), 0);
    assert_true(worker_done(worker, ticket));
    worker_destroy(worker);
}

/* Waits for another piece, as a receive waits for what another stream sends. */
static int turn_until_flag(void *argument, struct err *err)
{
    (void)err;
    return atomic_load((_Atomic int *)argument) ? COMM_DONE : COMM_WAITING;
}

static int raise_flag(void *argument, struct err *err)
{
    (void)err;
    atomic_store((_Atomic int *)argument, 1);
    return COMM_DONE;
}

/* What one stream waits for comes through another, in whatever order they were given. */
static void test_streams(void **state)
{
    _Atomic int flags[WORKER_STREAMS] = { 0 };
    uint64_t waits[WORKER_STREAMS] = { 0 };
    struct worker *worker;
    struct err err;

    (void)state;
    assert_int_equal(worker_create(&worker, -1, &err), 0);
    for (int i = 0; i + 1 < WORKER_STREAMS; i++)
        waits[i] = worker_post(worker, i, turn_until_flag, &flags[i]);
    usleep(2000); /* it sleeps by now */
    for (int i = 0; i + 1 < WORKER_STREAMS; i++)
        assert_false(worker_done(worker, waits[i]));
    for (int i = 0; i + 1 < WORKER_STREAMS; i++) {
        worker_post(worker, WORKER_STREAMS - 1, raise_flag, &flags[i]);
        assert_int_equal(worker_wait(worker, waits[i], &err), 0);
        assert_true(i + 2 == WORKER_STREAMS || !worker_done(worker, waits[i + 1]));
    }
    worker_destroy(worker);
}

static int refuse(void *argument, struct err *err)
{
    return err_set(err, ERR_PEER, "failed %d", *(int *)argument);
}

static int count(void *argument, struct err *err)
{
    (void)err;
    ++*(int *)argument;
    return 0;
}

static void test_first_error(void **state)
{
    int counted = 0, first = 1, second = 2;
    struct worker *worker;
    struct err err;

    (void)state;
    assert_int_equal(worker_create(&worker, -1, &err), 0);
    assert_int_equal(worker_call(worker, count, &counted, &err), 0);
    uint64_t failed = worker_post(worker, 2, refuse, &first);
    worker_post(worker, 2, count, &counted);
    uint64_t last = worker_post(worker, 2, refuse, &second);
    assert_int_equal(worker_wait(worker, last, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_string_equal(err.text, "failed 1");
    assert_int_equal(worker_wait(worker, failed, &err), -1);
    assert_int_equal(worker_call(worker, count, &counted, &err), -1);
    assert_string_equal(err.text, "failed 1");
    assert_int_equal(counted, 1);
    worker_destroy(worker);
}

/* Destroying does what was given first. */
static void test_destroy_finishes(void **state)
{
    int counted = 0;
    struct worker *worker;
    struct err err;

    (void)state;
    assert_int_equal(worker_create(&worker, -1, &err), 0);
    for (int i = 0; i < 100; i++)
        worker_post(worker, 2, count, &counted);
    worker_destroy(worker);
    assert_int_equal(counted, 100);
    worker_destroy(NULL);
}

static int read_affinity(void *argument, struct err *err)
{
    (void)err;
    return sched_getaffinity(0, sizeof(cpu_set_t), argument);
}

static void test_core(void **state)
{
    struct worker *worker;
    struct err err = { .code = ERR_NONE };
    cpu_set_t allowed, bound;
    int core = 0;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    while (!CPU_ISSET((size_t)core, &allowed))
        core++;
    assert_int_equal(worker_create(&worker, core, &err), 0);
    assert_int_equal(worker_call(worker, read_affinity, &bound, &err), 0);
    assert_int_equal(CPU_COUNT(&bound), 1);
    assert_true(CPU_ISSET((size_t)core, &bound));
    worker_destroy(worker);
    assert_int_equal(worker_create(&worker, CPU_SETSIZE + 5, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_done_does_not_block),
        cmocka_unit_test(test_first_error), cmocka_unit_test(test_destroy_finishes),
        cmocka_unit_test(test_core),        cmocka_unit_test(test_streams),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
