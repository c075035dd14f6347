/*
 * ordered_pool.h - jobs done by several threads and returned in their order
 *
 * A ring of the caller's jobs: it fills one and submits it, threads work on them, and the caller
 * takes them back, oldest first. The result therefore does not depend on the number of threads, and
 * memory is bounded by the ring. One thread of the caller's uses a pool at a time.
 */
#ifndef DATA_STREAM_ORDERED_POOL_H
#define DATA_STREAM_ORDERED_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Do a job in a thread whose own things are `worker`. */
typedef void (*ordered_pool_work_fn)(void *job, void *worker);

/* Prepare a zeroed job or worker, in the caller's thread. Returns 0, or -1 with an error. */
typedef int (*ordered_pool_start_fn)(void *item, void *context, struct err *err);

struct ordered_pool_options {
    ordered_pool_work_fn work;
    int n_threads;                  /* 0: one a core that this process may use */
    int n_jobs;                     /* in the ring; 0: two a thread, and one to fill */
    bool background;                /* one thread is a thread too; else the caller's does the work
                                       if there is one, or none can be started */
    size_t job_bytes, worker_bytes; /* both are zeroed at first */
    /* Each may be NULL: nothing to do. */
    ordered_pool_start_fn start_job, start_worker;
    void (*release_job)(void *job); /* also of a job that is zeroed */
    void (*release_worker)(void *worker);
    void *context; /* of start_job and start_worker */
};

struct ordered_pool;

/* Returns 0, or -1: ERR_DEVICE, or what start_job or start_worker says. */
int ordered_pool_create(struct ordered_pool **pool, const struct ordered_pool_options *options,
                        struct err *err);
/* Waits for the jobs that threads work on; those that wait for a thread are not done. */
void ordered_pool_destroy(struct ordered_pool *pool);

/* A job to fill (as it was left), or NULL while all are under way: then take one back. */
void *ordered_pool_next(struct ordered_pool *pool);
/* The job that ordered_pool_next returned is filled. */
void ordered_pool_submit(struct ordered_pool *pool);
/* The oldest job that was submitted, done; NULL if there is none. It is free again with the next
 * call. */
void *ordered_pool_take(struct ordered_pool *pool);
/* Free all jobs: waits for those that threads work on; those that wait for a thread are not
 * done. */
void ordered_pool_discard(struct ordered_pool *pool);

#endif
