/*
 * sandbox_layers.c - namespaces, Landlock, seccomp and limits
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "eval/sandbox_impl.h"

#define MEMORY_BYTES ((rlim_t)4 << 30) /* of addresses */
#define FILE_BYTES ((rlim_t)16 << 20)
#define FILES 64
#define PROCESSES 64

static const char *const system_folders[] = { "/usr", "/lib", "/lib64", "/bin",
                                              "/etc/alternatives" };

/* ---- users ---- */

#define NOBODY 65534

/*
 * Limits of processes and permissions do not apply to root, so root changes to the user "nobody";
 * other users stay the same. Only a dumpable process can write the maps of its user namespace.
 */
int sandbox_leave_root(void)
{
    if (geteuid() != 0)
        return 0;
    if (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
        setresuid(NOBODY, NOBODY, NOBODY) < 0)
        return -1;
    return prctl(PR_SET_DUMPABLE, 1);
}

int sandbox_give_away(const char *folder)
{
    return geteuid() == 0 ? chown(folder, NOBODY, NOBODY) : 0;
}

/* ---- namespaces ---- */

static int write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

    if (fd >= 0)
        close(fd);
    return n == (ssize_t)strlen(text) ? 0 : -1;
}

/* The same user inside as outside. */
static int map_user(uid_t uid, gid_t gid)
{
    char line[64];

    write_text("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "%u %u 1\n", (unsigned)uid, (unsigned)uid);
    if (write_text("/proc/self/uid_map", line) < 0)
        return -1;
    snprintf(line, sizeof line, "%u %u 1\n", (unsigned)gid, (unsigned)gid);
    return write_text("/proc/self/gid_map", line);
}

static int bind_read_only(const char *root, const char *folder)
{
    char path[256], target[256];
    struct stat info;
    ssize_t n;

    snprintf(path, sizeof path, "%s%s", root, folder);
    if (lstat(folder, &info) < 0)
        return 0;
    if (S_ISLNK(info.st_mode)) { /* /lib is usr/lib */
        n = readlink(folder, target, sizeof target - 1);
        if (n < 0)
            return -1;
        target[n] = '\0';
        return symlink(target, path);
    }
    if (!strcmp(folder, "/etc/alternatives")) {
        snprintf(target, sizeof target, "%s/etc", root);
        mkdir(target, 0755);
    }
    if (mkdir(path, 0755) < 0 || mount(folder, path, NULL, MS_BIND | MS_REC, NULL) < 0)
        return -1;
    return mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_REC,
                 NULL);
}

static int bind_null(const char *root)
{
    char path[256];

    snprintf(path, sizeof path, "%s/dev", root);
    if (mkdir(path, 0755) < 0)
        return -1;
    snprintf(path, sizeof path, "%s/dev/null", root);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    close(fd);
    return mount("/dev/null", path, NULL, MS_BIND, NULL);
}

static int make_root(const char *root)
{
    char path[256];

    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=64m,mode=755") < 0)
        return -1;
    for (size_t i = 0; i < sizeof system_folders / sizeof *system_folders; i++)
        if (bind_read_only(root, system_folders[i]) < 0)
            return -1;
    if (bind_null(root) < 0)
        return -1;
    snprintf(path, sizeof path, "%s/scratch", root);
    if (mkdir(path, 0700) < 0)
        return -1;
    if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "size=64m,nr_inodes=4096,mode=700") < 0)
        return -1;
    return 0;
}

/* The old root is put on top of the new one and taken off again: nothing of it is left. */
static int change_root(const char *root)
{
    if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
        chdir("/") < 0)
        return -1;
    return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
}

int sandbox_enter_namespaces(const char *folder)
{
    uid_t uid = getuid();
    gid_t gid = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                CLONE_NEWUTS) < 0 ||
        map_user(uid, gid) < 0 || make_root(folder) < 0)
        return -1;
    return change_root(folder);
}

/* ---- Landlock ---- */

#define READ_RIGHTS \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define ALL_RIGHTS ((UINT64_C(1) << 13) - 1) /* those of the first version */

static int allow(int rules, const char *path, uint64_t rights)
{
    struct landlock_path_beneath_attr rule = { .allowed_access = rights };
    struct stat info;

    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0)
        return errno == ENOENT ? 0 : -1;
    if (!fstat(rule.parent_fd, &info) && !S_ISDIR(info.st_mode))
        rule.allowed_access &= LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE |
                               LANDLOCK_ACCESS_FS_WRITE_FILE;
    long status = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(rule.parent_fd);
    return status < 0 ? -1 : 0;
}

