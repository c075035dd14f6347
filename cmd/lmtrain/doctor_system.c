/*
 * doctor_system.c - what ranks need of the system: shared memory, limits, folders, the loopback
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/str.h"
#include "doctor_impl.h"

/* Whether a file can be made and removed in the folder; the only test that no mount option
 * deceives. */
static bool can_write(const char *folder)
{
    char path[4096];

    if (snprintf(path, sizeof path, "%s/lmtrain-doctor.XXXXXX", folder) >= (int)sizeof path)
        return false;
    int file = mkstemp(path);
    if (file < 0)
        return false;
    close(file);
    return unlink(path) == 0;
}

static uint64_t free_bytes(const char *folder)
{
    struct statvfs space;

    if (statvfs(folder, &space) != 0)
        return 0;
    return (uint64_t)space.f_bavail * (uint64_t)space.f_frsize;
}

/* Ranks on one node exchange through /dev/shm: a small or absent one is the classic trap of
 * containers. */
static void probe_shared_memory(struct doctor *doctor)
{
    uint64_t n_bytes = free_bytes("/dev/shm");
    char bytes[32];

    str_bytes(bytes, sizeof bytes, n_bytes);
    if (!can_write("/dev/shm"))
        doctor_add(doctor, DOCTOR_PROBLEM, "/dev/shm",
                   "mount a tmpfs on /dev/shm (in a container: --shm-size=1g)",
                   "cannot be written");
    else if (n_bytes < (256u << 20))
        doctor_add(doctor, DOCTOR_WARNING, "/dev/shm",
                   "several ranks may need more: enlarge it (in a container: --shm-size=1g)",
                   "%s free", bytes);
    else
        doctor_add(doctor, DOCTOR_OK, "/dev/shm", NULL, "%s free", bytes);
}

static const char *limit_text(char *buffer, size_t size, rlim_t limit, bool as_bytes)
{
    if (limit == RLIM_INFINITY)
        snprintf(buffer, size, "unlimited");
    else if (as_bytes)
        str_bytes(buffer, size, limit);
    else
        snprintf(buffer, size, "%llu", (unsigned long long)limit);
    return buffer;
}

static void probe_limits(struct doctor *doctor)
{
    struct rlimit files = { 0 }, locked = { 0 }, processes = { 0 };
    char text[32];

    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_MEMLOCK, &locked);
    getrlimit(RLIMIT_NPROC, &processes);
    int few_files = files.rlim_cur < 1024;
    doctor_add(doctor, few_files ? DOCTOR_WARNING : DOCTOR_OK, "open files",
               few_files ? "ulimit -n 1024, or more where many ranks run" : NULL, "%s",
               limit_text(text, sizeof text, files.rlim_cur, false));
    int few_processes = processes.rlim_cur < 256;
    doctor_add(doctor, few_processes ? DOCTOR_WARNING : DOCTOR_OK, "processes",
               few_processes ? "ulimit -u 1024: every thread of every rank counts" : NULL, "%s",
               limit_text(text, sizeof text, processes.rlim_cur, false));
    /* Only networks that read memory directly mind, so it stays a note. */
    int little_locked = locked.rlim_cur < (64u << 20);
    doctor_add(doctor, little_locked ? DOCTOR_NOTE : DOCTOR_OK, "locked memory",
               little_locked ? "on a cluster with InfiniBand: ulimit -l unlimited" : NULL, "%s",
               limit_text(text, sizeof text, locked.rlim_cur, true));
}

static void probe_folder(struct doctor *doctor, const char *name, const char *folder,
                         enum doctor_state without, const char *advice)
{
    char bytes[32];

    if (!can_write(folder))
        doctor_add(doctor, without, name, advice, "%s cannot be written", folder);
    else if (free_bytes(folder) < (1u << 30))
        doctor_add(doctor, DOCTOR_WARNING, name,
                   "checkpoints need room: free some, or set output elsewhere", "%s has %s left",
                   folder, str_bytes(bytes, sizeof bytes, free_bytes(folder)));
    else
        doctor_add(doctor, DOCTOR_OK, name, NULL, "%s, %s free", folder,
                   str_bytes(bytes, sizeof bytes, free_bytes(folder)));
}

static void probe_folders(struct doctor *doctor)
{
    const char *temporary = getenv("TMPDIR");
    char here[4096];

    if (getcwd(here, sizeof here) == NULL)
        doctor_add(doctor, DOCTOR_WARNING, "this folder", "change to one that exists", "%s",
                   strerror(errno));
    else
        probe_folder(doctor, "this folder", here, DOCTOR_WARNING,
                     "set output in the job to a folder that can be written");
    if (temporary == NULL || *temporary == '\0')
        temporary = "/tmp";
    probe_folder(
        doctor, "temporary files", temporary, DOCTOR_PROBLEM,
        "set TMPDIR to a folder that can be written: the launcher keeps its sockets there");
}

/* Ranks find their launcher through a socket on the loopback. */
static void probe_loopback(struct doctor *doctor)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 1) != 0)
        doctor_add(doctor, DOCTOR_PROBLEM, "loopback", "bring the interface up: ip link set lo up",
                   "127.0.0.1 cannot be used: %s", strerror(errno));
    else
        doctor_add(doctor, DOCTOR_OK, "loopback", NULL, "127.0.0.1 works");
    if (listener >= 0)
        close(listener);
}

void doctor_probe_system(struct doctor *doctor)
{
    doctor->part = "system";
    probe_shared_memory(doctor);
    probe_limits(doctor);
    probe_folders(doctor);
    probe_loopback(doctor);
}
