/*
 * sandbox_layers.c - namespaces, Landlock, seccomp and limits
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
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

/* ---- who we are ---- */

#define NOBODY 65534

/*
 * Limits of processes don't hold for root, nor do permissions: of him we become nobody. Others stay
 * who they are. The maps of a user namespace are written by who may be looked into (dumpable).
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
    if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64m,mode=700") < 0)
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
    if (!status)
        status = allow(rules, scratch, attributes.handled_access_fs & ~LANDLOCK_ACCESS_FS_EXECUTE);
    if (!status)
        status = (int)syscall(SYS_landlock_restrict_self, rules, 0);
    close(rules);
    return status < 0 ? -1 : 0;
}

/* ---- seccomp ---- */

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#define ARCHITECTURE 0
#endif

/* What a function that computes something has no use for. */
static const int refused[] = {
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_recvmmsg,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_setpriority,
    SYS_sched_setscheduler,
    SYS_setuid,
    SYS_setgid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setsid,
    SYS_setpgid,
    SYS_shmget,
    SYS_msgget,
    SYS_semget,
    SYS_mq_open,
    SYS_memfd_create,
    SYS_open_by_handle_at,
    SYS_name_to_handle_at,
    SYS_prlimit64,
    /* Landlock has no say in what files are like, only in what is read and written. */
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_utimensat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_clock_settime,
    SYS_settimeofday,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog,
    SYS_vhangup,
    SYS_flock,
    SYS_inotify_init1,
    SYS_fanotify_init,
    SYS_splice,
    SYS_tee,
    SYS_vmsplice,
    SYS_shmat,
    SYS_shmctl,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_semop,
    SYS_mq_unlink,
    SYS_setreuid,
    SYS_setregid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_capset,
    SYS_personality,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_ioprio_set,
    SYS_migrate_pages,
    SYS_move_pages,
#ifdef SYS_chmod
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_mknod,
    SYS_inotify_init,
#endif
#ifdef SYS_fchmodat2
    SYS_fchmodat2,
#endif
#ifdef SYS_pidfd_getfd
    SYS_pidfd_getfd,
    SYS_pidfd_open,
#endif
#ifdef SYS_process_madvise
    SYS_process_madvise,
#endif
#ifdef SYS_mount_setattr
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
#endif
#ifdef SYS_io_uring_enter
    SYS_io_uring_enter,
    SYS_io_uring_register,
#endif
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
#ifdef SYS_pidfd_send_signal
    SYS_pidfd_send_signal,
#endif
#ifdef SYS_io_uring_setup
    SYS_io_uring_setup,
#endif
};

#define N_REFUSED (sizeof refused / sizeof *refused)

int sandbox_seccomp(void)
{
    struct sock_filter filter[N_REFUSED * 2 + 16];
    size_t n = 0;

    if (!ARCHITECTURE)
        return -1;
    filter[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    /* The calls of x32 are other numbers for the same. */
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    for (size_t i = 0; i < N_REFUSED; i++) {
        filter[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused[i], 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    /* clone makes threads, and nothing else; clone3, whose flags can't be seen, isn't there. */
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3);
    filter[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args));
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = { .len = (unsigned short)n, .filter = filter };
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

int sandbox_limit(int seconds, int has_namespaces)
{
    if (limit(RLIMIT_CPU, (rlim_t)seconds) < 0 || limit(RLIMIT_AS, MEMORY_BYTES) < 0 ||
        limit(RLIMIT_FSIZE, FILE_BYTES) < 0 || limit(RLIMIT_NOFILE, FILES) < 0 ||
        limit(RLIMIT_CORE, 0) < 0 || (has_namespaces && limit(RLIMIT_NPROC, PROCESSES) < 0))
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
