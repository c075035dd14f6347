/* Signals: flags, and an end at the second. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/signals.h"

/* What becomes of a process that gets these signals. */
static int status_after(int first, int second)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        signals_catch();
        raise(first);
        if (second)
            raise(second);
        _exit(signals_pending());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_flags(void **state)
{
    (void)state;
    assert_int_equal(status_after(SIGTERM, 0), SIGTERM);
    assert_int_equal(status_after(SIGINT, 0), SIGINT);
    assert_int_equal(status_after(SIGUSR1, SIGUSR1), SIGUSR1);
    assert_int_equal(status_after(SIGUSR1, SIGTERM), SIGTERM);
    assert_int_equal(status_after(SIGTERM, SIGUSR1), SIGUSR1);
    assert_int_equal(status_after(SIGTERM, SIGTERM), -SIGTERM);
    assert_int_equal(status_after(SIGINT, SIGTERM), -SIGTERM);
    assert_int_equal(status_after(SIGTERM, SIGINT), -SIGINT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
