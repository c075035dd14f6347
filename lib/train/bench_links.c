/*
 * bench_links.c - copies between the host and the device, and files where checkpoints are written
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "train/bench_impl.h"

#define COPY_BYTES ((size_t)64 << 20)
#define PIECE_BYTES ((size_t)4 << 20)
#define FILE_SECONDS 1.0 /* that writing may take, */
#define FILE_PIECES 64   /* and pieces of the file */
enum { N_COPIES = 5 };

/* ---- the host's link ---- */

/* The best of some copies. A CPU's are from memory to memory. */
static int time_copies(struct engine *engine, void *to, const void *from, double *seconds,
                       struct err *err)
{
    struct device *device = engine->device;

    *seconds = 1e30;
    for (int i = 0; i < N_COPIES; i++) {
        double begin = clock_seconds();

        device->ops->copy(device, DEVICE_COMPUTE, to, from, COPY_BYTES);
        if (device->ops->wait(device, DEVICE_COMPUTE, err) < 0)
            return -1;
        *seconds = fmin(*seconds, clock_seconds() - begin);
    }
    return 0;
}

static int measure_host_link(struct bench_links *links, struct engine *engine, struct err *err)
{
    const struct device_ops *ops = engine->device->ops;
    bool is_host = device_is_host(engine->device);
    void *on_host = NULL, *on_device = NULL;
    double seconds;
    int status = ops->allocate(engine->device, COPY_BYTES, &on_device, err);

    if (!status)
        status = is_host ? ops->allocate(engine->device, COPY_BYTES, &on_host, err)
                         : ops->allocate_pinned(engine->device, COPY_BYTES, &on_host, err);
    if (!status && is_host)
        memset(on_host, 1, COPY_BYTES);
    if (!status)
        status = time_copies(engine, on_device, on_host, &seconds, err);
    if (!status)
        links->host_bytes_per_second = (double)COPY_BYTES / seconds;
    if (on_host && is_host)
        ops->release(engine->device, on_host);
    else if (on_host)
        ops->release_pinned(engine->device, on_host);
    if (on_device)
        ops->release(engine->device, on_device);
    return status;
}

/* ---- storage ---- */

/* The folder, or the nearest above it that there is. */
static const char *existing_folder(const char *folder, struct arena *arena)
{
    char *path = arena_strndup(arena, folder, strlen(folder));
    struct stat status;

    while (stat(path, &status) || !S_ISDIR(status.st_mode)) {
        char *slash = strrchr(path, '/');

        if (!slash)
            return ".";
        slash[slash == path] = '\0';
    }
    return path;
}

static bool is_stopped(const struct bench_storage *s)
{
    return s->is_stopped && s->is_stopped();
}

/* A file that is written piece by piece, each of which has its number all over. */
struct storage_file {
    int fd;
    uint64_t *piece;
};

static void fill_piece(const struct storage_file *f, int64_t number)
{
    for (size_t i = 0; i < PIECE_BYTES / sizeof *f->piece; i++)
        f->piece[i] = (uint64_t)number << 32 ^ i;
}

static bool is_piece(const struct storage_file *f, int64_t number)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < PIECE_BYTES / sizeof *f->piece; i++)
        bits |= f->piece[i] ^ ((uint64_t)number << 32 ^ i);
    return !bits;
}

/* Until it is on the disk. Returns the bytes written, or -1 and errno. */
static int64_t write_file(const struct bench_storage *s, const struct storage_file *f,
                          double *seconds)
{
    int64_t n_bytes = 0;

    *seconds = 0;
    while ((size_t)n_bytes < s->most_bytes && *seconds < s->most_seconds && !is_stopped(s)) {
        fill_piece(f, n_bytes);
        double begin = clock_seconds();
        ssize_t n = write(f->fd, f->piece, PIECE_BYTES);

        if (n != (ssize_t)PIECE_BYTES)
            return -1;
        n_bytes += n;
        *seconds += clock_seconds() - begin;
    }
    double begin = clock_seconds();
    if (fsync(f->fd))
        return -1;
    *seconds += clock_seconds() - begin;
    return n_bytes;
}

/* A piece, or what is left of the file. */
static ssize_t read_piece(const struct storage_file *f)
{
    ssize_t n_read = 0, n = 1;

    while (n > 0 && n_read < (ssize_t)PIECE_BYTES) {
        n = read(f->fd, (char *)f->piece + n_read, PIECE_BYTES - (size_t)n_read);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            n_read += n;
    }
    return n < 0 ? -1 : n_read;
}

/* From the disk, where the system gives up what it has in memory. */
static int64_t read_file(struct bench_storage *s, const struct storage_file *f, double *seconds)
{
    int64_t n_bytes = 0;
    ssize_t n = 1;

    *seconds = 0;
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (lseek(f->fd, 0, SEEK_SET))
        return -1;
    while (n > 0 && !is_stopped(s)) {
        double begin = clock_seconds();

        n = read_piece(f);
        *seconds += clock_seconds() - begin;
        s->n_wrong += n > 0 && (n != (ssize_t)PIECE_BYTES || !is_piece(f, n_bytes));
        n_bytes += n > 0 ? n : 0;
    }
    return n < 0 ? -1 : n_bytes;
}

static int measure_file(struct bench_storage *s, const struct storage_file *f)
{
    double seconds;
    int flags = fcntl(f->fd, F_GETFL);
    int64_t n_bytes;

    /* Not every file system has it, and some refuse it only when a piece is written. */
    if (flags >= 0 && fcntl(f->fd, F_SETFL, flags | O_DIRECT) == 0 &&
        (pwrite(f->fd, f->piece, PIECE_BYTES, 0) != (ssize_t)PIECE_BYTES || ftruncate(f->fd, 0)))
        fcntl(f->fd, F_SETFL, flags);
    if ((n_bytes = write_file(s, f, &seconds)) < 0)
        return -1;
    double written = n_bytes > 0 ? (double)n_bytes / seconds : 0;
    if ((n_bytes = read_file(s, f, &seconds)) < 0)
        return -1;
    s->write_bytes_per_second = written;
    s->read_bytes_per_second = n_bytes > 0 ? (double)n_bytes / seconds : 0;
    return 0;
}

/* What a folder does not take is not measured, and said. */
void bench_storage(struct bench_storage *s, struct arena *arena)
{
    char *path = arena_printf(arena, "%s/.lmtrain-bench-XXXXXX", existing_folder(s->folder, arena));
    struct storage_file file = { mkstemp(path), aligned_alloc(4096, PIECE_BYTES) };

    s->n_wrong = 0;
    s->write_bytes_per_second = s->read_bytes_per_second = 0;
    if (file.fd >= 0)
        unlink(path);
    if (file.piece)
        memset(file.piece, 0x5a, PIECE_BYTES);
    if (file.fd < 0 || !file.piece || measure_file(s, &file))
        log_warn("storage is not measured: %s: %s (hint: --set output=FOLDER)", path,
                 strerror(errno));
    free(file.piece);
    if (file.fd >= 0)
        close(file.fd);
}

int bench_links(struct bench_links *links, const char *folder, struct engine *engine,
                struct arena *arena, struct err *err)
{
    struct bench_storage storage = { .folder = folder,
                                     .most_bytes = FILE_PIECES * PIECE_BYTES,
                                     .most_seconds = FILE_SECONDS };

    *links = (struct bench_links){ 0 };
    if (measure_host_link(links, engine, err))
        return -1;
    bench_storage(&storage, arena);
    links->read_bytes_per_second = storage.read_bytes_per_second;
    links->write_bytes_per_second = storage.write_bytes_per_second;
    return 0;
}
