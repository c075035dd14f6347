/*
 * signals.c - a flag, and a line that says so; the handler does nothing else
 */
#include "train/signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/stop.h"
#include "progress/progress.h"

static volatile sig_atomic_t pending, asked_to_end;
static volatile double asked_at; /* written by the handler alone, which nothing interrupts */

static const char *volatile answer;
static volatile sig_atomic_t is_terminal;

static const char *name_of(int number)
{
    return number == SIGTERM  ? "SIGTERM: "
           : number == SIGINT ? "SIGINT: "
           : number == SIGHUP ? "SIGHUP: "
                              : "SIGUSR1: ";
}

/* Only calls that are safe in a handler. A live line makes room and is drawn again below. */
static void say(int number)
{
    const char *text = answer;
    const char *const parts[] = { is_terminal ? "\r\033[K" : "", "lmtrain: ", name_of(number), text,
                                  "\n" };
    int before = errno;

    for (size_t i = 0; text && i < sizeof parts / sizeof *parts; i++)
        if (write(2, parts[i], strlen(parts[i])) < 0)
            break;
    errno = before;
}

static void on_signal(int number)
{
    /* Slurm announces the end of the time limit by SIGUSR1 and then SIGTERM: one announcement. */
    if (asked_to_end && number != SIGUSR1) {
        if (clock_seconds() - asked_at < STOP_ONE_REQUEST_SECONDS)
            return;
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    /* Nothing is saved by a rank that is ended because another one died. */
    if (!pending && !progress_is_over())
        say(number);
    pending = number;
    if (number != SIGUSR1) {
        asked_to_end = 1;
        asked_at = clock_seconds();
    }
}

void signals_catch(void)
{
    static const int numbers[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
    struct sigaction action;

    signal(SIGPIPE, SIG_IGN);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
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

void signals_answer(const char *text)
{
    is_terminal = isatty(2);
    answer = text;
}
