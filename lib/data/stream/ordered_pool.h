/*
 * ordered_pool.h - jobs done by several threads and given back in their order
 *
 * A ring of the caller's jobs: it fills one and submits it, threads work on them, and the caller
 * takes them back oldest first. What comes out so does not depend on the number of threads.
 */
#ifndef DATA_STREAM_ORDERED_POOL_H
#define DATA_STREAM_ORDERED_POOL_H

#include <stddef.h>

#include "base/err.h"

/* Do a job in a thread whose own things are `worker`. */
typedef void (*ordered_pool_work_fn)(void *job, void *worker);

struct ordered_pool_options {
    ordered_pool_work_fn work;
    int n_threads;                  /* 0: one a core that this process may use */
    size_t job_bytes, worker_bytes; /* both are zeroed at first */
    void (*release_job)(void *job); /* NULL: nothing to do */
    int (*start_worker)(void *worker, void *context, struct err *err); /* by the caller's thread */
    void (*release_worker)(void *worker);
    void *context;
};

struct ordered_pool;

/* Returns 0, or -1: ERR_DEVICE, or what start_worker says. */
int ordered_pool_create(struct ordered_pool **ordered, const struct ordered_pool_options *options,
                        struct err *err);
/* Waits for the jobs under way. */
void ordered_pool_destroy(struct ordered_pool *ordered);

/* A job to fill (as it was left), or NULL while all are under way: then take one back. */
void *ordered_pool_next(struct ordered_pool *ordered);
/* The job that ordered_pool_next gave is full. */
void ordered_pool_submit(struct ordered_pool *ordered);
/* The oldest job that was submitted, done; NULL if there is none. Free again with the next call. */
void *ordered_pool_take(struct ordered_pool *ordered);

#endif
