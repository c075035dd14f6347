/*
 * pool.c - threads that claim tiles from one counter
 *
 * The counter and the number of the run stand in one 64-bit word, so that a thread claims a tile by
 * one compare-and-swap that also proves that the run it saw is still on. Hence the run does not
 * wait for a late thread: where a neighbour holds a core, the others take its tiles, and the run
 * ends with the last tile and not with the last thread.
 *
 * Sleeping: a thread spins for some pauses, then waits on a futex. SPINS of them take about 50
 * microseconds, more than the gap between two ops; a thread that spun in vain spins half as long
 * the next time, since what it waits for is a thread whose core a neighbour has. No wake-up is
 * lost:
 *   sleeper  1. counts itself   2. futex_wait(word, old): the kernel compares the word again
 *   waker    a. changes the word   b. reads the count, and wakes if it is not 0
 * If b comes before 1, so does a, and 2 returns at once; else b sees the count.
 */
#include "device/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"

#define SPINS 1000
#define SPINS_LEAST 16
#define N_TILES_MAX UINT32_MAX

struct pool_worker {
    struct pool *pool;
    pthread_t handle;
    int thread;
    int core;  /* -1: unbound */
    int spins; /* pauses before it sleeps the next time */
};

struct pool {
    int n_threads;
    struct pool_worker *workers; /* n_threads - 1 */
    int n_workers;               /* of them running */
    int caller_spins;            /* as a worker's */
    cpu_set_t caller_cores;      /* before we bound it */
    int caller_bound;

    _Atomic(pool_tile_fn) fn;
    _Atomic(void *) context;
    _Atomic uint32_t n_tiles;
    _Alignas(64) _Atomic uint64_t claim; /* run << 32 | next tile */
    _Alignas(64) _Atomic uint32_t n_done;
    _Alignas(64) _Atomic uint32_t epoch; /* futex: changes when there may be work, or the end */
    _Atomic int n_sleepers;
    _Atomic int stop;
    _Alignas(64) _Atomic uint32_t finished; /* futex: the last run that is complete */
    _Atomic int caller_sleeps;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void pause_shortly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/*
 * Claim and run tiles until none is left. fn, context and n_tiles may be read while the next run is
 * being written, but then its number has changed and the claim fails.
 */
static void work(struct pool *pool, int thread)
{
    for (;;) {
        uint64_t claim = atomic_load(&pool->claim);
        uint32_t tile = (uint32_t)claim;
        uint32_t n_tiles = atomic_load(&pool->n_tiles);
        pool_tile_fn fn = atomic_load(&pool->fn);
        void *context = atomic_load(&pool->context);

        if (tile >= n_tiles)
            return;
        if (!atomic_compare_exchange_strong(&pool->claim, &claim, claim + 1))
            continue;
        fn(context, tile, thread);
        if (atomic_fetch_add(&pool->n_done, 1) + 1 != n_tiles)
            continue;
        atomic_store(&pool->finished, (uint32_t)(claim >> 32));
        if (thread != 0 && atomic_load(&pool->caller_sleeps))
            futex_wake(&pool->finished, 1);
    }
}

/* Whether the word becomes what it was not, or what it is to be, before so many pauses. */
static int spin(_Atomic uint32_t *word, uint32_t value, int until_equal, int *spins)
{
    for (int i = 0; i < *spins; i++) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);

        if ((now == value) == until_equal) {
            *spins = *spins * 2 < SPINS ? *spins * 2 : SPINS;
            return 1;
        }
        pause_shortly();
    }
    *spins = *spins / 2 > SPINS_LEAST ? *spins / 2 : SPINS_LEAST;
    return 0;
}

static void wait_for_epoch(struct pool *pool, uint32_t seen, int *spins)
{
    if (spin(&pool->epoch, seen, 0, spins))
        return;
    atomic_fetch_add(&pool->n_sleepers, 1);
    while (atomic_load(&pool->epoch) == seen)
        futex_wait(&pool->epoch, seen);
    atomic_fetch_sub(&pool->n_sleepers, 1);
}

static void wait_for_finish(struct pool *pool, uint32_t run)
{
    uint32_t finished;

    if (spin(&pool->finished, run, 1, &pool->caller_spins))
        return;
    atomic_store(&pool->caller_sleeps, 1);
    while ((finished = atomic_load(&pool->finished)) != run)
        futex_wait(&pool->finished, finished);
    atomic_store(&pool->caller_sleeps, 0);
}

static void *worker_main(void *argument)
{
    struct pool_worker *worker = argument;
    struct pool *pool = worker->pool;

    for (;;) {
        uint32_t seen = atomic_load(&pool->epoch);

        if (atomic_load(&pool->stop))
            return NULL;
        work(pool, worker->thread);
        wait_for_epoch(pool, seen, &worker->spins);
    }
}

