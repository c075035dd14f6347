/*
 * worker.c - rings of work, one a stream, and one thread that takes turns at their oldest entries
 *
 * n_given and the work itself are guarded by the lock. n_done grows under the lock, too, but is
 * read without it by worker_done, which is asked before every op: stored with release after the
 * work, loaded with acquire, so who sees its ticket done sees the bytes that were moved.
 *
 * No wake-up is lost:
 *   1. the worker  holds the lock, finds no stream with work
 *   2. a poster    wants the lock
 *   3. the worker  waits on `given`, which releases the lock in the same step
 *   4. the poster  takes the lock, adds work, signals `given`
 * and where 4 comes before 1, the worker finds the work. Waiting for `done` is the same with the
 * roles exchanged. While work runs the lock is free: its ring entry is not overwritten, as n_done
 * has not passed it and a full ring keeps posters waiting.
 */
#include "comm/worker.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/num.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "comm/pause.h"

enum { N_RING = 256 };

struct work {
    worker_fn fn;
    void *argument;
};

struct ring {
    uint64_t n_given;        /* guarded by the worker's lock */
    _Atomic uint64_t n_done; /* written under the lock, read anywhere */
    struct work work[N_RING];
};

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given; /* work was posted, or the end was asked for */
    pthread_cond_t done;  /* some n_done grew */
    int ending;
    struct err first_error; /* code ERR_NONE while all is well */
    struct ring streams[WORKER_STREAMS];
};

static uint64_t ticket_of(int stream, uint64_t number)
{
    return number * WORKER_STREAMS + (uint64_t)stream;
}

static bool is_done(const struct worker *worker, uint64_t ticket)
{
    const struct ring *ring = &worker->streams[ticket % WORKER_STREAMS];

    return atomic_load_explicit(&ring->n_done, memory_order_acquire) >= ticket / WORKER_STREAMS;
}

static bool has_work(const struct ring *ring)
{
    return ring->n_done < ring->n_given;
}

/* A turn at the stream's oldest work. Lock held on entry and exit, not while the work runs. */
static int take_turn(struct worker *worker, struct ring *ring)
{
    struct work work = ring->work[ring->n_done % N_RING];
    struct err err = { .code = ERR_NONE };
    int progress = COMM_DONE;

    if (worker->first_error.code == ERR_NONE) {
        pthread_mutex_unlock(&worker->lock);
        progress = work.fn(work.argument, &err);
        pthread_mutex_lock(&worker->lock);
    }
    if (progress < 0) {
        CHECK(err.code != ERR_NONE);
        worker->first_error = err;
        progress = COMM_DONE;
    }
    if (progress == COMM_DONE) {
        atomic_store_explicit(&ring->n_done, ring->n_done + 1, memory_order_release);
        pthread_cond_broadcast(&worker->done);
    }
    return progress;
}

/* Until work is given or so much time has passed; 0: without end. Lock held. */
static void wait_for_work(struct worker *worker, long nanoseconds)
{
    struct timespec until;

    if (!nanoseconds) {
        pthread_cond_wait(&worker->given, &worker->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += nanoseconds;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&worker->given, &worker->lock, &until);
}

/* One round over all streams that have work. The most urgent progress, or -1 if none has any. */
static int go_round(struct worker *worker, int *any_done)
{
    int most = -1;

    *any_done = 0;
    for (int i = 0; i < WORKER_STREAMS; i++)
        if (has_work(&worker->streams[i])) {
            int progress = take_turn(worker, &worker->streams[i]);

            *any_done |= progress == COMM_DONE;
            most = max_int(most, progress);
        }
    return most;
}

static void *worker_main(void *context)
{
    struct worker *worker = context;
    struct comm_pause pause;
    int any_done;

    comm_pause_begin(&pause);
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        int progress = go_round(worker, &any_done);

        if (progress < 0 && worker->ending)
            break;
        if (progress < 0)
            wait_for_work(worker, 0);
        if (progress < 0 || any_done) {
            comm_pause_begin(&pause);
            continue;
        }
        long nanoseconds = comm_pause_next(&pause, progress);
        if (nanoseconds) {
            wait_for_work(worker, nanoseconds);
        } else {
            pthread_mutex_unlock(&worker->lock);
            comm_pause_yield();
            pthread_mutex_lock(&worker->lock);
        }
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

/* All signals are the main thread's: the new thread starts, and stays, with all blocked. */
static int start_thread(struct worker *worker, int core)
{
    pthread_attr_t attributes;
    cpu_set_t cores;

    pthread_attr_init(&attributes);
    if (core >= 0) {
        CPU_ZERO(&cores);
        CPU_SET((size_t)core, &cores);
        pthread_attr_setaffinity_np(&attributes, sizeof cores, &cores);
    }
    int status = thread_start(&worker->thread, &attributes, worker_main, worker);
    pthread_attr_destroy(&attributes);
    return status;
}

int worker_create(struct worker **worker, int core, struct err *err)
{
    struct worker *made = calloc(1, sizeof *made);
    pthread_condattr_t monotonic;

    if (!made)
        return err_set(err, ERR_DEVICE, "no memory for a worker");
    pthread_mutex_init(&made->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&made->given, &monotonic);
    pthread_condattr_destroy(&monotonic);
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

uint64_t worker_post(struct worker *worker, int stream, worker_fn fn, void *argument)
{
    struct ring *ring = &worker->streams[stream];

    CHECK(stream >= 0);
    CHECK(stream < WORKER_STREAMS);
    pthread_mutex_lock(&worker->lock);
    while (ring->n_given - ring->n_done == N_RING)
        pthread_cond_wait(&worker->done, &worker->lock);
    ring->work[ring->n_given % N_RING] = (struct work){ fn, argument };
    uint64_t ticket = ticket_of(stream, ++ring->n_given);
    pthread_cond_signal(&worker->given);
    pthread_mutex_unlock(&worker->lock);
    return ticket;
}

int worker_done(const struct worker *worker, uint64_t ticket)
{
    return is_done(worker, ticket);
}

int worker_wait(struct worker *worker, uint64_t ticket, struct err *err)
{
    int status = 0;

    if (!ticket)
        return 0;
    CHECK(!pthread_equal(pthread_self(), worker->thread));
    pthread_mutex_lock(&worker->lock);
    CHECK(ticket / WORKER_STREAMS <= worker->streams[ticket % WORKER_STREAMS].n_given);
    while (!is_done(worker, ticket))
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
    return worker_wait(worker, worker_post(worker, 0, fn, argument), err);
}
