/*
 * watcher_record.c - "hung" and "died" in the run's record, under srun and mpirun
 *
 * A thread calls on_trouble, since the file server that has the record may hang. Of several nodes
 * one records a death: that of the first notice in the file (death_notices_impl.h), whose order
 * all nodes see.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/thread.h"
#include "launch/watch/watcher_process_impl.h"

#define RECORD_BYTES 2048

struct trouble {
    struct trouble *next;
    const char *event;
    int64_t step;
    double at;
    char text[RECORD_BYTES];
    char notice[256]; /* of a death, where there are notices; "": recorded by each node */
};

struct watcher_record {
    const struct watcher_options *options;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct trouble *first;
    bool is_busy; /* with one that is no longer in the list */
};

/* ---- the thread ---- */

static void write_one(const struct watcher_record *record, const struct trouble *t,
                      struct death_notices *notices)
{
    const struct watcher_options *options = record->options;
    const char *first = NULL;

    if (*t->notice && notices) {
        death_notices_flush(notices, WATCHER_NOTICE_SECONDS);
        first = death_notices_first(notices, WATCHER_NOTICE_SECONDS);
    }
    if (!first || !strcmp(first, t->notice))
        options->on_trouble(options->context, t->event, t->step, t->at, t->text);
}

static void *write_all(void *argument)
{
    struct watcher *w = argument;
    struct watcher_record *record = w->record;

    pthread_mutex_lock(&record->lock);
    for (;;) {
        while (!record->first)
            pthread_cond_wait(&record->changed, &record->lock);
        struct trouble *t = record->first;

        record->first = t->next;
        record->is_busy = true;
        struct death_notices *notices = w->notices; /* are open before the first death is */
        pthread_mutex_unlock(&record->lock);
        write_one(record, t, notices);
        free(t);
        pthread_mutex_lock(&record->lock);
        record->is_busy = false;
        pthread_cond_broadcast(&record->changed);
    }
    return NULL;
}

static struct watcher_record *open_record(struct watcher *w)
{
    struct watcher_record *record = calloc(1, sizeof *record);
    pthread_condattr_t monotonic;

    if (!record)
        return NULL;
    record->options = &w->start->options;
    pthread_mutex_init(&record->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&record->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    w->record = record;
    if (thread_start(NULL, NULL, write_all, w)) {
        free(record);
        w->record = NULL;
        return NULL;
    }
    return record;
}

/* ---- the loop's side ---- */

static void add(struct watcher *w, const char *event, const char *text, const char *notice)
{
    struct trouble *t =
        w->start->options.on_trouble && !w->terminated ? calloc(1, sizeof *t) : NULL;

    if (t && !w->record)
        w->record = open_record(w);
    if (!t || !w->record) {
        free(t);
        return;
    }
    t->event = event;
    t->at = (double)time(NULL);
    for (int i = 0; i < w->n; i++)
        t->step = max_i64(t->step, atomic_load(&w->ranks[i].slot->step));
    snprintf(t->text, sizeof t->text, "%s", text);
    snprintf(t->notice, sizeof t->notice, "%s", notice);
    pthread_mutex_lock(&w->record->lock);
    struct trouble **end = &w->record->first;
    while (*end)
        end = &(*end)->next;
    *end = t;
    pthread_cond_broadcast(&w->record->changed);
    pthread_mutex_unlock(&w->record->lock);
}

void watcher_record_hang(struct watcher *w, const char *text)
{
    if (!w->has_recorded_hang)
        add(w, "hung", text, "");
    w->has_recorded_hang = true;
}

void watcher_record_death(struct watcher *w, const struct death *death)
{
    char text[1600], notice[256] = "";

    if (w->notices)
        death_notice(death, notice, sizeof notice);
    add(w, "died", death_sentence(death, text, sizeof text), notice);
}

void watcher_flush_record(struct watcher *w, double seconds)
{
    double at = clock_seconds() + seconds;
    struct timespec until = { .tv_sec = (time_t)at,
                              .tv_nsec = (long)((at - (double)(time_t)at) * 1e9) };

    if (!w->record)
        return;
    pthread_mutex_lock(&w->record->lock);
    while ((w->record->first || w->record->is_busy) &&
           pthread_cond_timedwait(&w->record->changed, &w->record->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&w->record->lock);
}
