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
    struct counter counter = { 0, order };
    struct worker *worker;
    struct err err;

    (void)state;
    assert_int_equal(worker_create(&worker, -1, &err), 0);
    for (int i = 0; i < N; i++) {
        items[i] = (struct item){ &counter, i };
        assert_int_equal(worker_post(worker, append, &items[i]), i + 1);
    }
    assert_int_equal(worker_wait(worker, 3000, &err), 0);
    assert_true(worker_done(worker, 3000));
    assert_int_equal(worker_wait(worker, N, &err), 0);
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
    uint64_t ticket = worker_post(worker, wait_for_flag, &flag);
    assert_true(worker_done(worker, 0));
    assert_false(worker_done(worker, ticket));
    atomic_store(&flag, 1);
    assert_int_equal(worker_wait(worker, ticket, &err), 0);
    assert_true(worker_done(worker, ticket));
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
    uint64_t failed = worker_post(worker, refuse, &first);
    worker_post(worker, count, &counted);
    uint64_t last = worker_post(worker, refuse, &second);
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
        worker_post(worker, count, &counted);
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
        cmocka_unit_test(test_core),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
