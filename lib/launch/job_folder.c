/*
 * job_folder.c - making and sweeping job folders
 */
#include "launch/job_folder_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "launch/proc_impl.h"

/* Of another namespace's folder whose lock is free: its owner may be about to take it. */
enum { YOUNG_SECONDS = 60 };

/*
 * When a process was started, in clock ticks since boot; 0 if there is none, or only its corpse: in
 * a container whose first process does not reap children, a zombie stays until the container ends.
 */
static unsigned long long start_time(int pid)
{
    struct proc_stat stat;

    return proc_stat(pid, &stat) || proc_is_dead(&stat) ? 0 : stat.start_ticks;
}

/* In which namespace our process numbers are. */
static unsigned long long own_namespace(void)
{
    struct stat pids;

    return stat("/proc/self/ns/pid", &pids) ? 0 : (unsigned long long)pids.st_ino;
}

const char *job_folder_parent(void)
{
    const char *temporary = getenv("TMPDIR");

    if (!access("/dev/shm", W_OK | X_OK))
        return "/dev/shm";
    return temporary && temporary[0] == '/' ? temporary : "/tmp";
}

int job_folder_create(const char *parent, char *path, size_t size, struct err *err)
{
    int length = snprintf(path, size, "%s/lmtrain-%u-%d-%llu-%llu", parent, (unsigned)getuid(),
                          (int)getpid(), start_time(getpid()), own_namespace());

    if (length < 0 || (size_t)length >= size)
        return err_set(err, ERR_FAILED, "the path of the job's folder in %s is too long", parent);
    if (mkdir(path, 0700))
        return err_set_errno(err, ERR_FAILED, "cannot make %s", path);
    /*
     * Held until this process ends. Without it, only processes of other namespaces cannot see that
     * it runs.
     */
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        flock(fd, LOCK_EX | LOCK_NB);
    return 0;
}

/* Whether no process holds the lock of a folder or is about to take it. */
static int is_abandoned(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat stat;

    if (fd < 0)
        return 0;
    bool abandoned = !fstat(fd, &stat) && time(NULL) - stat.st_mtime > YOUNG_SECONDS &&
                     !flock(fd, LOCK_EX | LOCK_NB);
    close(fd);
    return abandoned;
}

/* Whether it is a folder of ours whose owner is gone. */
static int is_stale(const char *name, const char *path)
{
    unsigned uid;
    int pid, end = 0;
    unsigned long long ticks, names;

    if (sscanf(name, "lmtrain-%u-%d-%llu-%llu%n", &uid, &pid, &ticks, &names, &end) != 4 ||
        name[end] || uid != getuid())
        return 0;
    return names == own_namespace() ? start_time(pid) != ticks : is_abandoned(path);
}

void job_folder_sweep(const char *parent)
{
    DIR *folder = opendir(parent);
    struct dirent *entry;

    if (!folder)
        return;
    while ((entry = readdir(folder))) {
        char path[4096];
        struct stat stat;
        struct err err;
        int length = snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);

        if (length < 0 || (size_t)length >= sizeof path || !is_stale(entry->d_name, path))
            continue;
        if (!lstat(path, &stat) && S_ISDIR(stat.st_mode) && stat.st_uid == getuid())
            file_remove_tree(path, &err);
    }
    closedir(folder);
}
