/*
 * rank_process.c - fork, exec, signals, reaping
 */
#include "launch/node/rank_process_impl.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/proc_impl.h"

/* Only calls that are safe after the fork of a process with threads. */
static void run_child(pid_t supervisor, char *const *argv, char *const *environment,
                      const int fds[2])
{
    static const char failed[] = "lmtrain: error: cannot execute /proc/self/exe\n";
    struct rlimit no_core = { 0, 0 };
    sigset_t none;
    int null = open("/dev/null", O_RDONLY);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor)
        _exit(127);
    setrlimit(RLIMIT_CORE, &no_core);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    if (fds[0] != STDOUT_FILENO)
        dup2(fds[0], STDOUT_FILENO);
    if (fds[1] != STDERR_FILENO)
        dup2(fds[1], STDERR_FILENO);
    if (null > STDERR_FILENO)
        close(null);
    signal(SIGPIPE, SIG_DFL);
    /* Its group is not the terminal's: where `stty tostop` is set, writing there would stop it. */
    signal(SIGTTOU, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve("/proc/self/exe", argv, environment);
    if (write(STDERR_FILENO, failed, sizeof failed - 1) < 0)
        _exit(126);
    _exit(127);
}

int rank_process_start(struct rank_process *process, char *const *argv, char *const *environment,
                       const int fds[2], struct err *err)
{
    pid_t supervisor = getpid();
    pid_t pid = fork();

    if (pid < 0)
        return err_set_errno(err, ERR_FAILED, "cannot start a process");
    if (!pid)
        run_child(supervisor, argv, environment, fds);
    setpgid(pid, pid); /* here too: a signal may be due before the child gets to it */
    *process = (struct rank_process){ .pid = pid, .running = true };
    return 0;
}

void rank_process_signal(const struct rank_process *process, int signal)
{
    if (process->running)
        kill(process->pid, signal);
}

void rank_process_signal_group(const struct rank_process *process, int signal)
{
    if (process->running)
        kill(-process->pid, signal);
}

int rank_process_reap(struct rank_process *process)
{
    siginfo_t info = { 0 };

    if (!process->running)
        return 0;
    if (waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid)
        return 0;
    /* While it is a zombie its number cannot be another group's. */
    kill(-process->pid, SIGKILL);
    waitpid(process->pid, &process->wait_status, 0);
    process->running = false;
    return 1;
}

char rank_process_state(const struct rank_process *process)
{
    struct proc_stat stat;

    return process->running && !proc_stat(process->pid, &stat) ? stat.state : 0;
}
