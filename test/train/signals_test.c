/* Signals: flags, and that a handler writes nothing below the stack pointer it interrupts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "train/signals.h"

#define STACK_BYTES (256 << 10)
#define MARK 0xA5

/* Of what is on the stack: less than any signal frame (the registers' old half alone is 512). */
#define CALLS_BYTES 384

static ucontext_t tester, spinner;
static unsigned char *stack, *lowest;
static pthread_t spinning;
static volatile sig_atomic_t is_marked;

/* Marks all of the stack below itself, and waits there for the signal without a deeper call. */
__attribute__((noinline, no_sanitize("address", "undefined"))) static void spin(void)
{
    unsigned char here = 0;

    lowest = (unsigned char *)((uintptr_t)&here - CALLS_BYTES);
    for (unsigned char *p = stack; p < lowest; p++)
        *(volatile unsigned char *)p = MARK;
    is_marked = 1;
    while (!signals_pending())
        ;
}

static void *send(void *context)
{
    (void)context;
    while (!is_marked)
        usleep(1000);
    pthread_kill(spinning, SIGUSR1);
    return NULL;
}

static void test_own_stack(void **state)
{
    pthread_t sender;

    (void)state;
    signals_catch();
    stack = malloc(STACK_BYTES);
    assert_non_null(stack);
    assert_int_equal(getcontext(&spinner), 0);
    spinner.uc_stack = (stack_t){ .ss_sp = stack, .ss_size = STACK_BYTES };
    spinner.uc_link = &tester;
    makecontext(&spinner, spin, 0);
    spinning = pthread_self();
    assert_int_equal(pthread_create(&sender, NULL, send, NULL), 0);
    assert_int_equal(swapcontext(&tester, &spinner), 0);
    assert_int_equal(pthread_join(sender, NULL), 0);
    assert_int_equal(signals_pending(), SIGUSR1);

    int n_written = 0;
    for (const unsigned char *p = stack; p < lowest; p++)
        n_written += *p != MARK;
    assert_int_equal(n_written, 0);
    free(stack);
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_own_stack),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
