/*
 * failing_rank.h - rank 1 of a job that fails, for tests of who supervises it
 */
#ifndef TEST_LAUNCH_FAILING_RANK_H
#define TEST_LAUNCH_FAILING_RANK_H

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "launch/launch.h"
#include "support/run_job.h"

/* Rank 1 fails in the way that scenario says; the others wait in a fence for it. */
static inline int play_failure(const struct launch_rank *rank, const char *scenario)
{
    struct err err;

    CHECK(!launch_fence(30, &err));
    run_job_publish(rank, "attention layers.9", 0);
    if (rank->world_rank != 1) {
        launch_fence(30, &err);
        launch_abort(ERR_PEER, err.text);
    }
    usleep(20000);
    if (!strcmp(scenario, "kill"))
        raise(SIGKILL);
    if (!strcmp(scenario, "bug"))
        CHECK(rank->world_rank == 0);
    if (!strcmp(scenario, "exit3")) {
        fprintf(stderr, "last words\n");
        _exit(3);
    }
    if (!strcmp(scenario, "exit0"))
        _exit(0);
    if (!strcmp(scenario, "peer"))
        _exit(ERR_PEER);
    launch_abort(4, "device is full");
}

#endif
