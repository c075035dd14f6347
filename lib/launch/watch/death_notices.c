/*
 * death_notices.c - the file log/watchers and the thread that reads it
 */
#include "launch/watch/death_notices_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

enum { TEXT_BYTES = 256, READ_BYTES = 16384 };

static const double look_seconds = 1;

struct death_notices {
    const char *log_folder;
    char id[24]; /* "0123456789abcdef " */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* any of these: */
    char to_tell[TEXT_BYTES], heard[TEXT_BYTES];
    int has_told;    /* to_tell is in the file, or could not be */
    uint64_t wanted; /* looks asked for, and done; the thread does one more each second */
    uint64_t done;
};

/* ---- the file ---- */

static int open_news(const struct death_notices *news, int flags)
{
    char path[4096];
    struct err ignored;
    int length = snprintf(path, sizeof path, "%s/watchers", news->log_folder);

    /* NFS believes for half a minute that there is no such file, except for who would make it. */
    return length < (int)sizeof path ? file_open_write(path, flags, &ignored) : -1;
}

static void write_line(const struct death_notices *news, const char *text)
{
    char line[sizeof news->id + TEXT_BYTES];
    int length = snprintf(line, sizeof line, "%s%s\n", news->id, text);
    int fd = open_news(news, O_WRONLY | O_APPEND);

    if (fd < 0)
        return;
    (void)file_write_all(fd, line, (size_t)length);
    close(fd);
}

/* The first whole line of our launch among the file's last, without its number; "" if none. */
static void read_line(const struct death_notices *news, char text[TEXT_BYTES])
{
    static char lines[READ_BYTES + 1]; /* one thread reads */
    struct stat stat;
    int fd = open_news(news, O_RDWR);

    text[0] = '\0';
    if (fd < 0)
        return;
    off_t from = !fstat(fd, &stat) && stat.st_size > READ_BYTES ? stat.st_size - READ_BYTES : 0;
    ssize_t n = pread(fd, lines, READ_BYTES, from);
    close(fd);
    lines[n > 0 ? n : 0] = '\0';
    const char *line = strstr(lines, news->id), *end = line ? strchr(line, '\n') : NULL;
    if (end)
        snprintf(text, TEXT_BYTES, "%.*s", (int)(end - line - (int)strlen(news->id)),
                 line + strlen(news->id));
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
    struct death_notices *news = argument;
    char text[TEXT_BYTES];

    pthread_mutex_lock(&news->lock);
    for (;;) {
        uint64_t wanted = news->wanted;
        int tells = news->to_tell[0] && !news->has_told;
        struct timespec next = after(look_seconds);

        pthread_mutex_unlock(&news->lock);
        if (tells)
            write_line(news, news->to_tell); /* does not change any more */
        read_line(news, text);
        pthread_mutex_lock(&news->lock);
        news->has_told |= tells;
        news->done = wanted;
        if (!news->heard[0])
            memcpy(news->heard, text, sizeof text);
        pthread_cond_broadcast(&news->changed);
        while (news->wanted == wanted &&
               pthread_cond_timedwait(&news->changed, &news->lock, &next) != ETIMEDOUT)
            ;
    }
    return NULL;
}

struct death_notices *death_notices_open(const char *log_folder, uint64_t launch_id)
{
    struct death_notices *news = calloc(1, sizeof *news);
    pthread_condattr_t monotonic;
    pthread_t thread;

    if (!news)
        return NULL;
    news->log_folder = log_folder;
    snprintf(news->id, sizeof news->id, "%016" PRIx64 " ", launch_id);
    pthread_mutex_init(&news->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&news->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&thread, NULL, look, news)) {
        free(news);
        return NULL;
    }
    pthread_detach(thread);
    return news;
}

/* Wake the thread and wait until it has been through once more. The lock is held. */
static void wait_for_look(struct death_notices *news, double seconds)
{
    struct timespec until = after(seconds);
    uint64_t mine = ++news->wanted;

    pthread_cond_broadcast(&news->changed);
    while (news->done < mine &&
           pthread_cond_timedwait(&news->changed, &news->lock, &until) != ETIMEDOUT)
        ;
}

void death_notices_tell(struct death_notices *news, const char *text)
{
    pthread_mutex_lock(&news->lock);
    if (!news->to_tell[0]) {
        snprintf(news->to_tell, sizeof news->to_tell, "%s", text);
        news->wanted++;
        pthread_cond_broadcast(&news->changed);
    }
    pthread_mutex_unlock(&news->lock);
}

const char *death_notices_heard(struct death_notices *news, double wait_seconds)
{
    pthread_mutex_lock(&news->lock);
    if (wait_seconds > 0 && !news->heard[0])
        wait_for_look(news, wait_seconds);
    /* Once there, it does not change any more. */
    const char *heard = news->heard[0] ? news->heard : NULL;
    pthread_mutex_unlock(&news->lock);
    return heard;
}

void death_notices_flush(struct death_notices *news, double wait_seconds)
{
    pthread_mutex_lock(&news->lock);
    if (news->to_tell[0] && !news->has_told)
        wait_for_look(news, wait_seconds);
    pthread_mutex_unlock(&news->lock);
}
