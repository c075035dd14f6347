/*
 * ordered.h - jobs done by several threads and given back in their order
 *
 * A ring of the caller's jobs: it fills one and submits it, threads work on them, and the caller
 * takes them back oldest first. What comes out so does not depend on the number of threads.
 */
#ifndef DATA_ORDERED_H
#define DATA_ORDERED_H

#include <stddef.h>

#include "base/err.h"

/* Do a job in a thread whose own things are `worker`. */
typedef void (*ordered_work_fn)(void *job, void *worker);

struct ordered_options {
    ordered_work_fn work;
    int n_threads;                  /* 0: one a core that this process may use */
    size_t job_bytes, worker_bytes; /* both are zeroed at first */
    void (*release_job)(void *job); /* NULL: nothing to do */
    int (*start_worker)(void *worker, void *context, struct err *err); /* by the caller's thread */
    void (*release_worker)(void *worker);
    void *context;
};

struct ordered;

/* Returns 0, or -1: ERR_DEVICE, or what start_worker says. */
int ordered_create(struct ordered **ordered, const struct ordered_options *options,
                   struct err *err);
/* Waits for the jobs under way. */
void ordered_destroy(struct ordered *ordered);

/* A job to fill (as it was left), or NULL while all are under way: then take one back. */
void *ordered_next(struct ordered *ordered);
/* The job that ordered_next gave is full. */
void ordered_submit(struct ordered *ordered);
/* The oldest job that was submitted, done; NULL if there is none. Free again with the next call. */
void *ordered_take(struct ordered *ordered);

#endif
