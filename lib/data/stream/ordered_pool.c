/*
 * ordered_pool.c - the ring and its threads
 */
#include "data/stream/ordered_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/thread.h"

enum { THREADS_MAX = 256 };

struct pool_thread {
    struct ordered_pool *pool;
    void *worker;
    pthread_t thread;
};

struct ordered_pool {
    struct ordered_pool_options options;
    char *jobs, *workers; /* [n_ring], [n_workers] */
    bool *is_done;        /* [n_ring] */
    int n_ring, n_workers;
    int n_started_workers, n_threads;
    /* Numbers since the start; a job's place is its number % n_ring. */
    int64_t n_submitted, n_begun, n_taken;
    bool is_taken; /* the caller holds job n_taken */
    bool is_over;
    pthread_mutex_t lock;
    pthread_cond_t submitted, done;
    struct pool_thread threads[THREADS_MAX];
};

static void *job_at(const struct ordered_pool *pool, int64_t number)
{
    return pool->jobs + (size_t)(number % pool->n_ring) * pool->options.job_bytes;
}

static void *worker_at(const struct ordered_pool *pool, int i)
{
    return pool->workers + (size_t)i * pool->options.worker_bytes;
}

static void *work_main(void *context)
{
    struct pool_thread *self = context;
    struct ordered_pool *pool = self->pool;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->is_over && pool->n_begun == pool->n_submitted)
            pthread_cond_wait(&pool->submitted, &pool->lock);
        if (pool->is_over)
            break;
        int64_t number = pool->n_begun++;
        pthread_mutex_unlock(&pool->lock);
        pool->options.work(job_at(pool, number), self->worker);
        pthread_mutex_lock(&pool->lock);
        pool->is_done[number % pool->n_ring] = true;
        pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- start and end ---- */

static int count_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int allocate(struct ordered_pool *pool, struct err *err)
{
    const struct ordered_pool_options *o = &pool->options;

    pool->jobs = calloc((size_t)pool->n_ring, o->job_bytes);
    pool->workers = calloc((size_t)pool->n_workers, o->worker_bytes);
    pool->is_done = calloc((size_t)pool->n_ring, sizeof *pool->is_done);
    if (!pool->jobs || (!pool->workers && o->worker_bytes) || !pool->is_done)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int i = 0; o->start_job && i < pool->n_ring; i++)
        if (o->start_job(job_at(pool, i), o->context, err) < 0)
            return -1;
    for (; pool->n_started_workers < pool->n_workers; pool->n_started_workers++)
        if (o->start_worker &&
            o->start_worker(worker_at(pool, pool->n_started_workers), o->context, err) < 0)
            return -1;
    return 0;
}

/* Fewer threads than there are workers only take longer. */
static void start_threads(struct ordered_pool *pool)
{
    while (pool->n_threads < pool->n_workers) {
        struct pool_thread *t = &pool->threads[pool->n_threads];

        t->pool = pool;
        t->worker = worker_at(pool, pool->n_threads);
        if (thread_start(&t->thread, NULL, work_main, t) != 0)
            break;
        pool->n_threads++;
    }
}

int ordered_pool_create(struct ordered_pool **out, const struct ordered_pool_options *options,
                        struct err *err)
{
    struct ordered_pool *pool = calloc(1, sizeof *pool);
    int n = options->n_threads > 0 ? options->n_threads : count_cores();

    if (!pool)
        return err_set(err, ERR_DEVICE, "out of host memory");
    pool->options = *options;
    pool->n_workers = n < THREADS_MAX ? n : THREADS_MAX;
    bool has_threads = pool->n_workers > 1 || options->background;
    pool->n_ring = options->n_jobs ? options->n_jobs : has_threads ? 2 * pool->n_workers + 1 : 1;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->submitted, NULL);
    pthread_cond_init(&pool->done, NULL);
    if (allocate(pool, err) < 0) {
        ordered_pool_destroy(pool);
        return -1;
    }
    if (has_threads)
        start_threads(pool);
    if (options->background && pool->n_threads == 0) {
        ordered_pool_destroy(pool);
        return err_set(err, ERR_DEVICE, "cannot start a thread");
    }
    *out = pool;
    return 0;
}

void ordered_pool_destroy(struct ordered_pool *pool)
{
    if (!pool)
        return;
    const struct ordered_pool_options *o = &pool->options;
    pthread_mutex_lock(&pool->lock);
    pool->is_over = true;
    pthread_cond_broadcast(&pool->submitted);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i].thread, NULL);
    for (int i = 0; o->release_worker && i < pool->n_started_workers; i++)
        o->release_worker(worker_at(pool, i));
    for (int i = 0; pool->jobs && o->release_job && i < pool->n_ring; i++)
        o->release_job(job_at(pool, i));
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->submitted);
    pthread_mutex_destroy(&pool->lock);
    free(pool->jobs);
    free(pool->workers);
    free(pool->is_done);
    free(pool);
}

/* ---- the ring ---- */

/* The job that was taken last is free again. */
static void give_back(struct ordered_pool *pool)
{
    if (!pool->is_taken)
        return;
    pool->is_taken = false;
    pool->is_done[pool->n_taken++ % pool->n_ring] = false;
}

/* With the lock: wait for a job that a thread works on, or has done. */
static void wait_for(struct ordered_pool *pool, int64_t number)
{
    while (!pool->is_done[number % pool->n_ring])
        pthread_cond_wait(&pool->done, &pool->lock);
}

void *ordered_pool_next(struct ordered_pool *pool)
{
    give_back(pool);
    return pool->n_submitted - pool->n_taken == pool->n_ring ? NULL
                                                             : job_at(pool, pool->n_submitted);
}

void ordered_pool_submit(struct ordered_pool *pool)
{
    if (pool->n_threads == 0) {
        int64_t number = pool->n_submitted++;

        pool->n_begun++;
        pool->options.work(job_at(pool, number), pool->workers);
        pool->is_done[number % pool->n_ring] = true;
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->n_submitted++;
    pthread_cond_signal(&pool->submitted);
    pthread_mutex_unlock(&pool->lock);
}

void *ordered_pool_take(struct ordered_pool *pool)
{
    give_back(pool);
    if (pool->n_taken == pool->n_submitted)
        return NULL;
    pthread_mutex_lock(&pool->lock);
    wait_for(pool, pool->n_taken);
    pthread_mutex_unlock(&pool->lock);
    pool->is_taken = true;
    return job_at(pool, pool->n_taken);
}

void ordered_pool_discard(struct ordered_pool *pool)
{
    give_back(pool);
    pthread_mutex_lock(&pool->lock);
    pool->n_submitted = pool->n_begun;
    for (; pool->n_taken < pool->n_begun; pool->n_taken++) {
        wait_for(pool, pool->n_taken);
        pool->is_done[pool->n_taken % pool->n_ring] = false;
    }
    pthread_mutex_unlock(&pool->lock);
}
