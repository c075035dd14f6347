/*
 * launch.h - being a rank
 *
 * A process that was started with PMIx variables (PMIX_NAMESPACE and PMIX_RANK: by our own daemons,
 * srun --mpi=pmix or mpirun) is one of several; any other that joins is the only rank. Whether to
 * join or to start ranks is decided above (where.h); who starts them: supervise.h and slurm.h.
 */
#ifndef LAUNCH_LAUNCH_H
#define LAUNCH_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct launch_rank {
    int world_rank, world_size;
    int local_rank, local_size; /* on this node */
    int under_pmix;             /* 0 when alone */
};

/* Whether the environment says that this process is a rank of a PMIx job. */
int launch_is_rank(void);

/*
 * Which start of the job this is, from 0: its restarts by us and Slurm's requeues together.
 */
int launch_attempt(void);

/*
 * Join: alone, fills {0, 1, 0, 1}; under PMIx, PMIx_Init and what the job says of us. Returns 0, or
 * -1 and ERR_PEER or ERR_FAILED.
 */
int launch_join(struct launch_rank *rank, struct err *err);

/* PMIx_Finalize if joined under PMIx: after it the supervisor takes exit 0 for success. */
void launch_leave(void);

/* Tell the supervisor (or srun, mpirun) that this rank fails with this status and text: PMIx_Abort.
 */
void launch_abort(int status, const char *text) __attribute__((noreturn));

/*
 * Publish under key for all ranks, and get what `rank` published (waits at most timeout_seconds).
 * value is n_bytes of anything; get fills at most *n_bytes and sets it. A fence lies between: all
 * ranks put, then launch_fence, then get.
 */
int launch_put(const char *key, const void *value, size_t n_bytes, struct err *err);
int launch_fence(double timeout_seconds, struct err *err);
int launch_get(const char *key, int rank, void *value, size_t *n_bytes, double timeout_seconds,
               struct err *err);

/* The world ranks of this node's ranks, ascending, this one among them: local_size of them. */
int launch_local_peers(int *ranks, int local_size, struct err *err);

#endif
