/*
 * ordered_pool.c - the ring and its threads
 */
#include "data/stream/ordered_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

enum { THREADS_MAX = 256 };

struct worker_thread {
    struct ordered_pool *ordered;
    void *worker;
    pthread_t thread;
};

struct ordered_pool {
    struct ordered_pool_options options;
    char *jobs, *workers; /* [n_ring], [n_workers] */
    uint8_t *is_done;     /* [n_ring] */
    int n_ring, n_workers;
    int n_started_workers, n_threads;
    /* Numbers since the start; a job's place is its number % n_ring. */
    int64_t n_submitted, n_begun, n_taken;
    int is_taken; /* the caller holds job n_taken */
    int is_over;
    pthread_mutex_t lock;
    pthread_cond_t submitted, done;
    struct worker_thread threads[THREADS_MAX];
};

static void *job_at(struct ordered_pool *o, int64_t number)
{
    return o->jobs + (size_t)(number % o->n_ring) * o->options.job_bytes;
}

static void *work_main(void *context)
{
    struct worker_thread *self = context;
    struct ordered_pool *o = self->ordered;

    pthread_mutex_lock(&o->lock);
    for (;;) {
        while (!o->is_over && o->n_begun == o->n_submitted)
            pthread_cond_wait(&o->submitted, &o->lock);
        if (o->is_over)
            break;
        int64_t number = o->n_begun++;
        pthread_mutex_unlock(&o->lock);
        o->options.work(job_at(o, number), self->worker);
        pthread_mutex_lock(&o->lock);
        o->is_done[number % o->n_ring] = 1;
        pthread_cond_signal(&o->done);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

static int count_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Fewer threads than asked for only take longer; none at all leaves the work to the caller. Signals
 * are the main thread's business. */
static void start_threads(struct ordered_pool *o)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (o->n_workers > 1 && o->n_threads < o->n_workers) {
        struct worker_thread *t = &o->threads[o->n_threads];

        t->ordered = o;
        t->worker = o->workers + (size_t)o->n_threads * o->options.worker_bytes;
        if (pthread_create(&t->thread, NULL, work_main, t) != 0)
            break;
        o->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int ordered_pool_create(struct ordered_pool **out, const struct ordered_pool_options *options,
                        struct err *err)
{
    struct ordered_pool *o = calloc(1, sizeof *o);
    int n = options->n_threads > 0 ? options->n_threads : count_cores();

    if (!o)
        return err_set(err, ERR_DEVICE, "out of host memory");
    o->options = *options;
    o->n_workers = n < THREADS_MAX ? n : THREADS_MAX;
    o->n_ring = o->n_workers > 1 ? 2 * o->n_workers + 1 : 1;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->submitted, NULL);
    pthread_cond_init(&o->done, NULL);
    o->jobs = calloc((size_t)o->n_ring, options->job_bytes);
    o->workers = calloc((size_t)o->n_workers, options->worker_bytes);
    o->is_done = calloc((size_t)o->n_ring, 1);
    if (!o->jobs || !o->workers || !o->is_done) {
        ordered_pool_destroy(o);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    for (; o->n_started_workers < o->n_workers; o->n_started_workers++)
        if (options->start_worker(o->workers + (size_t)o->n_started_workers * options->worker_bytes,
                                  options->context, err) < 0) {
            ordered_pool_destroy(o);
            return -1;
        }
    start_threads(o);
    *out = o;
    return 0;
}

void ordered_pool_destroy(struct ordered_pool *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    o->is_over = 1;
    pthread_cond_broadcast(&o->submitted);
    pthread_mutex_unlock(&o->lock);
    for (int i = 0; i < o->n_threads; i++)
        pthread_join(o->threads[i].thread, NULL);
    for (int i = 0; i < o->n_started_workers; i++)
        o->options.release_worker(o->workers + (size_t)i * o->options.worker_bytes);
    for (int i = 0; o->jobs && o->options.release_job && i < o->n_ring; i++)
        o->options.release_job(job_at(o, i));
    pthread_cond_destroy(&o->done);
    pthread_cond_destroy(&o->submitted);
    pthread_mutex_destroy(&o->lock);
    free(o->jobs);
    free(o->workers);
    free(o->is_done);
    free(o);
}

/* The job that was taken last is free again. */
static void give_back(struct ordered_pool *o)
{
    if (!o->is_taken)
        return;
    o->is_taken = 0;
    o->is_done[o->n_taken++ % o->n_ring] = 0;
}

void *ordered_pool_next(struct ordered_pool *o)
{
    give_back(o);
    return o->n_submitted - o->n_taken == o->n_ring ? NULL : job_at(o, o->n_submitted);
}

void ordered_pool_submit(struct ordered_pool *o)
{
    if (o->n_threads == 0) {
        int64_t number = o->n_submitted++;

        o->options.work(job_at(o, number), o->workers);
        o->is_done[number % o->n_ring] = 1;
        return;
    }
    pthread_mutex_lock(&o->lock);
    o->n_submitted++;
    pthread_cond_signal(&o->submitted);
    pthread_mutex_unlock(&o->lock);
}

void *ordered_pool_take(struct ordered_pool *o)
{
    give_back(o);
    if (o->n_taken == o->n_submitted)
        return NULL;
    pthread_mutex_lock(&o->lock);
    while (!o->is_done[o->n_taken % o->n_ring])
        pthread_cond_wait(&o->done, &o->lock);
    pthread_mutex_unlock(&o->lock);
    o->is_taken = 1;
    return job_at(o, o->n_taken);
}
