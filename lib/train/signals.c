/*
 * signals.c - a flag, and nothing else in the handler
 */
#include "train/signals.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t pending, asked_to_end;

static void on_signal(int number)
{
    /* SIGUSR1 and then SIGTERM is how Slurm says once that the time is up. */
    if (asked_to_end && number != SIGUSR1) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    pending = number;
    asked_to_end |= number != SIGUSR1;
}

void signals_catch(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

int signals_pending(void)
{
    return pending;
}
