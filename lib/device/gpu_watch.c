/*
 * gpu_watch.c - the thread and what it last saw
 *
 * NVML is called without the lock. The thread and its opener both hold the watch; the last of
 * them to let go frees it, so that a thread that is stuck in the driver can be left.
 */
#include "device/gpu_watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/xid.h"

enum { LOOK_MS = 1000, WAIT_MS = 200, XID_LOST = 79 };
static const double close_seconds = 0.25;

struct watched_gpu {
    int index;
    struct nvml_gpu gpu;
    struct nvml_state state;
    double at; /* 0: not looked at yet */
    int xid;
};

struct gpu_watch {
    pthread_mutex_t lock;
    pthread_cond_t changed;   /* an Xid came, or the thread has ended */
    char pci[NVML_PCI_BYTES]; /* "": all */
    int n;
    struct watched_gpu *gpus;
    int is_wanted, is_over, n_holders;
};

static void let_go(struct gpu_watch *watch)
{
    int n = --watch->n_holders;

    pthread_mutex_unlock(&watch->lock);
    if (n)
        return;
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->lock);
    free(watch->gpus);
    free(watch);
}

/* ---- the thread ---- */

/* The lock is held. Of two of one kind the first stays. */
static void note_xid(struct gpu_watch *watch, struct watched_gpu *seen, int xid)
{
    if (seen->xid && xid_kind(xid) <= xid_kind(seen->xid))
        return;
    seen->xid = xid;
    pthread_cond_broadcast(&watch->changed);
}

/* The GPUs that are watched and can be asked; what is said of the others is that they are lost. */
static void find_gpus(struct gpu_watch *watch, struct nvml *nvml)
{
    int n = nvml_n_gpus(nvml);
    struct watched_gpu *gpus = calloc((size_t)n + 1, sizeof *gpus);
    struct err err;
    int n_found = 0;

    CHECK(gpus);
    for (int i = 0; i < n; i++) {
        struct watched_gpu *seen = &gpus[n_found];

        seen->index = i;
        if (nvml_gpu(nvml, i, &seen->gpu, &err) < 0)
            log_debug("%s", err.text);
        else
            n_found += !watch->pci[0] || !strcmp(watch->pci, seen->gpu.pci);
    }
    pthread_mutex_lock(&watch->lock);
    watch->gpus = gpus;
    watch->n = n_found;
    pthread_mutex_unlock(&watch->lock);
}

static void look(struct gpu_watch *watch, struct nvml *nvml)
{
    for (int i = 0; i < watch->n; i++) {
        struct nvml_state state;

        nvml_state(nvml, watch->gpus[i].index, &state);
        pthread_mutex_lock(&watch->lock);
        watch->gpus[i].state = state;
        watch->gpus[i].at = clock_seconds();
        if (state.is_lost)
            note_xid(watch, &watch->gpus[i], XID_LOST);
        pthread_mutex_unlock(&watch->lock);
    }
}

/* Hear of Xids for a while; without events the time passes. */
static void listen(struct gpu_watch *watch, struct nvml *nvml)
{
    int index, xid, status = nvml_wait_xid(nvml, WAIT_MS, &index, &xid);

    if (status < 0)
        usleep(WAIT_MS * 1000);
    if (status <= 0)
        return;
    pthread_mutex_lock(&watch->lock);
    for (int i = 0; i < watch->n; i++)
        if (watch->gpus[i].index == index)
            note_xid(watch, &watch->gpus[i], xid);
    pthread_mutex_unlock(&watch->lock);
}

static bool is_wanted(struct gpu_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    int wanted = watch->is_wanted;
    pthread_mutex_unlock(&watch->lock);
    return wanted;
}

static void *run(void *argument)
{
    struct gpu_watch *watch = argument;
    struct nvml *nvml = NULL;
    struct err err;
    double next = 0;

    if (nvml_open(&nvml, &err) < 0)
        log_debug("GPUs are not monitored: %s", err.text);
    else
        find_gpus(watch, nvml);
    while (nvml && is_wanted(watch)) {
        if (clock_seconds() >= next) {
            look(watch, nvml);
            next = clock_seconds() + 1e-3 * LOOK_MS;
        }
        listen(watch, nvml);
    }
    nvml_close(nvml);
    pthread_mutex_lock(&watch->lock);
    watch->is_over = true;
    pthread_cond_broadcast(&watch->changed);
    let_go(watch);
    return NULL;
}

/* ---- for its opener ---- */

struct gpu_watch *gpu_watch_open(const char *pci)
{
    struct gpu_watch *watch = calloc(1, sizeof *watch);
    pthread_condattr_t monotonic;

    if (!watch)
        return NULL;
    if (pci)
        snprintf(watch->pci, sizeof watch->pci, "%s", pci);
    watch->is_wanted = true;
    watch->n_holders = 2;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start(NULL, NULL, run, watch)) {
        watch->n_holders = 1;
        pthread_mutex_lock(&watch->lock);
        let_go(watch);
        return NULL;
    }
    return watch;
}

static struct timespec after(double seconds)
{
    double at = clock_seconds() + seconds;

    return (struct timespec){ .tv_sec = (time_t)at,
                              .tv_nsec = (long)((at - (double)(time_t)at) * 1e9) };
}

void gpu_watch_close(struct gpu_watch *watch)
{
    struct timespec until = after(close_seconds);

    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->is_wanted = false;
    while (!watch->is_over &&
           pthread_cond_timedwait(&watch->changed, &watch->lock, &until) != ETIMEDOUT)
        ;
    let_go(watch);
}

/* The lock is held. */
static struct watched_gpu *find(struct gpu_watch *watch, const char *pci)
{
    for (int i = 0; i < watch->n; i++)
        if (!strcmp(watch->gpus[i].gpu.pci, pci))
            return &watch->gpus[i];
    return NULL;
}

int gpu_watch_see(struct gpu_watch *watch, const char *pci, struct gpu_sight *sight)
{
    if (!watch)
        return -1;
    pthread_mutex_lock(&watch->lock);
    const struct watched_gpu *seen = find(watch, pci);
    bool is_seen = seen && (seen->at > 0 || seen->xid);

    if (is_seen)
        *sight = (struct gpu_sight){ .index = seen->index,
                                     .gpu = seen->gpu,
                                     .state = seen->state,
                                     .age_seconds = clock_seconds() - seen->at,
                                     .xid = seen->xid };
    pthread_mutex_unlock(&watch->lock);
    return is_seen ? 0 : -1;
}

void gpu_watch_wait_xid(struct gpu_watch *watch, const char *pci, double seconds)
{
    struct timespec until = after(seconds);
    const struct watched_gpu *seen;

    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    while (!watch->is_over &&
           !((seen = find(watch, pci)) && seen->xid && xid_is_final(seen->xid)) &&
           pthread_cond_timedwait(&watch->changed, &watch->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&watch->lock);
}
