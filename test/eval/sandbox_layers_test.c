/*
 * sandbox_layers_test.c - what each layer of the sandbox lets a process do, call by call
 *
 * Each case runs in a child, which enters the layer and then tries something.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "eval/sandbox_impl.h"
#include "support/temporary.h"

typedef int (*child_fn)(const void *context);

/* Exit status of a function in a child; -1 where a signal ended it. */
static int in_child(child_fn function, const void *context)
{
    int status;
    pid_t child = fork();

    if (child == 0)
        _exit(function(context));
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int enter_filter(void)
{
    struct sandbox_filter filter;

    return sandbox_seccomp_build(&filter) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
                   sandbox_seccomp_load(&filter) < 0
               ? -1
               : 0;
}

enum { NO_FILTER = 100 };

static int has_filter(const void *context)
{
    (void)context;
    return enter_filter() < 0 ? NO_FILTER : 0;
}

static void need_filter(void)
{
    if (in_child(has_filter, NULL) == NO_FILTER) {
        print_message("skipped: no seccomp here\n");
        skip();
    }
}

/* ---- calls ---- */

#define PIPE_FD 40 /* each child has a pipe: 40 to read, 41 to write */

struct call {
    const char *name;
    long number;
    long arguments[4];
};

static const struct call refused[] = {
    /* a signal to any process of the user, by way of a pipe */
    { "F_SETOWN", SYS_fcntl, { PIPE_FD, F_SETOWN, 1 } },
    { "F_SETOWN_EX", SYS_fcntl, { PIPE_FD, 15 /* F_SETOWN_EX */, 0 } },
    { "F_SETSIG", SYS_fcntl, { PIPE_FD, 10 /* F_SETSIG */, SIGKILL } },
    { "F_SETFL O_ASYNC", SYS_fcntl, { PIPE_FD, F_SETFL, O_ASYNC } },
    { "F_SETFL O_ASYNC O_NONBLOCK", SYS_fcntl, { PIPE_FD, F_SETFL, O_ASYNC | O_NONBLOCK } },
    { "F_SETOWN in 64 bits", SYS_fcntl, { PIPE_FD, (1L << 32) | F_SETOWN, 1 } },
    { "FIOASYNC", SYS_ioctl, { PIPE_FD, FIOASYNC, 0 } },
    { "FIOSETOWN", SYS_ioctl, { PIPE_FD, 0x8901 /* FIOSETOWN */, 0 } },
    { "TIOCSTI", SYS_ioctl, { PIPE_FD, TIOCSTI, 0 } },
    { "F_SETPIPE_SZ", SYS_fcntl, { PIPE_FD, 1031 /* F_SETPIPE_SZ */, 1 << 20 } },
    { "F_SETLEASE", SYS_fcntl, { PIPE_FD, 1024 /* F_SETLEASE */, F_RDLCK } },
    { "F_NOTIFY", SYS_fcntl, { PIPE_FD, 1026 /* F_NOTIFY */, 1 } },
    { "F_SETLK", SYS_fcntl, { PIPE_FD, F_SETLK, 0 } },
    { "flock", SYS_flock, { PIPE_FD, 2 } },
    { "kill of the parent", SYS_kill, { 1, 0 } },
    { "kill of the group", SYS_kill, { 0, 0 } },
    { "kill of all", SYS_kill, { -1, 0 } },
    { "tkill", SYS_tkill, { 1, 0 } },
    { "tgkill", SYS_tgkill, { 1, 1, 0 } },
    { "rt_sigqueueinfo", SYS_rt_sigqueueinfo, { 1, 0, 0 } },
    { "pidfd_open", SYS_pidfd_open, { 1, 0 } },
    { "pidfd_send_signal", SYS_pidfd_send_signal, { PIPE_FD, 0, 0, 0 } },
    { "timer_create", SYS_timer_create, { 0, 0, 0 } },
    { "PR_SET_DUMPABLE", SYS_prctl, { PR_SET_DUMPABLE, 1 } },
    { "PR_SET_PDEATHSIG", SYS_prctl, { PR_SET_PDEATHSIG, 0 } },
    { "PR_SET_PTRACER", SYS_prctl, { PR_SET_PTRACER, -1 } },
    { "PR_SET_CHILD_SUBREAPER", SYS_prctl, { PR_SET_CHILD_SUBREAPER, 1 } },
    { "PR_SET_MM", SYS_prctl, { PR_SET_MM, 0 } },
    { "PR_SET_SECCOMP", SYS_prctl, { PR_SET_SECCOMP, 2, 0 } },
    { "ptrace", SYS_ptrace, { 16 /* PTRACE_ATTACH */, 1 } },
    { "process_vm_readv", SYS_process_vm_readv, { 1 } },
    { "process_vm_writev", SYS_process_vm_writev, { 1 } },
    { "process_madvise", SYS_process_madvise, { PIPE_FD } },
    { "kcmp", SYS_kcmp, { 1 } },
    { "io_uring_setup", SYS_io_uring_setup, { 1, 0 } },
    { "io_uring_enter", SYS_io_uring_enter, { PIPE_FD } },
    { "io_uring_register", SYS_io_uring_register, { PIPE_FD } },
    { "keyctl", SYS_keyctl, { 0, -3, 0 } },
    { "add_key", SYS_add_key, { 0 } },
    { "request_key", SYS_request_key, { 0 } },
    { "bpf", SYS_bpf, { 0 } },
    { "perf_event_open", SYS_perf_event_open, { 0 } },
    { "userfaultfd", SYS_userfaultfd, { 0 } },
    { "memfd_create", SYS_memfd_create, { 0, 0 } },
    { "socket", SYS_socket, { 1, 1, 0 } },
    { "socketpair", SYS_socketpair, { 1, 1, 0, 0 } },
    { "sendmsg", SYS_sendmsg, { PIPE_FD, 0 } },
    { "splice", SYS_splice, { PIPE_FD, 0 } },
    { "vmsplice", SYS_vmsplice, { PIPE_FD, 0 } },
    { "shmget", SYS_shmget, { 0, 4096, 0 } },
    { "msgget", SYS_msgget, { 0, 0 } },
    { "semget", SYS_semget, { 0, 1, 0 } },
    { "mq_open", SYS_mq_open, { 0 } },
    { "inotify_init1", SYS_inotify_init1, { 0 } },
    { "fanotify_init", SYS_fanotify_init, { 0 } },
    { "clone of a process", SYS_clone, { SIGCHLD } },
    { "clone of a namespace",
      SYS_clone,
      { CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_NEWUSER } },
    { "clone3", SYS_clone3, { 0, 0 } },
    { "unshare", SYS_unshare, { CLONE_NEWUSER } },
    { "setns", SYS_setns, { PIPE_FD, 0 } },
    { "mount", SYS_mount, { 0 } },
    { "open_tree", SYS_open_tree, { 0 } },
    { "fsopen", SYS_fsopen, { 0 } },
    { "pivot_root", SYS_pivot_root, { 0 } },
    { "chroot", SYS_chroot, { 0 } },
    { "setpgid", SYS_setpgid, { 0, 0 } },
    { "setsid", SYS_setsid, { 0 } },
    { "setuid", SYS_setuid, { 0 } },
    { "setpriority", SYS_setpriority, { 0, 0, 0 } },
    { "sched_setaffinity", SYS_sched_setaffinity, { 1, 0, 0 } },
    { "limits of its own, to write", SYS_prlimit64, { 0, RLIMIT_NOFILE, 1, 0 } },
    { "limits of another", SYS_prlimit64, { 1, RLIMIT_NOFILE, 0, 0 } },
    { "setrlimit", SYS_setrlimit, { RLIMIT_NOFILE, 0 } },
    { "fchmod", SYS_fchmod, { PIPE_FD, 0777 } },
    { "fchown", SYS_fchown, { PIPE_FD, 0, 0 } },
    { "utimensat", SYS_utimensat, { PIPE_FD, 0, 0, 0 } },
    { "truncate", SYS_truncate, { 0, 0 } },
    { "linkat", SYS_linkat, { 0 } },
    { "symlinkat", SYS_symlinkat, { 0 } },
    { "mknodat", SYS_mknodat, { 0 } },
    { "personality", SYS_personality, { 0xffffffff } },
    { "quotactl", SYS_quotactl, { 0 } },
    { "syslog", SYS_syslog, { 3, 0, 0 } },
    { "a call that no kernel has yet", 100000, { 0 } },
#ifdef __x86_64__
    { "ARCH_SET_GS", SYS_arch_prctl, { 0x1001, 0 } },
    { "fork", SYS_fork, { 0 } },
    { "vfork", SYS_vfork, { 0 } },
    { "chmod", SYS_chmod, { 0, 0777 } },
    { "link", SYS_link, { 0 } },
    { "symlink", SYS_symlink, { 0 } },
    { "mknod", SYS_mknod, { 0 } },
#endif
};

static void have_pipe(void)
{
    int fds[2];

    if (pipe(fds) < 0 || dup2(fds[0], PIPE_FD) < 0 || dup2(fds[1], PIPE_FD + 1) < 0)
        _exit(NO_FILTER + 1);
}

static long call(const struct call *c)
{
    return syscall(c->number, c->arguments[0], c->arguments[1], c->arguments[2], c->arguments[3]);
}

/* 0: the filter has answered each. Else the number of the first that it let through, plus one. */
static int try_refused(const void *context)
{
    (void)context;
    have_pipe();
    if (enter_filter() < 0)
        return NO_FILTER;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        errno = 0;
        if (call(&refused[i]) != -1 || errno != ENOSYS) {
            dprintf(2, "%s: errno %d\n", refused[i].name, errno);
            return 1;
        }
    }
    return 0;
}

