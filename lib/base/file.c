/*
 * file.c - files and folders
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096

#define PIPE_WAIT_MS 10000
#define PART ".part-"

/* ---- permissions ---- */

static _Atomic(enum file_sharing) sharing_now = FILE_PRIVATE;

enum file_sharing file_share(enum file_sharing sharing)
{
    return atomic_exchange(&sharing_now, sharing);
}

static mode_t file_mode(void)
{
    static const mode_t modes[] = {
        [FILE_PRIVATE] = 0600, [FILE_GROUP] = 0640, [FILE_ALL] = 0644, [FILE_UMASK] = 0666
    };

    return modes[atomic_load(&sharing_now)];
}

static mode_t folder_mode(void)
{
    static const mode_t modes[] = {
        [FILE_PRIVATE] = 0700, [FILE_GROUP] = 0750, [FILE_ALL] = 0755, [FILE_UMASK] = 0777
    };

    return modes[atomic_load(&sharing_now)];
}

/* Add the permissions that the umask or the creating call left out, to files of this user only. */
static void add_mode(int fd, mode_t mode)
{
    struct stat stat_buffer;

    if (atomic_load(&sharing_now) != FILE_UMASK && fstat(fd, &stat_buffer) == 0 &&
        stat_buffer.st_uid == geteuid() && (stat_buffer.st_mode & mode) != mode)
        (void)fchmod(fd, (stat_buffer.st_mode & 07777) | mode);
}

void file_share_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    add_mode(fd, folder_mode());
    close(fd);
}

/* ---- reading ---- */

/* What is being read, and how to complain about it. */
struct file_source {
    const char *path;
    enum err_code code;
    struct err *err;
    int fd;
    size_t n_bytes; /* as its file says: 0 for pipes and /proc */
};

/*
 * Wait until there is data to read or the end of input. A pipe that no process writes to would
 * block forever, so a pipe without data for PIPE_WAIT_MS is an error; standard input may be typed
 * by hand and has no limit.
 */
static int wait_for_pipe(const struct file_source *source)
{
    struct pollfd readable = { .fd = source->fd, .events = POLLIN };
    int wait_ms = strcmp(source->path, "/dev/stdin") ? PIPE_WAIT_MS : -1;
    int n;

    do
        n = poll(&readable, 1, wait_ms);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return err_set(source->err, source->code, "%s is a pipe and delivered no data for %d s",
                       source->path, PIPE_WAIT_MS / 1000);
    return n < 0 ? err_set_errno(source->err, source->code, "%s", source->path) : 0;
}

/* A run's folder is often given for its job. */
static void refuse_folder(const struct file_source *source)
{
    char job[4096];

    snprintf(job, sizeof job, "%s/job.yaml", source->path);
    if (file_exists(job))
        err_set(source->err, source->code, "%s is a folder, not a file (hint: %s)", source->path,
                job);
    else
        err_set(source->err, source->code, "%s is a folder, not a file", source->path);
}

