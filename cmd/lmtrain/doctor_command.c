/*
 * doctor_command.c - asking other programs, none of which may keep the doctor waiting
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "doctor_impl.h"

enum { OUTPUT_BYTES_MAX = 8192 };

const char *doctor_find_in_path(struct doctor *doctor, const char *name)
{
    const char *path = getenv("PATH");

    while (path != NULL && *path != '\0') {
        size_t length = strcspn(path, ":");
        const char *file = arena_printf(doctor->arena, "%.*s/%s", (int)length, path, name);

        if (access(file, X_OK) == 0)
            return file;
        path += length;
        path += *path == ':';
    }
    return NULL;
}

/* In the child: both streams into the pipe, nothing to read, a process group that can be ended. */
static void become(int output, char *const *argv)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setpgid(0, 0);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0)
        _exit(127);
    execvp(argv[0], argv);
    _exit(127);
}

/* Read until the end or the deadline; returns the length, or -1 if the deadline came first. */
static ssize_t read_until(int input, char *buffer, size_t size, double deadline)
{
    size_t length = 0;

    for (;;) {
        double left = deadline - clock_seconds();
        struct pollfd wait = { .fd = input, .events = POLLIN };
        char rest[256];

        if (left <= 0.0)
            return -1;
        if (poll(&wait, 1, (int)(left * 1000.0) + 1) <= 0)
            continue;
        /* What does not fit is read all the same, so that the command can end. */
        ssize_t n = length < size ? read(input, buffer + length, size - length)
                                  : read(input, rest, sizeof rest);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (ssize_t)length;
        if (length < size)
            length += (size_t)n;
    }
}

const char *doctor_command(struct doctor *doctor, char *const *argv, double timeout_seconds)
{
    char buffer[OUTPUT_BYTES_MAX];
    int ends[2], status = 0;

    if (doctor_find_in_path(doctor, argv[0]) == NULL || pipe2(ends, O_CLOEXEC) != 0)
        return NULL;
    pid_t pid = fork();
    if (pid == 0)
        become(ends[1], argv);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return NULL;
    }
    ssize_t length = read_until(ends[0], buffer, sizeof buffer, clock_seconds() + timeout_seconds);
    close(ends[0]);
    if (length < 0)
        kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (length < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return NULL;
    return arena_strndup(doctor->arena, buffer, (size_t)length);
}