static void calls_that_are_refused(void **state)
{
    (void)state;
    need_filter();
    assert_int_equal(in_child(try_refused, NULL), 0);
}

static int fails(const char *name)
{
    dprintf(2, "%s: errno %d\n", name, errno);
    return 1;
}

/* What CPython does with descriptors, threads and signals of its own. */
static int try_allowed(const void *context)
{
    static const int commands[] = { F_GETFD, F_GETFL };
    struct rlimit limits;
    sigset_t set;
    int fds[2], on = 1;

    (void)context;
    have_pipe();
    if (enter_filter() < 0)
        return NO_FILTER;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (fcntl(PIPE_FD, commands[i]) < 0)
            return fails("fcntl");
    if (fcntl(PIPE_FD, F_SETFD, FD_CLOEXEC) < 0 || fcntl(PIPE_FD, F_SETFL, O_NONBLOCK) < 0 ||
        fcntl(PIPE_FD, F_DUPFD_CLOEXEC, 50) < 0 || ioctl(PIPE_FD, FIONBIO, &on) < 0)
        return fails("descriptors");
    struct termios terminal;
    if (ioctl(PIPE_FD, TCGETS, &terminal) == 0 || errno != ENOTTY)
        return fails("isatty");
    if (pipe2(fds, O_CLOEXEC) < 0 || getrlimit(RLIMIT_STACK, &limits) < 0)
        return fails("pipe2 or getrlimit");
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0 || raise(SIGUSR1) != 0 ||
        kill(getpid(), SIGUSR1) < 0)
        return fails("a signal to itself");
    if (prctl(PR_SET_NAME, "program", 0, 0, 0) < 0)
        return fails("PR_SET_NAME");
    return 0;
}

