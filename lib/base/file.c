/*
 * file.c - files and folders
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096

int file_read(const char *path, size_t limit_bytes, enum err_code code, char **data,
              size_t *n_bytes, struct err *err)
{
    struct stat stat_buffer;
    char *buffer = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_set_errno(err, code, "%s", path);
    if (fstat(fd, &stat_buffer) < 0) {
        err_set_errno(err, code, "%s", path);
        goto fail;
    }
    if (S_ISDIR(stat_buffer.st_mode)) {
        err_set(err, code, "%s is a folder, not a file", path);
        goto fail;
    }
    if ((uint64_t)stat_buffer.st_size > limit_bytes) {
        err_set(err, code, "%s has %lld bytes, at most %zu are read", path,
                (long long)stat_buffer.st_size, limit_bytes);
        goto fail;
    }
    /* Pipes and /proc report no size: grow as we read. */
    size_t capacity = (size_t)stat_buffer.st_size + 4096, used = 0;
    buffer = malloc(capacity + 1);
    while (buffer) {
        ssize_t n = read(fd, buffer + used, capacity - used);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err_set_errno(err, code, "%s", path);
            goto fail;
        }
        if (n == 0)
            break;
        used += (size_t)n;
        if (used > limit_bytes) {
            err_set(err, code, "%s is longer than %zu bytes", path, limit_bytes);
            goto fail;
        }
        if (used == capacity) {
            capacity *= 2;
            char *grown = realloc(buffer, capacity + 1);
            if (!grown)
                free(buffer);
            buffer = grown;
        }
    }
    if (!buffer) {
        err_set(err, ERR_DEVICE, "%s: out of host memory", path);
        goto fail;
    }
    close(fd);
    buffer[used] = '\0';
    *data = buffer;
    *n_bytes = used;
    return 0;
fail:
    free(buffer);
    close(fd);
    return -1;
}

static int write_all(int fd, const void *data, size_t n_bytes)
{
    const char *next = data;

    while (n_bytes) {
        ssize_t n = write(fd, next, n_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        next += n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

int file_sync_folder(const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return err_set_errno(err, ERR_FAILED, "%s", path);
    int failed = fsync(fd) < 0;
    if (failed)
        err_set_errno(err, ERR_FAILED, "%s", path);
    close(fd);
    return failed ? -1 : 0;
}

int file_write(const char *path, const void *data, size_t n_bytes, struct err *err)
{
    char beside[PATH_BYTES], folder[PATH_BYTES];

    if (snprintf(beside, sizeof beside, "%s.part-%ld", path, (long)getpid()) >= (int)sizeof beside)
        return err_set(err, ERR_FAILED, "%s: path too long", path);
    unlink(beside);
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set_errno(err, ERR_FAILED, "%s", beside);
    int failed = write_all(fd, data, n_bytes) < 0 || fsync(fd) < 0;
    if (failed)
        err_set_errno(err, ERR_FAILED, "%s", beside);
    if (close(fd) < 0 && !failed)
        failed = err_set_errno(err, ERR_FAILED, "%s", beside);
    if (!failed && rename(beside, path) < 0)
        failed = err_set_errno(err, ERR_FAILED, "%s", path);
    if (failed) {
        unlink(beside);
        return -1;
    }
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = '\0';
    return file_sync_folder(folder, err);
}

int file_make_folders(const char *path, struct err *err)
{
    char partial[PATH_BYTES];

    if (snprintf(partial, sizeof partial, "%s", path) >= (int)sizeof partial)
        return err_set(err, ERR_FAILED, "%s: path too long", path);
    for (char *p = partial + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        int last = *p == '\0';
        *p = '\0';
        if (mkdir(partial, 0700) < 0 && errno != EEXIST)
            return err_set_errno(err, ERR_FAILED, "cannot make folder %s", partial);
        if (last)
            break;
        *p = '/';
    }
    if (!file_is_folder(path))
        return err_set(err, ERR_FAILED, "%s exists and is no folder", path);
    return 0;
}

static int remove_entry(const char *path, const struct stat *stat_buffer, int type,
                        struct FTW *walk)
{
    (void)stat_buffer;
    (void)type;
    (void)walk;
    return remove(path);
}

int file_remove_tree(const char *path, struct err *err)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return err_set_errno(err, ERR_FAILED, "cannot remove %s", path);
    return 0;
}

int file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

int file_is_folder(const char *path)
{
    struct stat stat_buffer;

    return stat(path, &stat_buffer) == 0 && S_ISDIR(stat_buffer.st_mode);
}

int64_t file_size(const char *path)
{
    struct stat stat_buffer;

    return stat(path, &stat_buffer) == 0 ? (int64_t)stat_buffer.st_size : -1;
}

int file_map_open(struct file_map *map, const char *path, struct err *err)
{
    struct stat stat_buffer;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_set_errno(err, ERR_DATA, "%s", path);
    if (fstat(fd, &stat_buffer) < 0 || !S_ISREG(stat_buffer.st_mode)) {
        close(fd);
        return err_set(err, ERR_DATA, "%s is not a regular file", path);
    }
    *map = (struct file_map){ .n_bytes = (size_t)stat_buffer.st_size };
    if (map->n_bytes) {
        void *data = mmap(NULL, map->n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);

        if (data == MAP_FAILED) {
            err_set_errno(err, ERR_DATA, "cannot map %s", path);
            close(fd);
            *map = (struct file_map){ 0 };
            return -1;
        }
        map->data = data;
    }
    close(fd);
    return 0;
}

void file_map_close(struct file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->n_bytes);
    *map = (struct file_map){ 0 };
}
