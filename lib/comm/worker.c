/*
 * worker.c - a ring of work and one thread
 */
#include "comm/worker.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { N_RING = 1024 };

struct work {
    worker_fn fn;
    void *argument;
};

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given;    /* work was posted, or the end was asked for */
    pthread_cond_t done;     /* n_done grew */
    uint64_t n_given;        /* guarded by lock, as are ring, ending and first_error */
    _Atomic uint64_t n_done; /* written under the lock, read anywhere */
    int ending;
    struct err first_error; /* code ERR_NONE while all is well */
    struct work ring[N_RING];
};

/* Lock held on entry and exit, not while the work runs. */
static void run_next(struct worker *worker)
{
    struct work work = worker->ring[worker->n_done % N_RING];
    int skip = worker->first_error.code != ERR_NONE;
    struct err err = { .code = ERR_NONE };
    int status = 0;

    pthread_mutex_unlock(&worker->lock);
    if (!skip)
        status = work.fn(work.argument, &err);
    pthread_mutex_lock(&worker->lock);
    if (status) {
        CHECK(err.code != ERR_NONE);
        worker->first_error = err;
    }
    atomic_store_explicit(&worker->n_done, worker->n_done + 1, memory_order_release);
    pthread_cond_broadcast(&worker->done);
}

static void *worker_main(void *context)
{
    struct worker *worker = context;

    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (worker->n_done == worker->n_given && !worker->ending)
            pthread_cond_wait(&worker->given, &worker->lock);
        if (worker->n_done == worker->n_given)
            break;
        run_next(worker);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

/* All signals are the main thread's: the new thread starts, and stays, with all blocked. */
static int start_thread(struct worker *worker, int core)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    cpu_set_t cores;

    pthread_attr_init(&attributes);
    if (core >= 0) {
        CPU_ZERO(&cores);
        CPU_SET((size_t)core, &cores);
        pthread_attr_setaffinity_np(&attributes, sizeof cores, &cores);
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&worker->thread, &attributes, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return status;
}

int worker_create(struct worker **worker, int core, struct err *err)
{
    struct worker *made = calloc(1, sizeof *made);

    if (!made)
        return err_set(err, ERR_DEVICE, "no memory for a worker");
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->given, NULL);
    pthread_cond_init(&made->done, NULL);

    int status = core < CPU_SETSIZE ? start_thread(made, core) : -1;
    if (status) {
        pthread_cond_destroy(&made->done);
        pthread_cond_destroy(&made->given);
        pthread_mutex_destroy(&made->lock);
        free(made);
        if (core >= 0)
            return err_set(err, ERR_FAILED, "cannot start a thread on core %d", core);
        return err_set(err, ERR_FAILED, "cannot start a thread: %s", strerror(status));
    }
    *worker = made;
    return 0;
}

void worker_destroy(struct worker *worker)
{
    if (!worker)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->ending = 1;
    pthread_cond_signal(&worker->given);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->done);
    pthread_cond_destroy(&worker->given);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}

uint64_t worker_post(struct worker *worker, worker_fn fn, void *argument)
{
    pthread_mutex_lock(&worker->lock);
    while (worker->n_given - worker->n_done == N_RING)
        pthread_cond_wait(&worker->done, &worker->lock);
    worker->ring[worker->n_given % N_RING] = (struct work){ fn, argument };
    uint64_t ticket = ++worker->n_given;
    pthread_cond_signal(&worker->given);
    pthread_mutex_unlock(&worker->lock);
    return ticket;
}

int worker_done(const struct worker *worker, uint64_t ticket)
{
    return atomic_load_explicit(&worker->n_done, memory_order_acquire) >= ticket;
}

int worker_wait(struct worker *worker, uint64_t ticket, struct err *err)
{
    int status = 0;

    if (!ticket)
        return 0;
    CHECK(!pthread_equal(pthread_self(), worker->thread));
    pthread_mutex_lock(&worker->lock);
    CHECK(ticket <= worker->n_given);
    while (worker->n_done < ticket)
        pthread_cond_wait(&worker->done, &worker->lock);
    if (worker->first_error.code != ERR_NONE) {
        *err = worker->first_error;
        status = -1;
    }
    pthread_mutex_unlock(&worker->lock);
    return status;
}

int worker_call(struct worker *worker, worker_fn fn, void *argument, struct err *err)
{
    return worker_wait(worker, worker_post(worker, fn, argument), err);
}
