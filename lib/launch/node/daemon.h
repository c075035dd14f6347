/*
 * daemon.h - the agent of one node
 *
 * It serves PMIx to the ranks of its node, starts them, reads what they print, sees them end, and
 * tells the head (supervise.h) all of it over one link: a socketpair on the head's own machine, TCP
 * from others. It decides nothing. When the link closes, for whatever reason, it ends its ranks,
 * removes its folder and exits. Signals that ask to stop it leaves to its ranks and to the head.
 */
#ifndef LAUNCH_NODE_DAEMON_H
#define LAUNCH_NODE_DAEMON_H

#include "base/err.h"

/*
 * Serve the link, which becomes the daemon's, until it closes or breaks (TCP gives up a head whose
 * machine does not answer for lost_seconds), or GOODBYE comes. Call it from the main
 * thread, whose death is what ends the ranks; leave the process soon after, for a PMIx server
 * cannot be had twice. Returns the process's exit status: 0 after a goodbye, ERR_PEER when
 * the head was lost.
 */
int launch_daemon(int link_fd, double lost_seconds);

#endif
