/*
 * log.c - format into a fixed line, hand it to the sink under a lock
 */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log_file.h"

enum { SCREEN_ATTEMPTS = 4, SCREEN_WAIT_MS = 50 };

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static log_sink_fn log_sink;
static void *log_context;
static int log_threshold = -1;
static int screen_fd = -1;
static char screen_prefix[64];
static struct log_file *log_file;

static const char *const level_names[] = { "debug", "info", "warn", "error" };

void log_set_sink(log_sink_fn sink, void *context)
{
    log_sink = sink;
    log_context = context;
}

void log_set_level(enum log_level level)
{
    log_threshold = (int)level;
}

const char *log_level_name(enum log_level level)
{
    return level_names[level];
}

void log_set_screen(int fd, const char *prefix)
{
    snprintf(screen_prefix, sizeof screen_prefix, "%s", prefix);
    screen_fd = fd;
}

/*
 * One write, so that lines of several writers don't mix. A screen that does not take it soon (a
 * terminal that is stopped and non-blocking) misses the line; one that is gone gets no more.
 */
static void write_screen(const char *line, size_t length)
{
    struct pollfd screen = { .fd = screen_fd, .events = POLLOUT };

    for (int attempt = 0; attempt < SCREEN_ATTEMPTS; attempt++) {
        if (write(screen_fd, line, length) >= 0)
            return;
        if (errno == EPIPE || errno == EBADF || errno == EIO) {
            screen_fd = -1;
            return;
        }
        if (errno == EAGAIN)
            poll(&screen, 1, SCREEN_WAIT_MS);
        else if (errno != EINTR)
            return;
    }
}

void log_to_screen(const char *line)
{
    char whole[4096 + sizeof screen_prefix + 32];
    int length;

    if (screen_fd < 0)
        return;
    length = snprintf(whole, sizeof whole, "%s%s\n", screen_prefix, line);
    if (length >= (int)sizeof whole) {
        length = (int)sizeof whole - 1;
        whole[length - 1] = '\n';
    }
    write_screen(whole, (size_t)length);
}

void log_set_file(struct log_file *file)
{
    pthread_mutex_lock(&log_lock);
    log_file_close(log_file);
    log_file = file;
    pthread_mutex_unlock(&log_lock);
}

/* Under the lock. */
static void add_to_file(const char *line)
{
    char whole[4096 + 64];

    if (!log_file)
        return;
    int length = snprintf(whole, sizeof whole, "%s\n", line);
    if (length >= (int)sizeof whole) {
        length = (int)sizeof whole - 1;
        whole[length - 1] = '\n';
    }
    log_file_write(log_file, whole, (size_t)length);
}

void log_to_file(const char *line)
{
    pthread_mutex_lock(&log_lock);
    add_to_file(line);
    pthread_mutex_unlock(&log_lock);
}

static int log_enabled(enum log_level level)
{
    if (log_threshold < 0) {
        const char *wanted = getenv("LMTRAIN_LOG");

        log_threshold = LOG_INFO;
        for (int i = 0; wanted && i < 4; i++)
            if (!strcmp(wanted, level_names[i]))
                log_threshold = i;
    }
    return (int)level >= log_threshold;
}

static void log_line(enum log_level level, const char *format, va_list args)
{
    char line[4096], named[sizeof line + 32];

    if (!log_enabled(level))
        return;
    vsnprintf(line, sizeof line, format, args);
    snprintf(named, sizeof named, "lmtrain: %s: %s", level_names[level], line);
    pthread_mutex_lock(&log_lock);
    if (log_sink)
        log_sink(log_context, level, line);
    else
        fprintf(stderr, "%s\n", level == LOG_INFO ? line : named);
    if (level >= LOG_WARN)
        log_to_screen(named);
    add_to_file(level == LOG_INFO ? line : named);
    pthread_mutex_unlock(&log_lock);
}

#define LOG_FUNCTION(name, level) \
    void name(const char *format, ...) \
    { \
        va_list args; \
        va_start(args, format); \
        log_line(level, format, args); \
        va_end(args); \
    }

LOG_FUNCTION(log_debug, LOG_DEBUG)
LOG_FUNCTION(log_info, LOG_INFO)
LOG_FUNCTION(log_warn, LOG_WARN)
LOG_FUNCTION(log_error, LOG_ERROR)
