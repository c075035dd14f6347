/*
 * launch.h - joining a job as a rank
 *
 * A process that was started with PMIx variables (PMIX_NAMESPACE and PMIX_RANK: by our own daemons,
 * srun --mpi=pmix or mpirun) is one of several; any other that joins is the only rank. The caller
 * decides whether to join or to start ranks (launch_context.h); supervise.h and slurm.h start them.
 */
#ifndef LAUNCH_LAUNCH_H
#define LAUNCH_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct launch_rank {
    int world_rank, world_size;
    int local_rank, local_size; /* on this node */
    bool under_pmix;            /* 0 when alone */
};

/* Whether the environment says that this process is a rank of a PMIx job. */
int launch_is_rank(void);

/*
 * The number of this attempt of the job, from 0: restarts by lmtrain plus requeues by Slurm.
 */
int launch_attempt(void);

/*
 * Join the job: without PMIx fills {0, 1, 0, 1}; with PMIx calls PMIx_Init and reads the rank's
 * identity. Returns 0, or -1 and ERR_PEER or ERR_FAILED.
 */
int launch_join(struct launch_rank *rank, struct err *err);

/* PMIx_Finalize if joined with PMIx: only after it the supervisor treats exit status 0 as
 * success. */
void launch_leave(void);

/* Report failure of this rank with status and text to the supervisor (or srun, mpirun):
 * PMIx_Abort. */
void launch_abort(int status, const char *text) __attribute__((noreturn));

/*
 * Publish under key for all ranks, and get what `rank` published (waits at most timeout_seconds).
 * value is any n_bytes; get writes at most *n_bytes and sets *n_bytes. All
 * ranks put, then launch_fence (collective), then get.
 */
int launch_put(const char *key, const void *value, size_t n_bytes, struct err *err);
int launch_fence(double timeout_seconds, struct err *err);
int launch_get(const char *key, int rank, void *value, size_t *n_bytes, double timeout_seconds,
               struct err *err);

/* The world ranks of this node's ranks, ascending, this one among them: local_size of them. */
int launch_local_peers(int *ranks, int local_size, struct err *err);

#endif
