/*
 * ordered_pool_test.c - jobs come back in their order, each done once, by any number of threads
 */
#include "data_fixture.h"

#include <pthread.h>
#include <unistd.h>

#include "data/stream/ordered_pool.h"

#define N 500

struct job {
    int number, result, times;
    pthread_t thread;
};

struct test_worker {
    int started;
};

static int n_started, n_released, fails_at = -1;

static void work(void *job_of, void *worker_of)
{
    struct job *job = job_of;

    assert_int_equal(((struct test_worker *)worker_of)->started, 1);
    if (job->number % 7 == 0)
        usleep(200); /* some take longer than those behind them */
    job->result = job->number * 3 + 1;
    job->times++;
    job->thread = pthread_self();
}

static int start_worker(void *worker, void *context, struct err *err)
{
    (void)context;
    if (n_started == fails_at)
        return err_set(err, ERR_CONFIG, "no more workers");
    ((struct test_worker *)worker)->started = 1;
    n_started++;
    return 0;
}

static void release_worker(void *worker)
{
    n_released += ((struct test_worker *)worker)->started;
}

static struct ordered_pool_options options_for(int n_threads)
{
    n_started = n_released = 0;
    fails_at = -1;
    return (struct ordered_pool_options){ .work = work,
                                          .n_threads = n_threads,
                                          .job_bytes = sizeof(struct job),
                                          .worker_bytes = sizeof(struct test_worker),
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

static int start_job(void *job, void *context, struct err *err)
{
    int *n_left = context;

    ((struct job *)job)->times = 100;
    return --*n_left < 0 ? err_set(err, ERR_CONFIG, "no more jobs") : 0;
}

static int n_jobs_released;

static void release_job(void *job)
{
    int times = ((struct job *)job)->times;

    assert_true(times == 0 || times == 100);
    n_jobs_released++;
}

/* Jobs are prepared before any is returned; if one can't be, all are released. */
static void test_jobs_start(void **state)
{
    (void)state;
    for (int n_left = 0; n_left <= 5; n_left++) {
        int left = n_left;
        struct ordered_pool_options options = { .work = work,
                                                .n_threads = 2,
                                                .n_jobs = 5,
                                                .job_bytes = sizeof(struct job),
                                                .start_job = start_job,
                                                .release_job = release_job,
                                                .context = &left };
        struct ordered_pool *pool;
        struct err err = { 0 };
        int rc = ordered_pool_create(&pool, &options, &err);

        if (rc == 0) {
            assert_int_equal(((struct job *)ordered_pool_next(pool))->times, 100);
            ordered_pool_destroy(pool);
        } else {
            assert_string_equal(err.text, "no more jobs");
        }
        assert_int_equal(rc, n_left == 5 ? 0 : -1);
        assert_int_equal(n_jobs_released, 5);
        n_jobs_released = 0;
    }
}

/* One thread is the caller's, unless it is to work in the background. */
static void test_background(void **state)
{
    (void)state;
    for (int background = 0; background < 2; background++) {
        struct ordered_pool_options options = options_for(1);
        struct ordered_pool *pool;
        struct err err;

        options.background = background;
        options.n_jobs = 4;
        assert_int_equal(ordered_pool_create(&pool, &options, &err), 0);
        for (int i = 0; i < 4; i++) {
            *(struct job *)ordered_pool_next(pool) = (struct job){ .number = i };
            ordered_pool_submit(pool);
        }
        assert_null(ordered_pool_next(pool));
        for (int i = 0; i < 4; i++) {
            const struct job *job = ordered_pool_take(pool);

            assert_int_equal(job->number, i);
            assert_int_equal(pthread_equal(job->thread, pthread_self()) != 0, !background);
        }
        ordered_pool_destroy(pool);
    }
}

/* What was submitted before is never returned, wherever the threads are with it. */
static void test_discard(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        struct ordered_pool_options options = options_for(n_threads);
        struct ordered_pool *pool;
        struct err err;

        options.background = n_threads == 2;
        assert_int_equal(ordered_pool_create(&pool, &options, &err), 0);
        ordered_pool_discard(pool);
        for (int round = 0; round < 300; round++) {
            int n_submitted = 0, n_taken = 0;
            struct job *job;

            while ((job = ordered_pool_next(pool))) {
                *job = (struct job){ .number = n_submitted++ };
                ordered_pool_submit(pool);
            }
            assert_int_equal(n_submitted, n_threads == 1 ? 1 : 2 * n_threads + 1);
            while (n_taken < round % (n_submitted + 1))
                take(pool, &n_taken);
            ordered_pool_discard(pool);
            assert_null(ordered_pool_take(pool));
        }
        ordered_pool_destroy(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_order), cmocka_unit_test(test_ends),
                                        cmocka_unit_test(test_jobs_start),
                                        cmocka_unit_test(test_background),
                                        cmocka_unit_test(test_discard) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