static void calls_that_are_allowed(void **state)
{
    (void)state;
    need_filter();
    assert_int_equal(in_child(try_allowed, NULL), 0);
}

static int abort_itself(const void *context)
{
    (void)context;
    if (enter_filter() < 0)
        return NO_FILTER;
    abort();
}

static int call_of_32_bits(const void *context)
{
    (void)context;
    if (enter_filter() < 0)
        return NO_FILTER;
    return (int)syscall(SYS_getpid | 0x40000000); /* x32's */
}

static void ends_by_signals(void **state)
{
    (void)state;
    need_filter();
    assert_int_equal(in_child(abort_itself, NULL), -1);
#ifdef __x86_64__
    assert_int_equal(in_child(call_of_32_bits, NULL), -1);
#endif
}

/* ---- interpreters ---- */

/* What HumanEval's solutions import, and what interpreters do at their start and end. */
static char imports[] =
    "import abc, array, ast, base64, bisect, calendar, cmath, collections, contextlib, copy, csv\n"
    "import datetime, decimal, difflib, enum, fractions, functools, gc, glob, hashlib\n"
    "import heapq, html, inspect, io, itertools, json, locale, math, numbers, operator, os, "
    "pprint\n"
    "import queue, random, re, secrets, shutil, signal, statistics, string, struct, sys, tempfile\n"
    "import textwrap, threading, time, traceback, types, typing, unicodedata, unittest, uuid, "
    "zlib\n"
    "import multiprocessing, platform, select, ctypes\n"
    "hashlib.md5(b'x').hexdigest(); random.random(); time.sleep(0.001); os.cpu_count()\n"
    "os.getcwd(); os.listdir('/usr'); os.stat('/usr'); platform.system(); os.isatty(0)\n"
    "r, w = os.pipe(); os.set_blocking(r, False); select.select([], [w], [], 1); os.dup(r)\n"
    "done = []\n"
    "threads = [threading.Thread(target=done.append, args=(i,)) for i in range(4)]\n"
    "for t in threads: t.start()\n"
    "for t in threads: t.join()\n"
    "assert sorted(done) == [0, 1, 2, 3]\n"
    "signal.signal(signal.SIGALRM, lambda *a: done.append(9)); "
    "signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
    "while 9 not in done: time.sleep(0.001)\n"
    "for name in ('fork', 'forkpty'):\n"
    "    try: getattr(os, name)()\n"
    "    except OSError: pass\n"
    "    else: raise ValueError(name)\n"
    "os._exit(7)\n";

