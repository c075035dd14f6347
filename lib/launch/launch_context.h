/*
 * launch_context.h - where this process finds itself, decided once (design.md §6)
 *
 * Pure on the environment (and, for the messages, on what srun --mpi=list says): no process is
 * started as a rank here. Who starts ranks is supervise.h's and slurm.h's business.
 */
#ifndef LAUNCH_LAUNCH_CONTEXT_H
#define LAUNCH_LAUNCH_CONTEXT_H

#include "base/err.h"

enum launch_context {
    CONTEXT_RANK,       /* a rank under PMIx: our supervisor, srun --mpi=pmix, mpirun */
    CONTEXT_ALLOCATION, /* bare in a Slurm allocation (salloc, a batch script): not yet in a step */
    CONTEXT_PLAIN,      /* a plain machine, or the only task of a step */
};

/*
 * Returns 0 and fills *context; or -1 and ERR_CONFIG in a Slurm step of several tasks without PMIx
 * (naming srun --mpi=pmix, or that this cluster has no such plugin), or under another launcher's
 * several processes that has no PMIx.
 */
int launch_context(enum launch_context *context, struct err *err);

/* Whether what `srun --mpi=list` said names pmix. */
int context_lists_pmix(const char *mpi_list);

#endif
