/*
 * job_spec_message_impl.h - what a daemon receives of the job
 *
 * Ranks are dealt to nodes in blocks: node i has n_ranks of them from first_rank on, and the blocks
 * follow one another. Decoding is pure and trusts no byte.
 */
#ifndef LAUNCH_JOB_SPEC_MESSAGE_IMPL_H
#define LAUNCH_JOB_SPEC_MESSAGE_IMPL_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

struct job_node {
    const char *name; /* its host name, different from all others */
    int first_rank, n_ranks;
};

struct job_spec {
    const char *nspace; /* the job's PMIx namespace, unique per attempt */
    const char *cwd;
    int attempt;
    int n_ranks, n_nodes;
    int node; /* whom this spec is for */
    const struct job_node *nodes;
    char *const *argv;      /* ended by NULL */
    char *const *variables; /* NAME=VALUE, over the daemon's own environment; ended by NULL */
    bool has_screen;        /* rank 0 writes to the daemon's own stdout and stderr */
    int progress_ms;        /* how often to tell of the ranks' progress; 0 never */
    int beat_ms;            /* say something at least so often; 0: no need */
    uint32_t credit_bytes;  /* how much output may be sent before the head has asked for more */
};

void job_spec_encode(const struct job_spec *spec, struct str *bytes);

/* Texts point into bytes, lists are in the arena. Returns 0, or -1 and ERR_PEER. */
int job_spec_decode(struct job_spec *spec, const void *bytes, size_t n_bytes, struct arena *arena,
                    struct err *err);

/*
 * The variables of environment that ranks on other hosts get as well: LMTRAIN_*, those of Open MPI,
 * UCX, libfabric, CUDA and NCCL, of malloc and the sanitizers, locale, time zone and
 * LD_LIBRARY_PATH, and those that $LMTRAIN_EXPORT names (A,B). None whose name speaks of a key,
 * token, secret or password, unless it is named there. A list in the arena, ended by NULL; the
 * strings are the environment's.
 */
char *const *job_spec_variables(char *const *environment, struct arena *arena);

#endif
