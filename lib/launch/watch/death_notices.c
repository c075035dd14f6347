/*
 * death_notices.c - the file log/watchers and the thread that reads it
 */
#include "launch/watch/death_notices_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/thread.h"

enum { TEXT_BYTES = 256, READ_BYTES = 16384 };

static const double look_seconds = 1;

struct death_notices {
    const char *log_folder;
    char id[24]; /* "0123456789abcdef " */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* any of these: */
    char to_post[TEXT_BYTES], first[TEXT_BYTES];
    bool has_posted; /* to_post is in the file, or could not be */
    uint64_t wanted; /* turns of the thread requested, and done; it takes one more each second */
    uint64_t done;
};

/* ---- the file ---- */

static int open_notices(const struct death_notices *notices, int flags)
{
    char path[4096];
    struct err ignored;
    int length = snprintf(path, sizeof path, "%s/watchers", notices->log_folder);

    /* With O_CREAT: NFS clients cache for half a minute that a file does not exist. */
    return length < (int)sizeof path ? file_open_write(path, flags, &ignored) : -1;
}

static void write_line(const struct death_notices *notices, const char *text)
{
    char line[sizeof notices->id + TEXT_BYTES];
    int length = snprintf(line, sizeof line, "%s%s\n", notices->id, text);
    int fd = open_notices(notices, O_WRONLY | O_APPEND);

    if (fd < 0)
        return;
    (void)file_write_all(fd, line, (size_t)length);
    close(fd);
}

/* The first whole line of our launch among the file's last, without its number; "" if none. */
static void read_line(const struct death_notices *notices, char text[TEXT_BYTES])
{
    static char lines[READ_BYTES + 1]; /* one thread reads */
    struct stat stat;
    int fd = open_notices(notices, O_RDWR);

    text[0] = '\0';
    if (fd < 0)
        return;
    off_t from = !fstat(fd, &stat) && stat.st_size > READ_BYTES ? stat.st_size - READ_BYTES : 0;
    ssize_t n = pread(fd, lines, READ_BYTES, from);
    close(fd);
    lines[n > 0 ? n : 0] = '\0';
    const char *line = strstr(lines, notices->id), *end = line ? strchr(line, '\n') : NULL;
    if (end)
        snprintf(text, TEXT_BYTES, "%.*s", (int)(end - line - (int)strlen(notices->id)),
                 line + strlen(notices->id));
}

/* ---- the thread ---- */

static struct timespec after(double seconds)
{
    double at = clock_seconds() + seconds;

    return (struct timespec){ .tv_sec = (time_t)at,
                              .tv_nsec = (long)((at - (double)(time_t)at) * 1e9) };
}

static void *look(void *argument)
{
    struct death_notices *notices = argument;
    char text[TEXT_BYTES];

    pthread_mutex_lock(&notices->lock);
    for (;;) {
        uint64_t wanted = notices->wanted;
        bool posts = notices->to_post[0] && !notices->has_posted;
        struct timespec next = after(look_seconds);

        pthread_mutex_unlock(&notices->lock);
        if (posts)
            write_line(notices, notices->to_post); /* does not change any more */
        read_line(notices, text);
        pthread_mutex_lock(&notices->lock);
        notices->has_posted |= posts;
        notices->done = wanted;
        if (!notices->first[0])
            memcpy(notices->first, text, sizeof text);
        pthread_cond_broadcast(&notices->changed);
        while (notices->wanted == wanted &&
               pthread_cond_timedwait(&notices->changed, &notices->lock, &next) != ETIMEDOUT)
            ;
    }
    return NULL;
}

struct death_notices *death_notices_open(const char *log_folder, uint64_t launch_id)
{
    struct death_notices *notices = calloc(1, sizeof *notices);
    pthread_condattr_t monotonic;

    if (!notices)
        return NULL;
    notices->log_folder = log_folder;
    snprintf(notices->id, sizeof notices->id, "%016" PRIx64 " ", launch_id);
    pthread_mutex_init(&notices->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&notices->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start(NULL, NULL, look, notices)) {
        free(notices);
        return NULL;
    }
    return notices;
}

/* Wake the thread and wait until it has been through once more. The lock is held. */
static void wait_for_look(struct death_notices *notices, double seconds)
{
    struct timespec until = after(seconds);
    uint64_t mine = ++notices->wanted;

    pthread_cond_broadcast(&notices->changed);
    while (notices->done < mine &&
           pthread_cond_timedwait(&notices->changed, &notices->lock, &until) != ETIMEDOUT)
        ;
}

void death_notices_post(struct death_notices *notices, const char *text)
{
    pthread_mutex_lock(&notices->lock);
    if (!notices->to_post[0]) {
        snprintf(notices->to_post, sizeof notices->to_post, "%s", text);
        notices->wanted++;
        pthread_cond_broadcast(&notices->changed);
    }
    pthread_mutex_unlock(&notices->lock);
}

const char *death_notices_first(struct death_notices *notices, double wait_seconds)
{
    pthread_mutex_lock(&notices->lock);
    if (wait_seconds > 0 && !notices->first[0])
        wait_for_look(notices, wait_seconds);
    /* Once there, it does not change any more. */
    const char *first = notices->first[0] ? notices->first : NULL;
    pthread_mutex_unlock(&notices->lock);
    return first;
}

void death_notices_flush(struct death_notices *notices, double wait_seconds)
{
    pthread_mutex_lock(&notices->lock);
    if (notices->to_post[0] && !notices->has_posted)
        wait_for_look(notices, wait_seconds);
    pthread_mutex_unlock(&notices->lock);
}
