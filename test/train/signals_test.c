/* Signals: flags, and an end at the second that is meant as one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/child.h"
#include "train/signals.h"

/* What becomes of a process that gets these signals, with a pause between. */
static int status_after_pause(int first, int second, unsigned milliseconds)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        signals_catch();
        raise(first);
        usleep(1000 * milliseconds);
        if (second)
            raise(second);
        _exit(signals_pending());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int status_after(int first, int second)
{
    return status_after_pause(first, second, 0);
}

static void test_flags(void **state)
{
    (void)state;
    assert_int_equal(status_after(SIGHUP, 0), SIGHUP);
    assert_int_equal(status_after(SIGTERM, 0), SIGTERM);
    assert_int_equal(status_after(SIGINT, 0), SIGINT);
    assert_int_equal(status_after(SIGUSR1, SIGUSR1), SIGUSR1);
    assert_int_equal(status_after(SIGUSR1, SIGTERM), SIGTERM);
    assert_int_equal(status_after(SIGTERM, SIGUSR1), SIGUSR1);
    /* timeout(1) and systemd say it twice and mean it once. */
    assert_int_equal(status_after(SIGTERM, SIGTERM), SIGTERM);
    assert_int_equal(status_after(SIGINT, SIGTERM), SIGINT);
    assert_int_equal(status_after_pause(SIGTERM, SIGTERM, 1010), -SIGTERM);
    assert_int_equal(status_after_pause(SIGTERM, SIGINT, 1010), -SIGINT);
}

/* Neither nohup's SIGHUP nor the end of who reads our output ends us. */
static void test_ignored(void **state)
{
    (void)state;
    signal(SIGHUP, SIG_IGN);
    assert_int_equal(status_after(SIGHUP, 0), 0);
    signal(SIGHUP, SIG_DFL);
    assert_int_equal(status_after(SIGPIPE, 0), 0);
}

struct signalled {
    const char *answer;
    int first, second;
};

static void be_signalled(void *context)
{
    const struct signalled *s = context;

    signals_catch();
    signals_answer(s->answer);
    raise(s->first);
    if (s->second)
        raise(s->second);
}

/* What a process that gets these signals says on standard error. */
static const char *said_after(const char *answer, int first, int second)
{
    static char text[512];

    child_run(be_signalled, &(struct signalled){ answer, first, second }, text, sizeof text);
    return text;
}

/* At once, once, and with no control characters where nothing is live. */
static void test_answers(void **state)
{
    (void)state;
    assert_string_equal(said_after(NULL, SIGTERM, 0), "");
    assert_string_equal(said_after("it leaves", SIGTERM, 0), "lmtrain: SIGTERM: it leaves\n");
    assert_string_equal(said_after("it leaves", SIGINT, SIGINT), "lmtrain: SIGINT: it leaves\n");
    assert_string_equal(said_after("it leaves", SIGUSR1, SIGHUP), "lmtrain: SIGUSR1: it leaves\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
