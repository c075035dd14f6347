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

/* Until it is on the disk. Returns the bytes written, or -1 and errno. */
static int64_t write_file(int fd, const unsigned char *piece, double *seconds)
{
    double begin = clock_seconds();
    int64_t n_bytes = 0;

    for (int i = 0; i < FILE_PIECES && clock_seconds() < begin + FILE_SECONDS; i++) {
        ssize_t n = write(fd, piece, PIECE_BYTES);

        if (n <= 0)
            return -1;
        n_bytes += n;
    }
    if (fsync(fd))
        return -1;
    *seconds = clock_seconds() - begin;
    return n_bytes;
}

/* From the disk, where the system gives up what it has in memory. */
static int64_t read_file(int fd, unsigned char *piece, double *seconds)
{
    double begin = clock_seconds();
    int64_t n_bytes = 0;
    ssize_t n;

    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (lseek(fd, 0, SEEK_SET))
        return -1;
    while ((n = read(fd, piece, PIECE_BYTES)) > 0)
        n_bytes += n;
    *seconds = clock_seconds() - begin;
    return n < 0 ? -1 : n_bytes;
}

static int measure_file(struct bench_links *links, int fd, unsigned char *piece)
{
    double seconds;
    int64_t n_bytes = write_file(fd, piece, &seconds);

    if (n_bytes < 0)
        return -1;
    links->write_bytes_per_second = (double)n_bytes / seconds;
    n_bytes = read_file(fd, piece, &seconds);
    if (n_bytes < 0)
        return -1;
    links->read_bytes_per_second = (double)n_bytes / seconds;
    return 0;
}

/* What a folder does not take is not measured, and said. */
static void measure_storage(struct bench_links *links, const char *folder, struct arena *arena)
{
    char *path = arena_printf(arena, "%s/.lmtrain-bench-XXXXXX", existing_folder(folder, arena));
    unsigned char *piece = aligned_alloc(4096, PIECE_BYTES);
    int fd = mkstemp(path);

    if (fd >= 0)
        unlink(path);
    if (piece)
        memset(piece, 0x5a, PIECE_BYTES);
    if (fd < 0 || !piece || measure_file(links, fd, piece)) {
        *links = (struct bench_links){ .host_bytes_per_second = links->host_bytes_per_second };
        log_warn("storage is not measured: %s: %s (hint: --set output=FOLDER)", path,
                 strerror(errno));
    }
    free(piece);
    if (fd >= 0)
        close(fd);
}

int bench_links(struct bench_links *links, const char *folder, struct engine *engine,
                struct arena *arena, struct err *err)
{
    *links = (struct bench_links){ 0 };
    if (measure_host_link(links, engine, err))
        return -1;
    measure_storage(links, folder, arena);
    return 0;
}
