/*
 * read_ahead_test.c - one piece of work at a time, in another thread, and its error
 */
#include "ckpt_fixture.h"

#include <pthread.h>

#include "ckpt/read_ahead.h"

struct work {
    pthread_t caller;
    int n, n_elsewhere, fails_at;
};

static int do_one(void *context, struct err *err)
{
    struct work *work = context;

    work->n++;
    work->n_elsewhere += !pthread_equal(work->caller, pthread_self());
    return work->n == work->fails_at ? err_set(err, ERR_DATA, "piece %d", work->n) : 0;
}

static void pieces_come_one_by_one(void **state)
{
    struct work work = { .caller = pthread_self(), .fails_at = 70 };
    struct read_ahead *ahead;
    struct err err;

    (void)state;
    assert_ok(read_ahead_create(&ahead, do_one, &work, &err), &err);
    for (int i = 1; i < 70; i++) {
        read_ahead_begin(ahead);
        assert_ok(read_ahead_end(ahead, &err), &err);
        assert_int_equal(work.n, i);
    }
    read_ahead_begin(ahead);
    assert_fails(read_ahead_end(ahead, &err), &err, ERR_DATA, "piece 70");
    read_ahead_begin(ahead);
    assert_ok(read_ahead_end(ahead, &err), &err);
    assert_int_equal(work.n_elsewhere, 71);
    read_ahead_destroy(ahead);
}

static void destroying_waits(void **state)
{
    struct work work = { .caller = pthread_self() };
    struct read_ahead *ahead;
    struct err err;

    (void)state;
    read_ahead_destroy(NULL);
    assert_ok(read_ahead_create(&ahead, do_one, &work, &err), &err);
    read_ahead_begin(ahead);
    read_ahead_destroy(ahead);
    assert_int_equal(work.n, 1);
    assert_ok(read_ahead_create(&ahead, do_one, &work, &err), &err);
    read_ahead_destroy(ahead);
    assert_int_equal(work.n, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_come_one_by_one),
        cmocka_unit_test(destroying_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
