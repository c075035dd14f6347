/*
 * proc_test.c - what /proc is read for, of processes whose life is known
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "launch/proc_impl.h"

/* A child that waits to be killed, or is gone at once with this status. */
static pid_t fork_child(int status)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid)
        return pid;
    if (status >= 0)
        _exit(status);
    for (;;)
        pause();
}

static void test_own_process(void **state)
{
    struct proc_stat stat, again;

    (void)state;
    assert_int_equal(proc_stat(getpid(), &stat), 0);
    assert_int_equal(stat.state, 'R');
    assert_int_equal(stat.parent, getppid());
    assert_true(stat.start_ticks > 0);
    assert_false(proc_is_dead(&stat));
    assert_int_equal(proc_stat(getpid(), &again), 0);
    assert_true(again.start_ticks == stat.start_ticks);
}

static void test_name_of_brackets_and_blanks(void **state)
{
    struct proc_stat plain, odd;
    char name[16];

    (void)state;
    assert_int_equal(prctl(PR_GET_NAME, name), 0);
    assert_int_equal(proc_stat(getpid(), &plain), 0);
    assert_int_equal(prctl(PR_SET_NAME, "a) Z 1 (b) 2 "), 0);
    assert_int_equal(proc_stat(getpid(), &odd), 0);
    assert_int_equal(prctl(PR_SET_NAME, name), 0);
    assert_int_equal(odd.state, 'R');
    assert_int_equal(odd.parent, plain.parent);
    assert_true(odd.start_ticks == plain.start_ticks);
}

static void test_dead_child(void **state)
{
    struct proc_stat stat;
    siginfo_t info;
    pid_t exited = fork_child(7), killed = fork_child(-1);

    (void)state;
    assert_int_equal(waitid(P_PID, (id_t)exited, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(proc_stat(exited, &stat), 0);
    assert_true(proc_is_dead(&stat));
    assert_int_equal(stat.parent, getpid());
    assert_true(WIFEXITED(stat.wait_status) && WEXITSTATUS(stat.wait_status) == 7);

    assert_int_equal(proc_stat(killed, &stat), 0);
    assert_false(proc_is_dead(&stat));
    assert_int_equal(kill(killed, SIGKILL), 0);
    assert_int_equal(waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(proc_stat(killed, &stat), 0);
    assert_true(WIFSIGNALED(stat.wait_status) && WTERMSIG(stat.wait_status) == SIGKILL);

    assert_int_equal(waitpid(exited, NULL, 0), exited);
    assert_int_equal(waitpid(killed, NULL, 0), killed);
    assert_int_equal(proc_stat(killed, &stat), -1);
    assert_int_equal(stat.state, 0);
}

static void test_files(void **state)
{
    char text[8], name[32];

    (void)state;
    assert_int_equal(proc_read(getpid(), "status", text, sizeof text), 0);
    assert_string_equal(text, "Name:\tp");
    assert_int_equal(proc_read(getpid(), "comm", name, sizeof name), 0);
    assert_string_equal(name, "proc_test\n");
    assert_int_equal(proc_read(getpid(), "no-such-file", name, sizeof name), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_process),
        cmocka_unit_test(test_name_of_brackets_and_blanks),
        cmocka_unit_test(test_dead_child),
        cmocka_unit_test(test_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
