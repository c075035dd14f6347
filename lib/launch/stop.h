/*
 * stop.h - what all who are asked to stop agree on: the head, srun's parent, a rank
 */
#ifndef LAUNCH_STOP_H
#define LAUNCH_STOP_H

#include <signal.h>
#include <stddef.h>

/*
 * Requests that come within so many seconds are one: timeout(1) signals a process and then its
 * group, systemd every process of a service, and a head passes on to ranks what they may have got
 * themselves.
 */
#define STOP_ONE_REQUEST_SECONDS 1.0

/*
 * Whether we were started to outlive our terminal (nohup). Whoever blocks SIGHUP to read it must
 * ask, for a blocked signal comes although it is ignored.
 */
static inline int stop_hangup_is_ignored(void)
{
    struct sigaction action;

    return !sigaction(SIGHUP, NULL, &action) && action.sa_handler == SIG_IGN;
}

#endif
