/*
 * command.c - run, read, wait, each bounded
 */
#include "launch/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { SAID_BYTES_MAX = 64 << 10 };

static void run_child(char *const *argv, int fd)
{
    sigset_t none;
    int null = open("/dev/null", O_RDWR);

    if (null >= 0)
        dup2(null, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    setpgid(0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    _exit(127);
}

/* Until the end, or the deadline. 0 at the end. */
static int read_all(int fd, double deadline, struct str *said)
{
    char bytes[4096];

    for (;;) {
        double left = deadline - clock_seconds();
        struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

        if (left <= 0)
            return -1;
        if (poll(&poll_fd, 1, (int)(left * 1000) + 1) <= 0)
            continue;
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        if (said->length + (size_t)n <= SAID_BYTES_MAX)
            str_add_bytes(said, bytes, (size_t)n);
    }
}

int command_capture(char *const *argv, double timeout_seconds, struct str *said)
{
    double deadline = clock_seconds() + timeout_seconds;
    int fds[2], status = 0;

    if (pipe2(fds, O_CLOEXEC))
        return -1;
    pid_t pid = fork();
    if (pid < 0) {
        close(fds[0]);
        close(fds[1]);
        return -1;
    }
    if (!pid)
        run_child(argv, fds[1]);
    setpgid(pid, pid);
    close(fds[1]);
    bool late = read_all(fds[0], deadline, said);
    close(fds[0]);
    /* One that has closed its output may still stay. */
    while (!late && waitpid(pid, &status, WNOHANG) == 0) {
        late = clock_seconds() >= deadline;
        usleep(1000);
    }
    if (late) {
        kill(-pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    return !late && WIFEXITED(status) && WEXITSTATUS(status) != 127 ? WEXITSTATUS(status) : -1;
}
