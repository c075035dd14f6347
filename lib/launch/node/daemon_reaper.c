/*
 * daemon_reaper.c - waiting for a daemon's end
 */
#include "launch/node/daemon_reaper.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/death_impl.h"
#include "launch/job_folder_impl.h"

int daemon_reaper_run(int (*serve)(void))
{
    int status = 0;
    pid_t child = fork();

    if (child < 0) {
        fprintf(stderr, "lmtrain: cannot start a process: %s\n", strerror(errno));
        return 1;
    }
    if (!child)
        _exit(serve());
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    /* Its ranks have been sent SIGKILL by now: their parent is gone. */
    job_folder_sweep(job_folder_parent());
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    struct death death = death_of_rank(status, false);
    char text[128];
    fprintf(stderr, "lmtrain: the daemon %s\n", death_predicate(&death, text, sizeof text));
    return 128 + WTERMSIG(status);
}
