/*
 * daemon.c - lmtrain daemon: the agent of one host, which the head of a job starts through ssh
 *
 * Not in the help: users do not call it. If they do, a message explains what it is for.
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "cmd.h"
#include "launch/node/daemon.h"
#include "launch/node/daemon_reaper.h"
#include "launch/remote/hosts.h"

static int serve(void)
{
    double link_seconds;
    struct err err;
    int fd = hosts_answer(STDIN_FILENO, cmd_build(), &link_seconds, &err);

    return fd < 0 ? cmd_fail(&err) : launch_daemon(fd, link_seconds);
}

int cmd_daemon(int argc, char **argv)
{
    (void)argv;
    if (argc > 1 || isatty(STDIN_FILENO)) {
        fputs("lmtrain: `lmtrain daemon` is started by `lmtrain pretrain --hosts` on each "
              "host\nthrough ssh; it is not meant to be started by hand (hint: lmtrain pretrain "
              "-h)\n",
              stderr);
        return ERR_CONFIG;
    }
    /* The reader of stderr may be gone before this process has cleaned up. */
    signal(SIGPIPE, SIG_IGN);
    return daemon_reaper_run(serve);
}