static int run_python(const void *context)
{
    char *path = (char *)(uintptr_t)context;
    char *arguments[] = { path, "-I", "-B", "-c", imports, NULL };
    char *environment[] = { NULL };

    if (enter_filter() < 0)
        return NO_FILTER;
    execve(path, arguments, environment);
    return NO_FILTER + 1;
}

/* Debian's, and those of pyenv, where there are some. */
static void interpreters(void **state)
{
    const char *home = getenv("HOME");
    char pattern[512];
    glob_t found;

    (void)state;
    need_filter();
    snprintf(pattern, sizeof pattern, "%s/.pyenv/versions/3.*/bin/python3", home ? home : "");
    assert_int_equal(glob("/usr/bin/python3", GLOB_NOCHECK, NULL, &found), 0);
    glob(pattern, GLOB_APPEND, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (access(found.gl_pathv[i], X_OK) != 0)
            continue;
        print_message("%s\n", found.gl_pathv[i]);
        assert_int_equal(in_child(run_python, found.gl_pathv[i]), 7);
    }
    globfree(&found);
}

/* ---- files ---- */

struct place {
    const char *folder;
    int has_scratch;
};

/* Whether files can be made in a folder that is, or isn't, the scratch of Landlock's rules. */
static int write_under_landlock(const void *context)
{
    const struct place *p = context;

    if (chdir(p->folder) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        sandbox_landlock(p->has_scratch ? p->folder : NULL) < 0)
        return NO_FILTER;
    int fd = open("file", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EACCES && mkdir("folder", 0700) < 0 && errno == EACCES ? 1 : 2;
    return write(fd, "x", 1) == 1 ? 0 : 2;
}

static void files_under_landlock(void **state)
{
    char folder[128];
    struct err err;

    (void)state;
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    int with = in_child(write_under_landlock, &(struct place){ folder, 1 });
    int without = in_child(write_under_landlock, &(struct place){ folder, 0 });
    assert_int_equal(file_remove_tree(folder, &err), 0);
    if (with == NO_FILTER) {
        print_message("skipped: no Landlock here\n");
        skip();
    }
    assert_int_equal(with, 0);
    assert_int_equal(without, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_are_refused), cmocka_unit_test(calls_that_are_allowed),
        cmocka_unit_test(ends_by_signals),        cmocka_unit_test(interpreters),
        cmocka_unit_test(files_under_landlock),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
