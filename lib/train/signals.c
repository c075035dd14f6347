/*
 * signals.c - a flag, and nothing else in the handler
 *
 * The handler has a stack of its own, for the interrupted code may have none to spare: in the fp32
 * products of oneDNN 2.6 that work without copies (jit_avx_gemm_f32.cpp, jit_avx512_common_gemm_f32
 * .cpp) the stack pointer points to a workspace from malloc, and what the kernel pushes for a
 * handler, up to some KiB, would overwrite whatever lies before it on the heap. Threads that take
 * part in products without such a stack must have these signals blocked, as the pool's have.
 */
#include "train/signals.h"

#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "launch/stop.h"

/* Room for the frame with all registers of AVX-512 and AMX (11 KiB) and a shallow handler. */
#define STACK_BYTES (64 << 10)

static volatile sig_atomic_t pending, asked_to_end;
static volatile double asked_at; /* written by the handler alone, which nothing interrupts */
static _Alignas(64) char handler_stack[STACK_BYTES];

static void on_signal(int number)
{
    /* SIGUSR1 and then SIGTERM is how Slurm says once that the time is up. */
    if (asked_to_end && number != SIGUSR1) {
        if (clock_seconds() - asked_at < STOP_ONE_REQUEST_SECONDS)
            return;
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    pending = number;
    if (number != SIGUSR1) {
        asked_to_end = 1;
        asked_at = clock_seconds();
    }
}

/* One that the thread already has (sanitizers give it one and take it back) stays. */
static void give_stack(void)
{
    stack_t stack = { .ss_sp = handler_stack, .ss_size = sizeof handler_stack }, has;

    CHECK(sigaltstack(NULL, &has) == 0);
    if (has.ss_flags & SS_DISABLE)
        CHECK(sigaltstack(&stack, NULL) == 0);
}

void signals_catch(void)
{
    static const int numbers[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
    struct sigaction action;

    give_stack();
    signal(SIGPIPE, SIG_IGN);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&action.sa_mask, numbers[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] != SIGHUP || !stop_hangup_is_ignored())
            sigaction(numbers[i], &action, NULL);
}

int signals_pending(void)
{
    return pending;
}
