/*
 * command_test.c - other programs: what they say, and none that keeps us waiting
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "launch/command.h"

static int capture(const char *script, double timeout_seconds, struct str *said)
{
    char *argv[] = { "sh", "-c", (char *)(uintptr_t)script, NULL };

    str_clear(said);
    return command_capture(argv, timeout_seconds, said);
}

static void what_it_says(void **state)
{
    char *nothing[] = { "/no/such/program", NULL };
    struct str said = { 0 };

    (void)state;
    assert_int_equal(capture("echo out; echo err >&2; exit 3", 30, &said), 3);
    assert_string_equal(str_text(&said), "out\nerr\n");
    assert_int_equal(capture("cat", 30, &said), 0); /* there is nothing to read */
    assert_int_equal(capture("kill -9 $$", 30, &said), -1);
    assert_int_equal(command_capture(nothing, 30, &said), -1);
    assert_int_equal(capture("head -c 300000 /dev/zero | tr '\\0' x", 30, &said), 0);
    assert_in_range(said.length, 32 << 10, 64 << 10);
    str_release(&said);
}

/* Silent, talking on and on, or with its output closed: all of its group ends in time. */
static void who_stays_is_killed(void **state)
{
    static const char *const scripts[] = { "sleep 100 & sleep 100", "while :; do echo; done",
                                           "exec >&- 2>&-; sleep 100" };
    struct str said = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        double begin = clock_seconds();

        assert_int_equal(capture(scripts[i], 0.2, &said), -1);
        assert_true(clock_seconds() - begin < 30);
    }
    str_release(&said);
}

static void on_alarm(int number)
{
    (void)number;
}

/* Whoever's signals come meanwhile, the deadline holds. */
static void signals_do_not_matter(void **state)
{
    struct itimerval often = { { 0, 10000 }, { 0, 10000 } }, never = { 0 };
    struct str said = { 0 };
    double begin = clock_seconds();

    (void)state;
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &often, NULL);
    assert_int_equal(capture("sleep 100", 0.3, &said), -1);
    assert_int_equal(capture("sleep 0.2; echo done", 30, &said), 0);
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    assert_string_equal(str_text(&said), "done\n");
    assert_true(clock_seconds() - begin < 60);
    str_release(&said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_says),
        cmocka_unit_test(who_stays_is_killed),
        cmocka_unit_test(signals_do_not_matter),
    };

    return cmocka_run_group_tests_name("command", tests, NULL, NULL);
}