/* Open without waiting for a pipe's other end. */
static int source_open(struct file_source *source)
{
    struct stat stat_buffer;

    source->fd = open(source->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (source->fd < 0)
        return err_set_errno(source->err, source->code, "%s", source->path);
    if (fstat(source->fd, &stat_buffer) < 0)
        err_set_errno(source->err, source->code, "%s", source->path);
    else if (S_ISDIR(stat_buffer.st_mode))
        refuse_folder(source);
    else if (!S_ISFIFO(stat_buffer.st_mode) || wait_for_pipe(source) == 0) {
        source->n_bytes = (size_t)stat_buffer.st_size;
        return 0;
    }
    close(source->fd);
    return -1;
}

/* read(), waiting where there is nothing yet; -1 with the error set. */
static ssize_t grown_vocab_read(const struct file_source *source, char *out, size_t n_bytes)
{
    for (;;) {
        ssize_t n = read(source->fd, out, n_bytes);

        if (n >= 0)
            return n;
        if (errno == EAGAIN && wait_for_pipe(source) < 0)
            return -1;
        if (errno != EINTR && errno != EAGAIN)
            return err_set_errno(source->err, source->code, "%s", source->path);
    }
}

/* Pipes and /proc report no size: grow as we read. */
static int source_read_all(const struct file_source *source, size_t limit_bytes, char **data,
                           size_t *n_bytes)
{
    size_t capacity = source->n_bytes + 4096, used = 0;
    char *buffer = malloc(capacity + 1);
    ssize_t n = 1;

    while (buffer && n > 0) {
        n = grown_vocab_read(source, buffer + used, capacity - used);
        if (n > 0 && (used += (size_t)n) > limit_bytes)
            n = err_set(source->err, source->code, "%s is longer than %zu bytes", source->path,
                        limit_bytes);
        if (n > 0 && used == capacity) {
            capacity *= 2;
            char *grown = realloc(buffer, capacity + 1);
            if (!grown)
                free(buffer);
            buffer = grown;
        }
    }
    if (!buffer)
        return err_set(source->err, ERR_DEVICE, "%s: out of host memory", source->path);
    if (n < 0) {
        free(buffer);
        return -1;
    }
    buffer[used] = '\0';
    *data = buffer;
    *n_bytes = used;
    return 0;
}

int file_read(const char *path, size_t limit_bytes, enum err_code code, char **data,
              size_t *n_bytes, struct err *err)
{
    struct file_source source = { .path = path, .code = code, .err = err };
    int status;

    if (source_open(&source) < 0)
        return -1;
    if (source.n_bytes > limit_bytes)
        status = err_set(err, code, "%s has %zu bytes, at most %zu are allowed", path,
                         source.n_bytes, limit_bytes);
    else
        status = source_read_all(&source, limit_bytes, data, n_bytes);
    close(source.fd);
    return status;
}

/* ---- writing ---- */

/* Why path could not be opened for writing: a link and a pipe explain more than their errno. */
static void explain_open(const char *path, int why, struct err *err)
{
    struct stat stat_buffer;
    bool is_there = lstat(path, &stat_buffer) == 0;

    errno = why;
    if (is_there && S_ISLNK(stat_buffer.st_mode))
        err_set(err, ERR_FAILED,
                "%s is a symbolic link, which is not followed for writing (hint: remove it)", path);
    else if (is_there && !S_ISREG(stat_buffer.st_mode))
        err_set(err, ERR_FAILED, "%s exists and is not a file (hint: remove it)", path);
    else
        err_set_errno(err, ERR_FAILED, "%s", path);
}

int file_open_write(const char *path, int flags, struct err *err)
{
    struct stat stat_buffer;
    int fd =
        open(path, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, file_mode());
    int why = errno;

    if (fd >= 0 && (fstat(fd, &stat_buffer) < 0 || !S_ISREG(stat_buffer.st_mode))) {
        close(fd);
        fd = -1;
        why = EINVAL;
    }
    if (fd < 0) {
        explain_open(path, why, err);
        errno = why;
        return -1;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    add_mode(fd, file_mode());
    return fd;
}

size_t file_write_all(int fd, const void *data, size_t n_bytes)
{
    const char *next = data;

    while (n_bytes) {
        ssize_t n = write(fd, next, n_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        next += n;
        n_bytes -= (size_t)n;
    }
    return n_bytes;
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

    if (snprintf(beside, sizeof beside, "%s" PART "%ld", path, (long)getpid()) >=
        (int)sizeof beside)
        return err_set(err, ERR_FAILED, "%s: path too long", path);
    unlink(beside);
    int fd = file_open_write(beside, O_WRONLY | O_EXCL, err);
    if (fd < 0)
        return err_set_errno(err, ERR_FAILED, "%s", path); /* which is what the caller knows */
    int failed = file_write_all(fd, data, n_bytes) || fsync(fd) < 0;
    if (failed)
        err_set_errno(err, ERR_FAILED, "%s", path);
    if (close(fd) < 0 && !failed)
        failed = err_set_errno(err, ERR_FAILED, "%s", path);
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

/* The process in "NAME.part-PID"; 0 if the name is not of that form. */
static pid_t part_owner(const char *name)
{
    const char *found = strstr(name, PART), *next;
    char *end;

    while (found && (next = strstr(found + 1, PART)))
        found = next;
    if (!found || found == name)
        return 0;
    long pid = strtol(found + strlen(PART), &end, 10);
    return *end || end == found + strlen(PART) || pid < 1 || pid > INT_MAX ? 0 : (pid_t)pid;
}

void file_sweep_parts(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        pid_t owner = part_owner(entry->d_name);

        if (owner && kill(owner, 0) < 0 && errno == ESRCH)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

/* ---- folders ---- */

/* One that is there already is fine, whatever it is. */
static int make_one(const char *path, struct err *err)
{
    if (mkdir(path, folder_mode()) == 0)
        file_share_folder(path);
    else if (errno != EEXIST)
        return err_set_errno(err, ERR_FAILED, "cannot make folder %s", path);
    return 0;
}

int file_make_folders(const char *path, struct err *err)
{
    char partial[PATH_BYTES];

    if (!*path)
        return err_set(err, ERR_FAILED, "a folder name is empty");
    if (snprintf(partial, sizeof partial, "%s", path) >= (int)sizeof partial)
        return err_set(err, ERR_FAILED, "%.64s...: path too long", path);
    for (char *p = partial + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        int last = *p == '\0';
        *p = '\0';
        if (make_one(partial, err) < 0)
            return -1;
        if (last)
            break;
        *p = '/';
    }
    if (!file_is_folder(path))
        return err_set(err, ERR_FAILED, "%s exists and is not a folder", path);
    return 0;
}

int file_make_folder(const char *path, struct err *err)
{
    struct stat stat_buffer;
    bool is_there = lstat(path, &stat_buffer) == 0;

    if (is_there && S_ISLNK(stat_buffer.st_mode))
        return err_set(
            err, ERR_FAILED,
            "%s is a symbolic link, which is not followed for writing (hint: remove it; the "
            "whole output folder may be a link)",
            path);
    return file_make_folders(path, err);
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

bool file_is_folder(const char *path)
{
    struct stat stat_buffer;

    return stat(path, &stat_buffer) == 0 && S_ISDIR(stat_buffer.st_mode);
}

bool file_is_empty_folder(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int n = 0;

    while (dir && (entry = readdir(dir)))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (dir)
        closedir(dir);
    return dir && n == 0;
}

int64_t file_size(const char *path)
{
    struct stat stat_buffer;

    return stat(path, &stat_buffer) == 0 ? (int64_t)stat_buffer.st_size : -1;
}

int file_map_open(struct file_map *map, const char *path, struct err *err)
{
    struct stat stat_buffer;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

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
