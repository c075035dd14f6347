/*
 * read_ahead.c - a second thread that does the next piece of work while the first does this one
 */
#include "ckpt/read_ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/thread.h"

enum read_ahead_state { STATE_IDLE, STATE_ASKED, STATE_LEAVE };

struct read_ahead {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    enum read_ahead_state state;
    read_ahead_fn fn;
    void *context;
    int status; /* of the piece that ended last */
    struct err err;
};

static void *ahead_main(void *context)
{
    struct read_ahead *a = context;

    pthread_mutex_lock(&a->mutex);
    while (a->state != STATE_LEAVE) {
        if (a->state == STATE_IDLE) {
            pthread_cond_wait(&a->changed, &a->mutex);
            continue;
        }
        pthread_mutex_unlock(&a->mutex);
        int status = a->fn(a->context, &a->err);
        pthread_mutex_lock(&a->mutex);
        a->status = status;
        a->state = STATE_IDLE;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

int read_ahead_create(struct read_ahead **ahead, read_ahead_fn fn, void *context, struct err *err)
{
    struct read_ahead *made = calloc(1, sizeof *made);

    if (!made)
        return err_set(err, ERR_DEVICE, "out of host memory");
    made->fn = fn;
    made->context = context;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->changed, NULL);
    int failed = thread_start(&made->thread, NULL, ahead_main, made);
    if (failed) {
        pthread_cond_destroy(&made->changed);
        pthread_mutex_destroy(&made->mutex);
        free(made);
        errno = failed;
        return err_set_errno(err, ERR_DEVICE, "cannot start the reading thread");
    }
    *ahead = made;
    return 0;
}

void read_ahead_begin(struct read_ahead *a)
{
    pthread_mutex_lock(&a->mutex);
    CHECK(a->state == STATE_IDLE);
    a->state = STATE_ASKED;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

int read_ahead_end(struct read_ahead *a, struct err *err)
{
    pthread_mutex_lock(&a->mutex);
    while (a->state == STATE_ASKED)
        pthread_cond_wait(&a->changed, &a->mutex);
    int status = a->status;
    if (status < 0)
        *err = a->err;
    pthread_mutex_unlock(&a->mutex);
    return status;
}

void read_ahead_destroy(struct read_ahead *a)
{
    struct err ignored;

    if (!a)
        return;
    read_ahead_end(a, &ignored);
    pthread_mutex_lock(&a->mutex);
    a->state = STATE_LEAVE;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
    CHECK(pthread_join(a->thread, NULL) == 0);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}
