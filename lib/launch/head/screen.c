/*
 * screen.c - a queue, and the thread that empties it
 */
#include "launch/head/screen_impl.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"

enum { FULL_BYTES = 256 << 10, LINE_BYTES = 4096 + 64 };

struct chunk {
    struct chunk *next;
    int fd;
    size_t n_bytes;
    char bytes[];
};

struct screen {
    pthread_t thread;
    int wake_fd;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t more;
    struct chunk *first, **last;
    size_t n_waiting; /* bytes, those that are being written among them */
    bool has_begun, is_over;
};

/* ---- the thread ---- */

/* Write all of it; the rest is dropped if the reader is gone. */
static void write_all(int fd, const char *bytes, size_t n_bytes)
{
    const char *end = bytes + n_bytes;
    size_t n_left;

    /* Another process that shares the terminal may have made it non-blocking. */
    while ((n_left = file_write_all(fd, end - n_bytes, n_bytes)) && errno == EAGAIN) {
        poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1);
        n_bytes = n_left;
    }
}

/* The next chunk, when there is one; NULL at the end. The lock is held. */
static struct chunk *next_chunk(struct screen *screen)
{
    while (!screen->first && !screen->is_over)
        pthread_cond_wait(&screen->more, &screen->lock);
    struct chunk *chunk = screen->first;
    if (chunk) {
        screen->first = chunk->next;
        if (!screen->first)
            screen->last = &screen->first;
    }
    return chunk;
}

static void *show(void *argument)
{
    struct screen *screen = argument;
    struct chunk *chunk;

    pthread_mutex_lock(&screen->lock);
    screen->has_begun = true;
    pthread_cond_broadcast(&screen->more);
    while ((chunk = next_chunk(screen))) {
        pthread_mutex_unlock(&screen->lock);
        write_all(chunk->fd, chunk->bytes, chunk->n_bytes);
        pthread_mutex_lock(&screen->lock);
        bool was_full = screen->n_waiting >= FULL_BYTES;
        screen->n_waiting -= chunk->n_bytes;
        if (!screen->n_waiting || (was_full && screen->n_waiting < FULL_BYTES))
            eventfd_write(screen->wake_fd, 1);
        free(chunk);
    }
    pthread_mutex_unlock(&screen->lock);
    return NULL;
}

/* ---- its user ---- */

void screen_put(struct screen *screen, int fd, const char *bytes, size_t n_bytes)
{
    if (!screen) {
        write_all(fd, bytes, n_bytes);
        return;
    }
    struct chunk *chunk = malloc(sizeof *chunk + n_bytes);
    CHECK(chunk);
    *chunk = (struct chunk){ .fd = fd, .n_bytes = n_bytes };
    memcpy(chunk->bytes, bytes, n_bytes);
    pthread_mutex_lock(&screen->lock);
    *screen->last = chunk;
    screen->last = &chunk->next;
    screen->n_waiting += n_bytes;
    pthread_cond_signal(&screen->more);
    pthread_mutex_unlock(&screen->lock);
}

static size_t n_waiting(struct screen *screen)
{
    pthread_mutex_lock(&screen->lock);
    size_t n = screen->n_waiting;
    pthread_mutex_unlock(&screen->lock);
    return n;
}

int screen_is_full(struct screen *screen)
{
    return n_waiting(screen) >= FULL_BYTES;
}

int screen_fd(const struct screen *screen)
{
    return screen->wake_fd;
}

void screen_before_fork(struct screen *screen)
{
    if (!screen)
        return;
    pthread_mutex_lock(&screen->lock);
    while (!screen->has_begun)
        pthread_cond_wait(&screen->more, &screen->lock);
}

void screen_after_fork(struct screen *screen)
{
    if (screen)
        pthread_mutex_unlock(&screen->lock);
}

void screen_rest(struct screen *screen)
{
    eventfd_t count;

    eventfd_read(screen->wake_fd, &count);
}

static void put_log_line(void *context, enum log_level level, const char *line)
{
    char text[LINE_BYTES];
    int n = level == LOG_INFO
                ? snprintf(text, sizeof text, "%s\n", line)
                : snprintf(text, sizeof text, "lmtrain: %s: %s\n", log_level_name(level), line);

    screen_put(context, STDERR_FILENO, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

int screen_open(struct screen **screen, struct err *err)
{
    struct screen *made = calloc(1, sizeof *made);

    CHECK(made);
    made->last = &made->first;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->more, NULL);
    made->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    errno = made->wake_fd < 0 ? errno : thread_start(&made->thread, NULL, show, made);
    if (errno) {
        err_set_errno(err, ERR_FAILED, "cannot start the thread that shows output");
        if (made->wake_fd >= 0)
            close(made->wake_fd);
        free(made);
        return -1;
    }
    log_set_sink(put_log_line, made);
    *screen = made;
    return 0;
}

/* Whether a signal asks this process to end. */
static int is_interrupted(int signal_fd)
{
    struct signalfd_siginfo info;

    while (read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            return 1;
    return 0;
}

void screen_close(struct screen *screen, int signal_fd)
{
    int gave_up = 0;

    if (!screen)
        return;
    log_set_sink(NULL, NULL);
    while (n_waiting(screen) && !gave_up) {
        struct pollfd polls[] = { { .fd = signal_fd, .events = POLLIN },
                                  { .fd = screen->wake_fd, .events = POLLIN } };

        poll(polls, 2, -1);
        screen_rest(screen);
        gave_up = is_interrupted(signal_fd);
    }
    if (gave_up) {
        /* It is blocked in a write, and uses the screen until exit. */
        pthread_detach(screen->thread);
        return;
    }
    pthread_mutex_lock(&screen->lock);
    screen->is_over = true;
    pthread_cond_signal(&screen->more);
    pthread_mutex_unlock(&screen->lock);
    pthread_join(screen->thread, NULL);
    close(screen->wake_fd);
    free(screen);
}

void screen_forget(void)
{
    log_set_sink(NULL, NULL);
}
