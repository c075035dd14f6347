/*
 * run_lock.c - one job in a run folder
 */
#include "train/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

enum { PATH_BYTES = 4096, HOLDER_BYTES = 256 };

/* The text of the lock's file as one printable line; "" if it has none. */
static void read_holder(int fd, char holder[HOLDER_BYTES])
{
    ssize_t n = pread(fd, holder, HOLDER_BYTES - 1, 0);

    holder[n < 0 ? 0 : n] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    for (char *p = holder; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
}

/* The text is informative only: training continues if it cannot be written. */
static void write_holder(int fd)
{
    char host[128] = "", when[32] = "", text[HOLDER_BYTES];
    time_t now = time(NULL);
    struct tm local;

    gethostname(host, sizeof host - 1);
    if (localtime_r(&now, &local))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    int length =
        snprintf(text, sizeof text, "process %ld on %s since %s\n", (long)getpid(), host, when);
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)length, 0) < 0)
        log_debug("the lock's file could not be written");
}

static int refuse_held(const char *folder, int fd, struct err *err)
{
    char holder[HOLDER_BYTES];

    read_holder(fd, holder);
    close(fd);
    return err_set(err, ERR_CONFIG,
                   "%s is in use by another job%s%s (hint: use a different output folder, or end "
                   "the other job)",
                   folder, *holder ? ": " : "", holder);
}

/* Returns the file, 0 in *status if it is locked, else what flock said. */
static int open_and_lock(const char *folder, int operation, int *status, struct err *err)
{
    char path[PATH_BYTES];

    if (file_make_folders(folder, err) < 0)
        return err_add(err, "output");
    file_share_folder(folder);
    if (snprintf(path, sizeof path, "%s/lock", folder) >= (int)sizeof path)
        return err_set(err, ERR_CONFIG, "output: path too long");
    int fd = file_open_write(path, O_RDWR, err);
    if (fd < 0)
        return err_add(err, "output");
    *status = flock(fd, operation | LOCK_NB) == 0 ? 0 : errno;
    if (!*status)
        write_holder(fd);
    return fd;
}

int run_lock(const char *folder, struct err *err)
{
    int status, fd = open_and_lock(folder, LOCK_EX, &status, err);

    if (fd < 0 || !status)
        return fd;
    if (status == EWOULDBLOCK)
        return refuse_held(folder, fd, err);
    log_warn("%s: this file system does not support locks (%s): make sure that no other job "
             "writes there",
             folder, strerror(status));
    return fd;
}

int run_lock_shared(const char *folder, struct err *err)
{
    int status, fd = open_and_lock(folder, LOCK_SH, &status, err);

    if (fd < 0 || !status)
        return fd;
    if (status == EWOULDBLOCK)
        return refuse_held(folder, fd, err);
    close(fd);
    return err_set(err, ERR_CONFIG,
                   "%s: this file system does not support locks (%s), which processes that share "
                   "a folder need (hint: another file system)",
                   folder, strerror(status));
}

bool run_lock_is_held(const char *folder)
{
    char path[PATH_BYTES];

    return snprintf(path, sizeof path, "%s/lock", folder) < (int)sizeof path && lock_is_held(path);
}

bool lock_is_held(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is_held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;

    if (fd >= 0)
        close(fd);
    return is_held;
}