int sandbox_landlock(const char *scratch)
{
    struct landlock_ruleset_attr attributes = { .handled_access_fs = ALL_RIGHTS };
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

    if (version < 1)
        return -1;
    if (version >= 2) /* links and renames between folders */
        attributes.handled_access_fs |= UINT64_C(1) << 13;
    if (version >= 3) /* truncating */
        attributes.handled_access_fs |= UINT64_C(1) << 14;
    int rules = (int)syscall(SYS_landlock_create_ruleset, &attributes,
                             sizeof attributes.handled_access_fs, 0);
    if (rules < 0)
        return -1;
    int status = 0;
    for (size_t i = 0; i < sizeof system_folders / sizeof *system_folders && !status; i++)
        status = allow(rules, system_folders[i], READ_RIGHTS);
    if (!status)
        status =
            allow(rules, "/dev/null", LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE);
    if (!status && scratch)
        status = allow(rules, scratch, attributes.handled_access_fs & ~LANDLOCK_ACCESS_FS_EXECUTE);
    if (!status)
        status = (int)syscall(SYS_landlock_restrict_self, rules, 0);
    close(rules);
    return status < 0 ? -1 : 0;
}

/* ---- seccomp ---- */

/*
 * What CPython and the C library below it call to compute, to read files and to write those that
 * Landlock and the namespaces leave them. Every other call is answered with ENOSYS, which the C
 * library takes for an older kernel. Calls that an architecture does not have are left out.
 */
static const char *const allowed_calls[] = {
    /* files */
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "lseek",
    "_llseek",
    "open",
    "openat",
    "creat",
    "close",
    "close_range",
    "stat",
    "lstat",
    "fstat",
    "newfstatat",
    "fstatat64",
    "statx",
    "statfs",
    "fstatfs",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents",
    "getdents64",
    "getcwd",
    "chdir",
    "fchdir",
    "mkdir",
    "mkdirat",
    "rmdir",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "ftruncate",
    "fsync",
    "fdatasync",
    "fadvise64",
    "umask",
    "getxattr",
    "lgetxattr",
    "fgetxattr",
    "listxattr",
    "llistxattr",
    "flistxattr",
    "dup",
    "dup2",
    "dup3",
    "pipe",
    "pipe2",
    "select",
    "pselect6",
    "poll",
    "ppoll",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    /* memory and threads */
    "brk",
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "madvise",
    "futex",
    "set_robust_list",
    "get_robust_list",
    "set_tid_address",
    "rseq",
    "membarrier",
    "sched_yield",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "getpriority",
    "getcpu",
    "gettid",
    /* time and signals to oneself */
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "times",
    "nanosleep",
    "clock_nanosleep",
    "alarm",
    "getitimer",
    "setitimer",
    "pause",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigsuspend",
    "sigaltstack",
    "restart_syscall",
    /* itself: execve starts the interpreter; what it starts in its place has the same filter */
    "execve",
    "exit",
    "exit_group",
    "wait4",
    "waitid",
    "getpid",
    "getppid",
    "getpgrp",
    "getpgid",
    "getsid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getresuid",
    "getresgid",
    "getgroups",
    "getrusage",
    "getrlimit",
    "uname",
    "sysinfo",
    "getrandom",
};

/* A call that is allowed where one of its arguments, masked, has a value. */
struct argument_rule {
    const char *call;
    unsigned argument;
    uint64_t mask, value;
};

#define ALL_BITS UINT64_MAX
#define LOW_BITS UINT64_C(0xffffffff) /* of what the kernel takes as an int */
#define NEW_NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | \
     CLONE_NEWNET)
#define THREAD_FLAGS (CLONE_VM | CLONE_SIGHAND | CLONE_THREAD)
#define PR_SET_VMA_NAME 0x53564d41 /* the C library names its memory */
#define ARCH_SET_FS_CODE 0x1002    /* asm/prctl.h, which other architectures lack */

static const struct argument_rule argument_rules[] = {
    /* Not F_SETOWN, F_SETSIG (signals to any process of the user), F_SETPIPE_SZ, leases, locks. */
    { "fcntl", 1, LOW_BITS, F_DUPFD },
    { "fcntl", 1, LOW_BITS, F_DUPFD_CLOEXEC },
    { "fcntl", 1, LOW_BITS, F_GETFD },
    { "fcntl", 1, LOW_BITS, F_SETFD },
    { "fcntl", 1, LOW_BITS, F_GETFL },
    /*
     * Of the ioctls of terminals and files only those that Python calls: not FIOASYNC, not TIOCSTI.
     */
    { "ioctl", 1, LOW_BITS, TCGETS },
    { "ioctl", 1, LOW_BITS, TIOCGWINSZ },
    { "ioctl", 1, LOW_BITS, FIOCLEX },
    { "ioctl", 1, LOW_BITS, FIONCLEX },
    { "ioctl", 1, LOW_BITS, FIONBIO },
    { "ioctl", 1, LOW_BITS, FIONREAD },
    { "prctl", 0, LOW_BITS, PR_SET_NAME },
    { "prctl", 0, LOW_BITS, PR_GET_NAME },
    { "prctl", 0, LOW_BITS, PR_SET_VMA_NAME },
    { "arch_prctl", 0, ALL_BITS, ARCH_SET_FS_CODE },
    /* Threads, no processes. clone3, whose flags are in memory, is not there. */
    { "clone", 0, THREAD_FLAGS | CLONE_PTRACE | CLONE_VFORK | NEW_NAMESPACES, THREAD_FLAGS },
};

static bool is_unknown(int call)
{
    return call < 0; /* an error, or one of libseccomp's numbers for what this architecture lacks */
}

