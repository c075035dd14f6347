/*
 * log_file.c - append, and turn over by size
 */
#include "base/log_file.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

enum { COPY_BYTES = 64 << 10, LOOK_SECONDS = 1 };

struct log_file {
    int fd; /* -1: the new one could not be opened */
    size_t n_bytes;
    double looked_at; /* whether it is still there */
    char path[];
};

static size_t limit_bytes = (size_t)LOG_FILE_MB << 20;

void log_file_set_limit(size_t n_bytes)
{
    limit_bytes = n_bytes;
}

/* "PATH.1"; heap. */
static char *older_path(const char *path, int i)
{
    char *older = NULL;

    CHECK(asprintf(&older, "%s.%d", path, i) >= 0);
    return older;
}

/* PATH.1 becomes PATH.2, and so on; the last is replaced. */
static void shift_older(const char *path)
{
    for (int i = LOG_FILE_N_OLD - 1; i > 0; i--) {
        char *from = older_path(path, i), *to = older_path(path, i + 1);

        rename(from, to);
        free(from);
        free(to);
    }
}

struct log_file *log_file_open(const char *path, struct err *err)
{
    int fd = file_open_write(path, O_WRONLY | O_APPEND, err);
    struct stat stat;

    if (fd < 0)
        return NULL;
    struct log_file *made = malloc(sizeof *made + strlen(path) + 1);
    CHECK(made);
    made->fd = fd;
    made->looked_at = clock_seconds();
    made->n_bytes = fstat(fd, &stat) ? 0 : (size_t)stat.st_size;
    memcpy(made->path, path, strlen(path) + 1);
    return made;
}

void log_file_close(struct log_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    free(file);
}

static void turn_over(struct log_file *file)
{
    char *older = older_path(file->path, 1);
    struct err ignored;

    if (file->fd >= 0)
        close(file->fd);
    shift_older(file->path);
    rename(file->path, older);
    free(older);
    file->fd = file_open_write(file->path, O_WRONLY | O_APPEND, &ignored);
    file->n_bytes = 0;
}

/* A file that was deleted is created again, if its folder exists. */
static void look_after(struct log_file *file)
{
    double now = clock_seconds();
    struct stat stat;
    struct err ignored;

    if (now - file->looked_at < LOOK_SECONDS)
        return;
    file->looked_at = now;
    if (file->fd >= 0 && (fstat(file->fd, &stat) || stat.st_nlink))
        return;
    int fd = file_open_write(file->path, O_WRONLY | O_APPEND, &ignored);
    if (fd < 0)
        return;
    if (file->fd >= 0)
        close(file->fd);
    file->fd = fd;
    file->n_bytes = 0;
}

void log_file_write(struct log_file *file, const char *lines, size_t n_bytes)
{
    look_after(file);
    if (file->n_bytes && file->n_bytes + n_bytes > limit_bytes)
        turn_over(file);
    if (file->fd >= 0)
        file_write_all(file->fd, lines, n_bytes);
    file->n_bytes += n_bytes;
}

static int copy_all(int from, int to)
{
    char bytes[COPY_BYTES];
    ssize_t n;

    while ((n = read(from, bytes, sizeof bytes)) > 0)
        if (file_write_all(to, bytes, (size_t)n))
            return -1;
    return n < 0 ? -1 : 0;
}

int log_file_bound(const char *path)
{
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK), emptied = 0;
    struct stat stat;
    struct err ignored;

    if (fd < 0)
        return 0;
    if (!fstat(fd, &stat) && S_ISREG(stat.st_mode) && (size_t)stat.st_size > limit_bytes) {
        char *older = older_path(path, 1);

        shift_older(path);
        int to = file_open_write(older, O_WRONLY | O_TRUNC, &ignored);
        if (to >= 0) {
            copy_all(fd, to); /* as much as the disk takes */
            close(to);
        }
        emptied = !ftruncate(fd, 0);
        free(older);
    }
    close(fd);
    return emptied;
}

/* ---- reading ---- */

/* The last bytes from `begin` on, at most `size`; returns how many, -1 if there is no such file.
 * *is_cut: there are earlier ones. A file shorter than `begin` was rotated. */
static ssize_t read_end(const char *path, int64_t begin, char *bytes, size_t size, bool *is_rotated,
                        bool *is_cut)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat stat;
    ssize_t n = -1;

    if (fd < 0)
        return -1;
    if (!fstat(fd, &stat) && S_ISREG(stat.st_mode)) {
        *is_rotated = stat.st_size < begin;
        off_t first = *is_rotated ? 0 : (off_t)begin;
        off_t from = stat.st_size - first > (off_t)size ? stat.st_size - (off_t)size : first;

        *is_cut = from > first;
        n = pread(fd, bytes, size, from);
    }
    close(fd);
    return n;
}

void log_file_tail(const char *path, int64_t begin, char *text, size_t size)
{
    bool is_rotated = false, is_cut = false;
    ssize_t n = read_end(path, begin, text, size - 1, &is_rotated, &is_cut);
    size_t length = n > 0 ? (size_t)n : 0;

    if (n >= 0 && is_rotated && length < size - 1) {
        char *older = older_path(path, 1);
        size_t room = size - 1 - length;
        bool ignored;

        memmove(text + room, text, length);
        n = read_end(older, 0, text, room, &ignored, &is_cut);
        size_t before = n > 0 ? (size_t)n : 0;
        memmove(text + before, text + room, length);
        length += before;
        free(older);
    }
    text[length] = '\0';
    char *newline = is_cut ? strchr(text, '\n') : NULL;
    if (newline) /* the first line is not whole */
        memmove(text, newline + 1, strlen(newline + 1) + 1);
    while (text[0] && text[strlen(text) - 1] == '\n')
        text[strlen(text) - 1] = '\0';
}
