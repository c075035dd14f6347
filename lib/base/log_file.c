/*
 * log_file.c - append, and turn over by size
 */
#include "base/log_file.h"

#include <fcntl.h>
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

/* "PATH.1"; heap. */
static char *older_path(const char *path)
{
    char *older = NULL;

    CHECK(asprintf(&older, "%s.1", path) >= 0);
    return older;
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
    char *older = older_path(file->path);
    struct err ignored;

    if (file->fd >= 0)
        close(file->fd);
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
    if (file->n_bytes && file->n_bytes + n_bytes > LOG_FILE_BYTES)
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
    if (!fstat(fd, &stat) && S_ISREG(stat.st_mode) && stat.st_size > LOG_FILE_BYTES) {
        char *older = older_path(path);
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