static int allow_calls(scmp_filter_ctx filter)
{
    for (size_t i = 0; i < sizeof allowed_calls / sizeof *allowed_calls; i++) {
        int call = seccomp_syscall_resolve_name(allowed_calls[i]);

        if (!is_unknown(call) && seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0) < 0)
            return -1;
    }
    for (size_t i = 0; i < sizeof argument_rules / sizeof *argument_rules; i++) {
        const struct argument_rule *r = &argument_rules[i];
        int call = seccomp_syscall_resolve_name(r->call);

        if (!is_unknown(call) &&
            seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 1,
                             SCMP_CMP(r->argument, SCMP_CMP_MASKED_EQ, r->mask, r->value)) < 0)
            return -1;
    }
    return 0;
}

/* Rules over two arguments, and over the pid of this process, which execve keeps. */
static int allow_own(scmp_filter_ctx filter)
{
    static const char *const signals[] = { "kill", "tgkill" };
    int limits = seccomp_syscall_resolve_name("prlimit64");
    int control = seccomp_syscall_resolve_name("fcntl");

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (seccomp_rule_add(filter, SCMP_ACT_ALLOW, seccomp_syscall_resolve_name(signals[i]), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, LOW_BITS, (uint64_t)getpid())) < 0)
            return -1;
    /* Its own limits, to read. */
    if (seccomp_rule_add(filter, SCMP_ACT_ALLOW, limits, 2,
                         SCMP_A0(SCMP_CMP_MASKED_EQ, LOW_BITS, 0), SCMP_A2(SCMP_CMP_EQ, 0, 0)) < 0)
        return -1;
    return seccomp_rule_add(filter, SCMP_ACT_ALLOW, control, 2,
                            SCMP_A1(SCMP_CMP_MASKED_EQ, LOW_BITS, F_SETFL),
                            SCMP_A2(SCMP_CMP_MASKED_EQ, O_ASYNC, 0));
}

/* What libseccomp has made of the rules, by way of a pipe, which holds all of it. */
static int export_filter(scmp_filter_ctx rules, struct sandbox_filter *filter)
{
    int fds[2], status = -1;

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    if (seccomp_export_bpf(rules, fds[1]) == 0) {
        ssize_t n = read(fds[0], filter->instructions, sizeof filter->instructions);

        filter->n = n > 0 ? (unsigned short)((size_t)n / sizeof *filter->instructions) : 0;
        status = n > 0 && n < (ssize_t)sizeof filter->instructions ? 0 : -1;
    }
    close(fds[0]);
    close(fds[1]);
    return status;
}

int sandbox_seccomp_build(struct sandbox_filter *filter)
{
    scmp_filter_ctx rules = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));

    if (!rules)
        return -1;
    /* Calls of another architecture (x32, i386) have other numbers for the same. */
    int status = seccomp_attr_set(rules, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (!status)
        status = allow_calls(rules);
    if (!status)
        status = allow_own(rules);
    if (!status)
        status = export_filter(rules, filter);
    seccomp_release(rules);
    return status < 0 ? -1 : 0;
}

int sandbox_seccomp_load(const struct sandbox_filter *filter)
{
    struct sock_fprog program = { filter->n,
                                  (struct sock_filter *)(uintptr_t)filter->instructions };

    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -1 : 0;
}

/* ---- limits ---- */

static int limit(__rlimit_resource_t resource, rlim_t value)
{
    struct rlimit now;

    if (getrlimit(resource, &now) < 0)
        return -1;
    if (now.rlim_max != RLIM_INFINITY && now.rlim_max < value)
        value = now.rlim_max;
    return setrlimit(resource, &(struct rlimit){ value, value });
}

/* Threads of all processes of this user, which is what RLIMIT_NPROC counts; 0 without /proc. */
static rlim_t count_threads(void)
{
    DIR *processes = opendir("/proc");
    rlim_t n = 0;

    for (struct dirent *e = NULL; processes && (e = readdir(processes));) {
        char path[64];
        struct stat info;

        if (e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/task", e->d_name);
        if (!stat(path, &info) && info.st_uid == getuid())
            n += info.st_nlink - 2; /* a folder each */
    }
    if (processes)
        closedir(processes);
    return n;
}

int sandbox_limit(int seconds, bool has_namespaces)
{
    rlim_t others = has_namespaces ? 0 : count_threads();

    if (limit(RLIMIT_CPU, (rlim_t)seconds) < 0 || limit(RLIMIT_AS, MEMORY_BYTES) < 0 ||
        limit(RLIMIT_FSIZE, FILE_BYTES) < 0 || limit(RLIMIT_NOFILE, FILES) < 0 ||
        limit(RLIMIT_CORE, 0) < 0 || limit(RLIMIT_NPROC, others + PROCESSES) < 0)
        return -1;
    return 0;
}

void sandbox_close_files(int from)
{
    struct rlimit files;
    int end = getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > 65536 ? 65536
                                                                             : (int)files.rlim_cur;

    if (syscall(SYS_close_range, (unsigned)from, ~0u, 0) == 0)
        return;
    for (int fd = from; fd < end; fd++)
        close(fd);
}
