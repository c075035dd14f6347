/*
 * file_queue.c - see the header
 */
#include "run/file_queue.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if LMTRAIN_URING
#include "base/thread.h"
#include <liburing.h>
#endif

struct file_queue {
    bool has_ring;
#if LMTRAIN_URING
    struct io_uring ring;
#endif
    int n_under_way; /* of the ring */

    /* What follows is the thread's, under the lock. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct file_request *given[FILE_QUEUE_DEPTH];
    int first, n_given;
    bool is_ending;
};

/* So many bytes were moved, or a failure: whether the request is done. */
static bool take(struct file_request *r, ssize_t moved, int error)
{
    if (moved > 0)
        r->n_moved += (size_t)moved;
    if (moved < 0 && (error == EINTR || error == EAGAIN))
        return false;
    if (moved > 0 && r->n_moved < r->n_bytes)
        return false;
    r->error = moved < 0 ? error : r->n_moved < r->n_bytes ? EIO : 0;
    return true;
}

/* ---- a thread ---- */

static void move(struct file_request *r)
{
    ssize_t n;

    do {
        size_t rest = r->n_bytes - r->n_moved;
        off_t at = (off_t)(r->offset + r->n_moved);

        n = r->is_write ? pwrite(r->fd, r->data + r->n_moved, rest, at)
                        : pread(r->fd, r->data + r->n_moved, rest, at);
    } while (!take(r, n, errno));
}

static void *thread_main(void *context)
{
    struct file_queue *q = context;

    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (!q->n_given && !q->is_ending)
            pthread_cond_wait(&q->changed, &q->lock);
        if (!q->n_given)
            break;
        struct file_request *r = q->given[q->first];
        q->first = (q->first + 1) % FILE_QUEUE_DEPTH;
        q->n_given--;
        pthread_mutex_unlock(&q->lock);
        move(r);
        atomic_store_explicit(&r->is_done, 1, memory_order_release);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static int start_thread(struct file_queue *q)
{
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    return thread_start(&q->thread, NULL, thread_main, q);
}

static void give_thread(struct file_queue *q, struct file_request *r)
{
    pthread_mutex_lock(&q->lock);
    CHECK(q->n_given < FILE_QUEUE_DEPTH);
    q->given[(q->first + q->n_given++) % FILE_QUEUE_DEPTH] = r;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

/* ---- io_uring ---- */

#if LMTRAIN_URING
static bool open_ring(struct file_queue *q)
{
    const char *wish = getenv("LMTRAIN_FILE_IO");

    return !(wish && !strcmp(wish, "thread")) &&
           io_uring_queue_init(FILE_QUEUE_DEPTH, &q->ring, 0) == 0;
}

static void give_ring(struct file_queue *q, struct file_request *r)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&q->ring);
    unsigned n = (unsigned)(r->n_bytes - r->n_moved);

    CHECK(entry);
    if (r->is_write)
        io_uring_prep_write(entry, r->fd, r->data + r->n_moved, n, r->offset + r->n_moved);
    else
        io_uring_prep_read(entry, r->fd, r->data + r->n_moved, n, r->offset + r->n_moved);
    io_uring_sqe_set_data(entry, r);
    q->n_under_way++;
    io_uring_submit(&q->ring);
}

static void look_ring(struct file_queue *q)
{
    struct io_uring_cqe *entry;

    while (q->n_under_way && io_uring_peek_cqe(&q->ring, &entry) == 0) {
        struct file_request *r = io_uring_cqe_get_data(entry);
        int moved = entry->res;

        io_uring_cqe_seen(&q->ring, entry);
        q->n_under_way--;
        if (take(r, moved, -moved))
            atomic_store_explicit(&r->is_done, 1, memory_order_relaxed);
        else
            give_ring(q, r);
    }
}

static void close_ring(struct file_queue *q)
{
    struct io_uring_cqe *entry;

    while (q->n_under_way && io_uring_wait_cqe(&q->ring, &entry) == 0)
        look_ring(q);
    io_uring_queue_exit(&q->ring);
}
#else
static bool open_ring(struct file_queue *q)
{
    (void)q;
    return false;
}
static void give_ring(struct file_queue *q, struct file_request *r)
{
    (void)q;
    (void)r;
}
static void look_ring(struct file_queue *q)
{
    (void)q;
}
static void close_ring(struct file_queue *q)
{
    (void)q;
}
#endif

/* ---- either ---- */

int file_queue_create(struct file_queue **out, struct err *err)
{
    struct file_queue *q = calloc(1, sizeof *q);

    if (!q)
        return err_set(err, ERR_FAILED, "out of host memory");
    q->has_ring = open_ring(q);
    int status = q->has_ring ? 0 : start_thread(q);
    if (status) {
        free(q);
        return err_set(err, ERR_FAILED, "cannot start a thread: %s", strerror(status));
    }
    *out = q;
    return 0;
}

void file_queue_destroy(struct file_queue *q)
{
    if (!q)
        return;
    if (q->has_ring) {
        close_ring(q);
        free(q);
        return;
    }
    pthread_mutex_lock(&q->lock);
    q->is_ending = true;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

void file_queue_give(struct file_queue *q, struct file_request *r)
{
    r->n_moved = 0;
    r->error = 0;
    atomic_store_explicit(&r->is_done, 0, memory_order_relaxed);
    (q->has_ring ? give_ring : give_thread)(q, r);
}

void file_queue_look(struct file_queue *q)
{
    if (q->has_ring)
        look_ring(q);
}

const char *file_queue_way(const struct file_queue *q)
{
    return q->has_ring ? "io_uring" : "thread";
}
