/*
 * slurm.h - from a bare command in a Slurm allocation to a step of ranks
 */
#ifndef LAUNCH_SLURM_H
#define LAUNCH_SLURM_H

#include "launch/supervise.h"

/*
 * How many ranks this allocation is for when the job leaves it open: its tasks (SLURM_NTASKS) if
 * they were asked for, else one a GPU, else one a node. 0 outside an allocation.
 */
int slurm_ranks(void);

/*
 * Run options->n_ranks ranks as `srun -K --mpi=pmix ... lmtrain ...` over the allocation's nodes,
 * bound to cores; a terminal's and Slurm's signals reach them as Slurm brings them. Restarts as
 * supervise() does. Returns the job's exit status, or -1 with ERR_CONFIG (no pmix plugin; more
 * ranks than the allocation has room for, naming both) or ERR_FAILED (no srun).
 */
int slurm_run(const struct supervise_options *options, struct err *err);

#endif