void pool_run(struct pool *pool, int64_t n_tiles, pool_tile_fn fn, void *context)
{
    uint32_t run;

    CHECK(n_tiles >= 0);
    CHECK(n_tiles <= N_TILES_MAX);
    if (n_tiles <= 1 || pool->n_threads == 1) {
        for (int64_t tile = 0; tile < n_tiles; tile++)
            fn(context, tile, 0);
        return;
    }

    run = (uint32_t)(atomic_load(&pool->claim) >> 32) + 1;
    /* Nothing may be claimed while the run is half written: its tiles appear all at once, last. */
    atomic_store(&pool->n_tiles, 0);
    atomic_store(&pool->claim, (uint64_t)run << 32);
    atomic_store(&pool->n_done, 0);
    atomic_store(&pool->fn, fn);
    atomic_store(&pool->context, context);
    atomic_store(&pool->n_tiles, (uint32_t)n_tiles);

    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->n_sleepers) > 0)
        futex_wake(&pool->epoch, n_tiles > pool->n_threads ? pool->n_threads : (int)n_tiles - 1);
    work(pool, 0);
    wait_for_finish(pool, run);
}

int pool_n_threads(const struct pool *pool)
{
    return pool->n_threads;
}

void pool_spread(const struct pool *pool)
{
    if (pool->caller_bound)
        pthread_setaffinity_np(pthread_self(), sizeof pool->caller_cores, &pool->caller_cores);
}

static double seconds_of(clockid_t clock)
{
    struct timespec time = { 0, 0 };

    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double pool_cpu_seconds(const struct pool *pool)
{
    double seconds = seconds_of(CLOCK_THREAD_CPUTIME_ID);

    for (int i = 0; pool && i < pool->n_workers; i++) {
        clockid_t clock;

        if (!pthread_getcpuclockid(pool->workers[i].handle, &clock))
            seconds += seconds_of(clock);
    }
    return seconds;
}

static int bind_thread(pthread_t handle, int core, struct err *err)
{
    cpu_set_t cores;
    int error;

    CPU_ZERO(&cores);
    if (core < 0 || core >= CPU_SETSIZE)
        return err_set(err, ERR_DEVICE, "core %d to bind a thread to is not in 0..%d", core,
                       CPU_SETSIZE - 1);
    CPU_SET((size_t)core, &cores);
    error = pthread_setaffinity_np(handle, sizeof cores, &cores);
    if (error) {
        errno = error;
        return err_set_errno(err, ERR_DEVICE, "cannot bind a thread to core %d", core);
    }
    return 0;
}

static int bind_caller(struct pool *pool, int core, struct err *err)
{
    if (pthread_getaffinity_np(pthread_self(), sizeof pool->caller_cores, &pool->caller_cores))
        return err_set_errno(err, ERR_DEVICE, "cannot ask for this thread's cores");
    if (bind_thread(pthread_self(), core, err))
        return -1;
    pool->caller_bound = 1;
    return 0;
}

static int start_worker(struct pool *pool, struct pool_worker *worker, struct err *err)
{
    int failed = thread_start(&worker->handle, NULL, worker_main, worker);

    if (failed) {
        errno = failed;
        return err_set_errno(err, ERR_DEVICE, "cannot start compute thread %d of %d",
                             worker->thread, pool->n_threads);
    }
    pool->n_workers++;
    return worker->core < 0 ? 0 : bind_thread(worker->handle, worker->core, err);
}

int pool_create(struct pool **result, int n_threads, const int *cores, struct err *err)
{
    struct pool *pool;

    CHECK(n_threads >= 1);
    if (posix_memalign((void **)&pool, 64, sizeof *pool))
        return err_set(err, ERR_DEVICE, "no memory for a pool of %d threads", n_threads);
    *pool = (struct pool){ .n_threads = n_threads, .caller_spins = SPINS };
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    if (!pool->workers) {
        err_set(err, ERR_DEVICE, "no memory for a pool of %d threads", n_threads);
        goto out;
    }
    if (cores && bind_caller(pool, cores[0], err))
        goto out;
    for (int i = 1; i < n_threads; i++) {
        struct pool_worker *worker = &pool->workers[i - 1];

        *worker = (struct pool_worker){
            .pool = pool, .thread = i, .core = cores ? cores[i] : -1, .spins = SPINS
        };
        if (start_worker(pool, worker, err))
            goto out;
    }
    *result = pool;
    return 0;

out:
    pool_destroy(pool);
    return -1;
}

void pool_destroy(struct pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake(&pool->epoch, pool->n_threads);
    for (int i = 0; i < pool->n_workers; i++)
        pthread_join(pool->workers[i].handle, NULL);
    pool_spread(pool);
    free(pool->workers);
    free(pool);
}
