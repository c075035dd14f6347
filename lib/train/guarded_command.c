/*
 * guarded_command.c - see the header
 *
 * Processes are started by vfork, for a fork would copy the page tables of a process that may have
 * much memory, some of it a GPU's; between vfork and exec a child makes system calls alone. For the
 * same reason the guard is a shell and not a fork of this process.
 */
#include "train/guarded_command_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"

enum { NICENESS = 10 };

/* Nothing is ever written to the pipe. $1: the grace. */
static char guard_script[] = "read -r line; kill -TERM 0; sleep \"$1\"; kill -KILL 0";

static bool belongs_to_launcher(const char *variable)
{
    static const char *const prefixes[] = { "PMIX_", "PMI_", "PRTE_", "OMPI_", "LMTRAIN_" };

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (str_starts_with(variable, prefixes[i]))
            return true;
    return false;
}

/* This process's environment without launchers' variables, with the command's. The list is the
 * caller's to free; the texts are borrowed. */
static char **environment_of(const struct guarded_command_options *options)
{
    extern char **environ;
    int n = 0, n_more = 0, n_kept = 0;

    while (environ[n])
        n++;
    while (options->variables[n_more])
        n_more++;
    char **list = calloc((size_t)(n + n_more) + 1, sizeof *list);
    CHECK(list);
    for (int i = 0; i < n; i++)
        if (!belongs_to_launcher(environ[i]))
            list[n_kept++] = environ[i];
    for (int i = 0; i < n_more; i++)
        list[n_kept++] = (char *)(uintptr_t)options->variables[i];
    return list;
}

/* Its whole input lies in memory, so that no one writes to a pipe that may not be read. */
static int open_input(const char *text)
{
    if (!text)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create("input", MFD_CLOEXEC);

    if (fd >= 0 && (file_write_all(fd, text, strlen(text)) || lseek(fd, 0, SEEK_SET) < 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

struct process_start {
    char *const *argv;
    char **env;
    int in, out;
    pid_t parent, group; /* group 0: it leads one of its own */
};

/* In the child of a vfork: system calls alone. */
static void become_shell(const struct process_start *start)
{
    static const int ignored[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 };
    bool is_guard = start->group == 0;
    sigset_t none;

    for (int signal_number = 1; signal_number < NSIG; signal_number++)
        signal(signal_number, SIG_DFL);
    for (size_t i = 0; is_guard && i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    /* For a death of this process before the child was in the group. */
    if (!is_guard)
        prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (setpgid(0, start->group) < 0 || (is_guard && chdir("/") < 0))
        _exit(127);
    setpriority(PRIO_PROCESS, 0, NICENESS);
    dup2(start->in, STDIN_FILENO);
    dup2(start->out, STDOUT_FILENO);
    dup2(start->out, STDERR_FILENO);
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (getppid() == start->parent)
        execve("/bin/sh", start->argv, start->env);
    _exit(127);
}

/* A function of its own, without variables that a vfork might change. */
__attribute__((noinline)) static pid_t vfork_shell(const struct process_start *start)
{
    pid_t process = vfork();

    if (process == 0)
        become_shell(start);
    return process;
}

/* The guard comes first: a process that dies between the two leaves no command without one. Its
 * standard input is `ends[0]`, the command's `in`. */
static int start_both(struct guarded_command *c, const struct guarded_command_options *options,
                      char **env, const int ends[2], int in, int out)
{
    char grace[32], shell[] = "sh", flag[] = "-c", *text = strdup(options->command);
    char *guard_argv[] = { shell, flag, guard_script, shell, grace, NULL };
    char *argv[] = { shell, flag, text, NULL };
    struct process_start start = { guard_argv, env, ends[0], out, getpid(), 0 };

    CHECK(text);
    snprintf(grace, sizeof grace, "%.0f", ceil(options->grace_seconds));
    c->guard = c->group = vfork_shell(&start);
    if (c->guard > 0) {
        /* As it does itself: a sanitizer's vfork is a fork, whose child may not have come to it. */
        setpgid(c->guard, c->guard);
        start.argv = argv;
        start.in = in;
        start.group = c->group;
        c->process = vfork_shell(&start);
    }
    int number = errno;
    free(text);
    if (c->process > 0)
        return 0;
    if (c->guard > 0) {
        kill(c->guard, SIGKILL);
        waitpid(c->guard, NULL, 0);
    }
    errno = number;
    return -1;
}

static void close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

int guarded_command_start(struct guarded_command *c, const struct guarded_command_options *options)
{
    char **env = environment_of(options);
    int in = open_input(options->input);
    int out = open(options->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    int ends[2] = { -1, -1 }, status = -1;

    *c = (struct guarded_command){ .pipe = -1 };
    if (in >= 0 && out >= 0 && pipe2(ends, O_CLOEXEC) == 0)
        status = start_both(c, options, env, ends, in, out);
    int number = errno;
    close_all((int[]){ in, out, ends[0] }, 3);
    if (status < 0)
        close_all(&ends[1], 1);
    else
        c->pipe = ends[1];
    free(env);
    errno = number;
    return status;
}

/* Without a wait. Its status is lost where another reaps it: the kernel, if SIGCHLD is ignored. */
static bool is_reaped(pid_t *process, int *status, bool *is_lost)
{
    if (!*process)
        return true;
    pid_t found = waitpid(*process, status, WNOHANG);

    if (found == 0)
        return false;
    *is_lost = found < 0;
    *process = 0;
    return true;
}

bool guarded_command_has_ended(struct guarded_command *c)
{
    return is_reaped(&c->process, &c->status, &c->is_lost);
}

void guarded_command_signal(const struct guarded_command *c, int signal_number)
{
    if (c->guard > 0)
        kill(-c->group, signal_number);
}

bool guarded_command_is_gone(struct guarded_command *c)
{
    int status;
    bool is_lost;
    bool has_ended = guarded_command_has_ended(c);

    return is_reaped(&c->guard, &status, &is_lost) && has_ended;
}

void guarded_command_release(struct guarded_command *c)
{
    if (c->pipe >= 0)
        close(c->pipe);
    c->pipe = -1;
}
