/*
 * daemon_reaper.h - a parent process that cleans up after a daemon that was killed
 *
 * A daemon removes what it made, unless it is killed by SIGKILL. On the head's machine the head
 * then does it; on other hosts this: the daemon runs in a child, and the parent has nothing to do
 * but to wait for its end and to remove the folders of jobs whose daemon is gone. Should the parent
 * be killed, sshd closes the daemon's stdin, and it ends in order.
 */
#ifndef LAUNCH_NODE_DAEMON_REAPER_H
#define LAUNCH_NODE_DAEMON_REAPER_H

/*
 * Run serve in a child. Returns its exit status, or 128 and its signal after a line on stderr.
 * Call it before there are threads.
 */
int daemon_reaper_run(int (*serve)(void));

#endif
