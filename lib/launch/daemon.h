/*
 * daemon.h - the agent of one node
 *
 * It serves PMIx to the ranks of its node, starts them, reads what they print, sees them end, and
 * tells the head (supervise.h) all of it over one link: a socketpair on the head's own machine, TCP
 * from others. It decides nothing. When the link closes, for whatever reason, it ends its ranks,
 * removes its folder and exits.
 */
#ifndef LAUNCH_DAEMON_H
#define LAUNCH_DAEMON_H

#include "base/err.h"

/* Serve the link until it closes or the head says goodbye. Returns the process's exit status. */
int launch_daemon(int link_fd);

#endif
