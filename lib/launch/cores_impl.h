/*
 * cores_impl.h - dealing cores of any machine, real or made up
 */
#ifndef LAUNCH_CORES_IMPL_H
#define LAUNCH_CORES_IMPL_H

#include <hwloc.h>

#include "launch/cores.h"

/*
 * The share of rank `index` of n_ranks that all may use `allowed`. gpu_nodes: of each of these
 * ranks the NUMA node of its GPU, -1 unknown; NULL: they have none.
 */
void cores_deal(hwloc_topology_t topology, hwloc_const_cpuset_t allowed, int index, int n_ranks,
                const int *gpu_nodes, struct rank_cores *cores);

/* Whether all of these cores are on another socket than the node; 0 where that is not known. */
int cores_are_far(hwloc_topology_t topology, const struct rank_cores *cores, int gpu_node);

/*
 * Among masks of n ranks: how many have own's, and how many of those come before it. With each
 * mask goes a number, which those that have own's get in `numbers`, in their order.
 */
void cores_count_alike(char *const *masks, const int *of_masks, int n, int own, int *index,
                       int *n_alike, int *numbers);

#endif
