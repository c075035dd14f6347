/*
 * cores.h - which cores a rank computes on, and whose memory it takes
 *
 * The ranks of a node share what the system lets them use. Those that the launcher has bound to the
 * same cores are dealt whole cores (hyperthreads together), NUMA node by NUMA node, so that a
 * rank's threads are in one NUMA node if no rank gets fewer cores by that. One that is bound to
 * cores of its own uses all of them. Where there are more ranks than cores they get hyperthreads,
 * and where there are more ranks than those, they share.
 *
 * Ranks with GPUs get cores of the NUMA node that their GPU is nearest to, if that is known of all
 * that share a mask and gives each a core: transfers to and from a GPU then cross no socket. Cores
 * of nodes without a GPU are idle.
 */
#ifndef LAUNCH_CORES_H
#define LAUNCH_CORES_H

#include <stdbool.h>

#include "base/err.h"
#include "launch/launch.h"

enum { RANK_CORES_MAX = 1024 };

struct rank_cores {
    int n_cores;               /* at least 1 */
    int cores[RANK_CORES_MAX]; /* one hyperthread of each: for compute threads */
    int n_all;
    int all[RANK_CORES_MAX]; /* all hyperthreads of them: for threads that wait */
    int numa_node;           /* the system's number of the node that they lie in, -1: several */
    bool is_shared;          /* other ranks are on the same ones */
};

/*
 * This rank's cores, for ranks whose GPUs are at the NUMA nodes `gpu_nodes` (by local rank, the
 * system's numbers, -1 where a rank has none or it is not known; NULL: no rank has one). Another
 * launcher may have bound a rank away from its GPU: that is kept, with a warning. And from now on
 * this thread, and those that it starts, take their memory from the rank's NUMA node if it has one
 * and there is room (where the system permits it). Under another launcher than our own supervisor
 * the ranks tell each other their masks: it is a fence of all of them. Returns 0, or -1 and
 * ERR_FAILED or ERR_PEER.
 */
int launch_cores(const struct launch_rank *rank, const int *gpu_nodes, struct rank_cores *cores,
                 struct err *err);

/* What one of n_ranks on a machine like this would get, from what this process may use. */
int launch_cores_of(int index, int n_ranks, struct rank_cores *cores, struct err *err);

/* Let the calling thread run on all hyperthreads of the rank's cores. */
void launch_cores_spread(const struct rank_cores *cores);

/* What this process may use, for people: "8 cores (16 hyperthreads) in 2 NUMA nodes". */
const char *launch_cores_describe(char *buffer, size_t size);

#endif
