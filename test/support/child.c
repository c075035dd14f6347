/*
 * child.c - a fork and a pipe
 */
#include "support/child.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <sys/wait.h>
#include <unistd.h>

int child_run(void (*work)(void *context), void *context, char *said, size_t size)
{
    int ends[2], status;
    size_t length = 0;
    ssize_t n;

    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        work(context);
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], said + length, size - 1 - length)) > 0)
        length += (size_t)n;
    close(ends[0]);
    said[length] = '\0';
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
