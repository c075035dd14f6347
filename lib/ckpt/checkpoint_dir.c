/*
 * checkpoint_dir.c - files of a checkpoint's folder, by plain name and through no link
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/checkpoint_dir_impl.h"

int folder_open(struct folder *folder, const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return err_set_errno(err, ERR_DATA, "%s", path);
    *folder = (struct folder){ fd, path };
    return 0;
}

void folder_close(struct folder *folder)
{
    if (folder->fd >= 0)
        close(folder->fd);
    folder->fd = -1;
}

int folder_open_file(const struct folder *folder, const char *name, int64_t n_bytes,
                     struct err *err)
{
    struct stat stat_buffer;
    int fd = openat(folder->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ELOOP)
        return err_set(err, ERR_DATA, "%s/%s is a symbolic link, which is not followed",
                       folder->path, name);
    if (fd < 0)
        return err_set_errno(err, ERR_DATA, "%s/%s", folder->path, name);
    if (fstat(fd, &stat_buffer) < 0 || !S_ISREG(stat_buffer.st_mode))
        err_set(err, ERR_DATA, "%s/%s is not a regular file", folder->path, name);
    else if (n_bytes >= 0 && stat_buffer.st_size != n_bytes)
        err_set(err, ERR_DATA, "%s/%s has %lld bytes, but %lld according to the manifest",
                folder->path, name, (long long)stat_buffer.st_size, (long long)n_bytes);
    else
        return fd;
    close(fd);
    return -1;
}

int folder_read_file(const struct folder *folder, const char *name, size_t limit_bytes, char **data,
                     size_t *n_bytes, struct err *err)
{
    int fd = folder_open_file(folder, name, -1, err);
    struct stat stat_buffer;
    size_t used = 0;

    if (fd < 0)
        return -1;
    if (fstat(fd, &stat_buffer) < 0 || (uint64_t)stat_buffer.st_size > limit_bytes) {
        close(fd);
        return err_set(err, ERR_DATA, "%s/%s is larger than %zu bytes", folder->path, name,
                       limit_bytes);
    }
    size_t size = (size_t)stat_buffer.st_size;
    char *buffer = malloc(size + 1);
    while (buffer && used < size) {
        ssize_t n = read(fd, buffer + used, size - used);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    close(fd);
    if (!buffer || used < size) {
        free(buffer);
        return err_set(err, buffer ? ERR_DATA : ERR_DEVICE, "%s/%s: %s", folder->path, name,
                       buffer ? "cannot be read completely" : "out of host memory");
    }
    buffer[size] = '\0';
    *data = buffer;
    *n_bytes = size;
    return 0;
}
