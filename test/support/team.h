/*
 * team.h - ranks as threads of this process that hold one trained model together
 */
#ifndef SUPPORT_TEAM_H
#define SUPPORT_TEAM_H

#include "serve/served.h"

#define TEAM_MAX 8

struct team {
    const char *model; /* folder */
    int tp, pp, replicas;
    int n_threads; /* of each rank; 0: 1 */
};

struct team_rank {
    int rank; /* of the world */
    void *context;
    struct served *served; /* its own, with its replica */
    struct kernels *kernels;
    int status;
    struct err err;
};

/* What a rank does. Runs on a thread: no asserts of cmocka's. */
typedef int (*team_fn)(struct team_rank *rank, struct err *err);

/* All ranks do work with contexts[rank]; returns when all are done. Fails the test if one fails.
 * One rank has no replica. */
void team_run(const struct team *team, team_fn work, void *const *contexts);

#endif
