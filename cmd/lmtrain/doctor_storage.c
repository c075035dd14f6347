/*
 * doctor_storage.c - the file system of a folder: which it is, and whether it does what a run needs
 *
 * The lock of a run is flock's, a checkpoint is written, synced and renamed, and its manifest is
 * exchanged for another. Whether another node sees at once what was written cannot be tried on one:
 * of NFS the mount options tell.
 */
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/str.h"
#include "doctor_impl.h"

enum { KIND_LUSTRE = 0x0BD00BD0, KIND_NFS = 0x6969 };

/* f_type of statfs(2), and for those that are not listed there their sources. */
static const struct {
    uint32_t magic;
    const char *name;
    bool is_shared;
} kinds[] = {
    { KIND_LUSTRE, "Lustre", true }, { 0x47504653, "GPFS", true },     { KIND_NFS, "NFS", true },
    { 0x19830326, "BeeGFS", true },  { 0x00C36400, "CephFS", true },   { 0xFF534D42, "CIFS", true },
    { 0xFE534D42, "SMB 2", true },   { 0x65735546, "FUSE", true },     { 0xEF53, "ext4", false },
    { 0x58465342, "xfs", false },    { 0x9123683E, "btrfs", false },   { 0x2FC12FC1, "zfs", false },
    { 0x01021994, "tmpfs", false },  { 0x794C7630, "overlay", false },
};

static void probe_inodes(struct doctor *doctor, const char *folder)
{
    struct statvfs space;

    if (statvfs(folder, &space) != 0 || space.f_files == 0)
        return;
    if (space.f_favail < 10000)
        doctor_add(doctor, DOCTOR_WARNING, "inodes",
                   "a checkpoint is 2 files a rank: remove files, or set output elsewhere",
                   "%llu free in %s", (unsigned long long)space.f_favail, folder);
    else
        doctor_add(doctor, DOCTOR_OK, "inodes", NULL, "%llu free",
                   (unsigned long long)space.f_favail);
}

/* The options with which the file system of the folder is mounted, in the arena; or NULL. */
static const char *mount_options(struct doctor *doctor, const char *folder)
{
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    const char *found = NULL;
    size_t longest = 0;

    for (struct mntent *m; mounts && (m = getmntent(mounts));) {
        size_t n = strlen(m->mnt_dir);
        bool is_root = n == 1;

        if (n < longest || strncmp(folder, m->mnt_dir, n) != 0 ||
            (!is_root && folder[n] && folder[n] != '/'))
            continue;
        longest = n;
        found = arena_strdup(doctor->arena, m->mnt_opts);
    }
    if (mounts)
        endmntent(mounts);
    return found;
}

static void probe_nfs(struct doctor *doctor, const char *folder)
{
    const char *options = mount_options(doctor, folder);

    if (options && strstr(options, "nolock"))
        doctor_add(doctor, DOCTOR_WARNING, "NFS locks",
                   "two jobs on two hosts may use one run folder: mount without nolock",
                   "mounted with nolock");
    if (options && strstr(options, "nocto"))
        doctor_add(doctor, DOCTOR_WARNING, "NFS consistency",
                   "ranks on other hosts may read old files: mount without nocto",
                   "mounted with nocto, without close-to-open consistency");
    else
        doctor_add(doctor, DOCTOR_OK, "NFS consistency", NULL, "close-to-open");
}

static void probe_lustre(struct doctor *doctor, const char *folder)
{
    char *argv[] = { "lfs", "getstripe", "-c", "-d", (char *)folder, NULL };
    const char *count =
        doctor_find_in_path(doctor, "lfs") ? doctor_command(doctor, argv, 10) : NULL;

    if (!count)
        doctor_add(doctor, DOCTOR_NOTE, "striping", NULL, "not known: lfs is not there or fails");
    else if (strtol(count, NULL, 10) == 1)
        doctor_add(doctor, DOCTOR_WARNING, "striping",
                   "for large files: lfs setstripe -c -1 on the folder, before the run is started",
                   "1 stripe: a file lies on one server");
    else
        doctor_add(doctor, DOCTOR_OK, "striping", NULL, "%.*s stripes (-1: all)",
                   (int)strcspn(count, "\n"), count);
}

static void probe_kind(struct doctor *doctor, const char *folder)
{
    struct statfs status;

    if (statfs(folder, &status) != 0) {
        doctor_add(doctor, DOCTOR_PROBLEM, "file system", "give a folder that exists", "%s: %s",
                   folder, strerror(errno));
        return;
    }
    uint32_t magic = (uint32_t)status.f_type;
    const char *name = "of an unknown kind";
    const char *reach = "";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].magic == magic) {
            name = kinds[i].name;
            reach = kinds[i].is_shared ? "" : ", of this machine alone";
        }
    doctor_add(doctor, DOCTOR_OK, "file system", NULL, "%s is %s (0x%x)%s", folder, name, magic,
               reach);
    if (magic == KIND_NFS)
        probe_nfs(doctor, folder);
    if (magic == KIND_LUSTRE)
        probe_lustre(doctor, folder);
}

/* Whether a second open of a locked file is refused its lock. */
static bool lock_excludes(const char *path, int fd)
{
    int other = open(path, O_RDWR | O_CLOEXEC);
    bool excludes = flock(fd, LOCK_EX | LOCK_NB) == 0 && other >= 0 &&
                    flock(other, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;

    if (other >= 0)
        close(other);
    return excludes;
}

/* A file is made, locked, written, synced and renamed, as those of a run are. */
static void probe_operations(struct doctor *doctor, const char *folder)
{
    char *path = arena_printf(doctor->arena, "%s/lmtrain-doctor.XXXXXX", folder);
    int fd = mkstemp(path);

    if (fd < 0) {
        doctor_add(doctor, DOCTOR_PROBLEM, "writing", "set output to a folder that can be written",
                   "%s cannot be written: %s", folder, strerror(errno));
        return;
    }
    if (lock_excludes(path, fd))
        doctor_add(doctor, DOCTOR_OK, "flock", NULL, "works");
    else
        doctor_add(doctor, DOCTOR_PROBLEM, "flock",
                   "two jobs might use one run folder: on Lustre mount with flock",
                   "does not work");
    char *renamed = arena_printf(doctor->arena, "%s.renamed", path);
    bool works = write(fd, "x", 1) == 1 && fsync(fd) == 0 && rename(path, renamed) == 0;
    int number = errno;
    close(fd);
    if (works)
        doctor_add(doctor, DOCTOR_OK, "write, sync, rename", NULL, "work");
    else
        doctor_add(doctor, DOCTOR_PROBLEM, "write, sync, rename",
                   "checkpoints need them: set output to another file system", "%s",
                   strerror(number));
    unlink(works ? renamed : path);
}

void doctor_probe_storage(struct doctor *doctor, const char *folder)
{
    char *path = realpath(folder, NULL);

    doctor->part = "storage";
    probe_kind(doctor, path ? path : folder);
    if (path) {
        probe_operations(doctor, path);
        probe_inodes(doctor, path);
    }
    free(path);
}
