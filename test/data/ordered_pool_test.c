/*
 * ordered_pool_test.c - jobs come back in their order, each done once, by any number of threads
 */
#include "data_fixture.h"

#include <unistd.h>

#include "data/stream/ordered_pool.h"

#define N 500

struct job {
    int number, result, times;
};

struct worker {
    int started;
};

static int n_started, n_released, fails_at = -1;

static void work(void *job_of, void *worker_of)
{
    struct job *job = job_of;

    assert_int_equal(((struct worker *)worker_of)->started, 1);
    if (job->number % 7 == 0)
        usleep(200); /* some take longer than those behind them */
    job->result = job->number * 3 + 1;
    job->times++;
}

static int start_worker(void *worker, void *context, struct err *err)
{
    (void)context;
    if (n_started == fails_at)
        return err_set(err, ERR_CONFIG, "no more workers");
    ((struct worker *)worker)->started = 1;
    n_started++;
    return 0;
}

static void release_worker(void *worker)
{
    n_released += ((struct worker *)worker)->started;
}

static struct ordered_pool_options options_for(int n_threads)
{
    n_started = n_released = 0;
    fails_at = -1;
    return (struct ordered_pool_options){ .work = work,
                                          .n_threads = n_threads,
                                          .job_bytes = sizeof(struct job),
                                          .worker_bytes = sizeof(struct worker),
                                          .start_worker = start_worker,
                                          .release_worker = release_worker };
}

static void take(struct ordered_pool *ordered, int *n_taken)
{
    struct job *job = ordered_pool_take(ordered);

    assert_non_null(job);
    assert_int_equal(job->number, *n_taken);
    assert_int_equal(job->result, *n_taken * 3 + 1);
    assert_int_equal(job->times, 1);
    ++*n_taken;
}

static void test_order(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 8; n_threads *= 2) {
        struct ordered_pool_options options = options_for(n_threads);
        struct ordered_pool *ordered;
        struct err err;
        int n_taken = 0;

        assert_int_equal(ordered_pool_create(&ordered, &options, &err), 0);
        assert_null(ordered_pool_take(ordered));
        for (int i = 0; i < N; i++) {
            struct job *job;

            while (!(job = ordered_pool_next(ordered)))
                take(ordered, &n_taken);
            *job = (struct job){ .number = i };
            ordered_pool_submit(ordered);
        }
        while (n_taken < N)
            take(ordered, &n_taken);
        assert_null(ordered_pool_take(ordered));
        ordered_pool_destroy(ordered);
        assert_int_equal(n_started, n_threads);
        assert_int_equal(n_released, n_threads);
    }
}

/* Given up with jobs under way, and with a worker that can't be. */
static void test_ends(void **state)
{
    struct ordered_pool_options options = options_for(3);
    struct ordered_pool *ordered;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(ordered_pool_create(&ordered, &options, &err), 0);
    for (int i = 0; i < 5; i++) {
        *(struct job *)ordered_pool_next(ordered) = (struct job){ .number = 7 * i };
        ordered_pool_submit(ordered);
    }
    ordered_pool_destroy(ordered);
    assert_int_equal(n_released, 3);
    options = options_for(3);
    fails_at = 2;
    assert_int_equal(ordered_pool_create(&ordered, &options, &err), -1);
    assert_string_equal(err.text, "no more workers");
    assert_int_equal(n_released, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_order), cmocka_unit_test(test_ends) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
