/*
 * watch_page.c - a page that appears whole, and leftovers of such
 *
 * The lock belongs to the open file description (F_OFD_SETLK): a forked child inherits it, and it
 * is released when the last process with the descriptor ends, however it ends. F_OFD_GETLK tests it
 * without taking it, so that two ranks that test do not take each other for the watcher.
 */
#include "launch/watch/watch_page_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "launch/job_folder_impl.h"

#define NAME_PREFIX "lmtrain-watch-"

int watch_page_path(char *path, size_t size, struct err *err)
{
    char text[1024], host[256] = "";
    const char *nspace = getenv("PMIX_NAMESPACE"), *job = getenv("SLURM_JOB_ID");
    struct stat pids = { 0 };

    /* Nodes of a test may share /dev/shm; ranks in containers don't see each other's processes. */
    gethostname(host, sizeof host - 1);
    stat("/proc/self/ns/pid", &pids);
    snprintf(text, sizeof text, "%s|%s|%s|%llu", nspace ? nspace : "", job ? job : "", host,
             (unsigned long long)pids.st_ino);
    int length = snprintf(path, size, "%s/" NAME_PREFIX "%u-%016llx", job_folder_parent(),
                          (unsigned)geteuid(), (unsigned long long)XXH64(text, strlen(text), 0));

    if (length < 0 || (size_t)length >= size)
        return err_set(err, ERR_FAILED, "the path of the progress page is too long");
    return 0;
}

static struct flock whole_file(short type)
{
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET };
}

static int is_locked(int fd)
{
    struct flock lock = whole_file(F_WRLCK);

    return fcntl(fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

static int is_named(int fd, const char *path)
{
    struct stat open_file, named;

    return !fstat(fd, &open_file) && !lstat(path, &named) && open_file.st_ino == named.st_ino &&
           open_file.st_dev == named.st_dev;
}

/* Remove a leftover. Under flock, as a second process would remove a new page of that name. */
static void remove_leftover(int fd, const char *path)
{
    if (flock(fd, LOCK_EX))
        return;
    if (is_named(fd, path))
        unlink(path);
    flock(fd, LOCK_UN);
}

/* Whether the open file is a page of ours. */
static int check_page(int fd, const char *path, struct err *err)
{
    struct stat stat;

    if (fstat(fd, &stat))
        return err_set_errno(err, ERR_FAILED, "%s", path);
    if (!S_ISREG(stat.st_mode) || stat.st_uid != geteuid() || (stat.st_mode & 077) ||
        stat.st_size != (off_t)sizeof(struct watch_page))
        return err_set(err, ERR_FAILED, "%s is not a progress page of this user", path);
    return 0;
}

/* Through a description of its own: a mapping would hold the lock as the descriptor does. */
static int map_page(int open_fd, const char *path, struct watch_page **page, struct err *err)
{
    void *mapped = MAP_FAILED;
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", open_fd);
    int fd = open(link, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        mapped = mmap(NULL, sizeof(struct watch_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    if (mapped == MAP_FAILED)
        return err_set_errno(err, ERR_FAILED, "cannot map %s", path);
    *page = mapped;
    return 0;
}

/* Give the nameless page its name. 1: another one has it by now. */
static int name_page(int fd, const char *path, struct err *err)
{
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (!linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW))
        return 0;
    return errno == EEXIST ? 1 : err_set_errno(err, ERR_FAILED, "cannot make %s", path);
}

/* 0: made, *lock_fd is its descriptor; 1: another was faster; -1. */
static int make_page(const char *path, struct watch_page **page, int *lock_fd, struct err *err)
{
    const char *slash = strrchr(path, '/');
    char folder[512];
    struct flock lock = whole_file(F_WRLCK);

    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set_errno(err, ERR_FAILED, "cannot make a file in %s", folder);
    int status = posix_fallocate(fd, 0, (off_t)sizeof(struct watch_page));
    if (status)
        err_set(err, ERR_FAILED, "cannot make %s: %s", path, strerror(status));
    else if (fchmod(fd, 0600) || fcntl(fd, F_OFD_SETLK, &lock))
        status = err_set_errno(err, ERR_FAILED, "cannot lock a file in %s", folder);
    if (!status)
        status = map_page(fd, path, page, err);
    if (!status) {
        struct stat stat;

        (*page)->inode = fstat(fd, &stat) ? 0 : stat.st_ino;
        for (int i = 0; i < WATCH_RANKS_MAX; i++) {
            atomic_store(&(*page)->places[i].slot.op, -1);
            atomic_store(&(*page)->log_starts[i], -1);
        }
        status = name_page(fd, path, err);
        if (status)
            watch_page_close(*page);
    }
    if (status) {
        close(fd);
        return status == 1 ? 1 : -1;
    }
    *lock_fd = fd;
    return 0;
}

/* 0: there is one and a watcher holds it; 1: there is none, or no longer; -1. */
static int join_page(const char *path, struct watch_page **page, struct err *err)
{
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int status;

    if (fd < 0)
        return errno == ENOENT ? 1 : err_set_errno(err, ERR_FAILED, "cannot open %s", path);
    status = check_page(fd, path, err);
    if (!status && !is_locked(fd)) {
        remove_leftover(fd, path);
        status = 1;
    }
    if (!status)
        status = map_page(fd, path, page, err);
    close(fd);
    return status;
}

int watch_page_open(const char *path, struct watch_page **page, int *lock_fd, struct err *err)
{
    *lock_fd = -1;
    for (int attempt = 0; attempt < 100; attempt++) {
        int status = join_page(path, page, err);

        if (status == 1)
            status = make_page(path, page, lock_fd, err);
        if (status != 1)
            return status;
    }
    return err_set(err, ERR_FAILED, "%s is created and removed repeatedly", path);
}

void watch_page_close(struct watch_page *page)
{
    if (page)
        munmap(page, sizeof *page);
}

struct progress_slot *watch_page_claim(struct watch_page *page, int world_rank)
{
    uint32_t n = atomic_load(&page->n_claimed);

    do {
        if (n >= WATCH_RANKS_MAX) /* or closed */
            return NULL;
    } while (!atomic_compare_exchange_weak(&page->n_claimed, &n, n + 1));

    struct progress_slot *slot = &page->places[n].slot;

    atomic_store(&slot->world_rank, world_rank);
    atomic_store(&slot->pid, (int32_t)getpid()); /* last: from now on it is watched */
    return slot;
}

void watch_page_unlink(const char *path, const struct watch_page *page)
{
    struct stat named;

    /* A mapped file's number is not given to another. */
    if (!lstat(path, &named) && named.st_ino == page->inode)
        unlink(path);
}

void watch_page_sweep(const char *path)
{
    char folder_path[512], prefix[64], other[sizeof folder_path + 260];
    const char *slash = strrchr(path, '/');
    struct dirent *entry;
    struct err ignored;

    if (!slash)
        return;
    snprintf(folder_path, sizeof folder_path, "%.*s", (int)(slash - path), path);
    snprintf(prefix, sizeof prefix, NAME_PREFIX "%u-", (unsigned)geteuid());
    DIR *folder = opendir(folder_path);
    while (folder && (entry = readdir(folder))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(other, sizeof other, "%s/%s", folder_path, entry->d_name);
        int fd = open(other, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && !check_page(fd, other, &ignored) && !is_locked(fd))
            remove_leftover(fd, other);
        if (fd >= 0)
            close(fd);
    }
    if (folder)
        closedir(folder);
}
