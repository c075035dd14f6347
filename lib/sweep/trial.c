/*
 * trial.c - see the header
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* CPU_ALLOC */
#endif
#include "sweep/trial.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

#define CORES_MAX 4096
#define LINE_BYTES 4096
#define LOCK_TRIES 50 /* of 20 ms: until processes of the trial's last start are gone */

static void bind_cores(const struct trial_place *place)
{
    cpu_set_t *set = place->n_cores ? CPU_ALLOC(CORES_MAX) : NULL;
    size_t size = CPU_ALLOC_SIZE(CORES_MAX);

    if (!set)
        return;
    CPU_ZERO_S(size, set);
    for (int i = 0; i < place->n_cores; i++)
        CPU_SET_S((size_t)place->cores[i], size, set);
    /* One that cannot be bound shares all cores. */
    sched_setaffinity(0, size, set);
    CPU_FREE(set);
}

/* In the child: becomes the command, or ends with status 1. */
static void become(const char *const *argv, const struct trial_place *place, int log, pid_t parent)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    bind_cores(place);
    for (int i = 0; i < place->n_variables; i++)
        if (place->variables[i].value)
            setenv(place->variables[i].name, place->variables[i].value, 1);
        else
            unsetenv(place->variables[i].name);
    if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
        _exit(1);
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    dprintf(2, "lmtrain: it cannot be started: %s\n", strerror(errno));
    _exit(1);
}

/*
 * The lock is of the open file, which the trial inherits as its output: so it is held without a
 * gap, also while the trial has not come to the lock of its run yet (run_lock.h).
 */
static void lock_log(int fd)
{
    const struct timespec pause = { 0, 20000000 };

    for (int i = 0; i < LOCK_TRIES && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK; i++)
        nanosleep(&pause, NULL);
}

pid_t trial_start(const char *const *argv, const struct trial_place *place, const char *log,
                  struct err *err)
{
    int fd = file_open_write(log, O_WRONLY | O_APPEND, err);
    pid_t parent = getpid();

    if (fd < 0)
        return -1;
    lock_log(fd);
    pid_t process = fork();
    if (!process)
        become(argv, place, fd, parent);
    if (process > 0)
        setpgid(process, process); /* here and in the child: one is first */
    else
        err_set(err, ERR_FAILED, "a trial's process cannot be started: %s", strerror(errno));
    close(fd);
    return process;
}

int trial_ended(pid_t process, int *status)
{
    int how;

    if (waitpid(process, &how, WNOHANG) != process)
        return 0;
    kill(-process, SIGKILL);
    *status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    return 1;
}

bool trial_died(int status)
{
    return status == ERR_PEER || status > 128;
}

/*
 * The last line that says something of its own: what a cause has behind it (the last lines of its
 * rank, how many others ended with it) is less than the cause.
 */
static const char *choose_line(char *text)
{
    static const char tail[] = "; its last lines:", consequence[] = "terminated as a result";
    const char *chosen = "";
    char *rest = NULL;
    bool is_behind = false;

    for (char *line = strtok_r(text, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest)) {
        bool is_own =
            str_starts_with(line, "lmtrain: ") && !str_starts_with(line, "lmtrain: warn: ");

        if (str_ends_with(line, consequence) || (is_behind && !is_own))
            continue;
        chosen = line;
        is_behind = str_ends_with(line, tail);
        if (is_behind)
            line[strlen(line) - strlen(tail)] = 0;
    }
    return chosen;
}

void trial_last_line(const char *log, char *text, size_t size)
{
    char tail[LINE_BYTES + 1];
    FILE *file = fopen(log, "re");

    text[0] = 0;
    if (!file)
        return;
    if (fseek(file, -LINE_BYTES, SEEK_END) < 0)
        rewind(file);
    tail[fread(tail, 1, LINE_BYTES, file)] = 0;
    fclose(file);
    const char *line = choose_line(tail);
    line += str_starts_with(line, "lmtrain: ") ? strlen("lmtrain: ") : 0;
    line += str_starts_with(line, "error: ") ? strlen("error: ") : 0;
    snprintf(text, size, "%s", line);
    str_make_printable(text);
}
