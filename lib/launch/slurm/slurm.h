/*
 * slurm.h - from a bare command in a Slurm allocation to a step of ranks
 */
#ifndef LAUNCH_SLURM_SLURM_H
#define LAUNCH_SLURM_SLURM_H

#include "launch/supervise.h"

/*
 * How many ranks this allocation is for when the job leaves it open: its tasks (SLURM_NTASKS) if
 * they were asked for, else one a GPU, else one a node; of all nodes but n_spares. 0 outside an
 * allocation.
 */
int slurm_ranks(int n_spares);

/*
 * Names, with commas between, the nodes of the allocation that a command may use, such as a trial
 * of a sweep; not set: all. Of an allocation's tasks and GPUs it then has its nodes' share.
 */
#define SLURM_NODES_VARIABLE "LMTRAIN_NODES"

/*
 * The names of the allocation's nodes, in Slurm's order, in the arena. Returns 0, or -1 and
 * ERR_FAILED: no allocation, or Slurm does not name them.
 */
int slurm_node_names(struct host_list *list, struct arena *arena, struct err *err);

/*
 * Whether srun may get these further arguments. Returns 0, or -1 and ERR_CONFIG with `where`: one
 * that is no option with its value, or contradicts what lmtrain itself tells srun.
 */
int slurm_check_args(const char *const *args, int n, const char *where, struct err *err);

/*
 * Run options->n_ranks ranks as `srun --mpi=pmix ... lmtrain ...` over the allocation's nodes, each
 * with its share of their cores. A second after the first death the others are ended, not by srun
 * -K but from here, which is faster. Nodes that are excluded (excluded.h), gone, or spares are left
 * out by srun's --exclude; before a restart the allocation is read again, so that nodes that it has
 * got since are used. Signals that ask to stop, and restarts, are as with
 * supervise(); asked to stop before a rank could take it, the job returns ERR_REQUEUE. Returns the
 * job's exit status, or -1 with ERR_CONFIG (no pmix plugin; more ranks than the allocation has room
 * for, naming both) or ERR_FAILED (no srun).
 */
int slurm_run(const struct supervise_options *options, struct err *err);

#endif
