/*
 * cores_impl.h - dealing cores of any machine, real or made up
 */
#ifndef LAUNCH_CORES_IMPL_H
#define LAUNCH_CORES_IMPL_H

#include <hwloc.h>

#include "launch/cores.h"

/* The share of rank `index` of n_ranks that all may use `allowed`. */
void cores_deal(hwloc_topology_t topology, hwloc_const_cpuset_t allowed, int index, int n_ranks,
                struct rank_cores *cores);

/* Among masks of n ranks: how many have own's, and how many of those come before it. */
void cores_count_alike(char *const *masks, int n, int own, int *index, int *n_alike);

#endif
