/*
 * island_units.h - devices of an island, of one of its fast domains, and below one of its leaf
 * switches
 * Pure.
 */
#ifndef PLAN_ISLAND_UNITS_H
#define PLAN_ISLAND_UNITS_H

#include "base/num.h"
#include "config/cluster.h"

static inline int64_t island_devices(const struct cluster_island *island)
{
    return (int64_t)island->n_nodes * island->per_node;
}

static inline int64_t island_domain(const struct cluster_island *island)
{
    return max_int(1, island->fast_domain);
}

static inline int64_t island_leaf(const struct cluster *cluster,
                                  const struct cluster_island *island)
{
    int nodes = cluster->links.nodes_per_leaf;

    return nodes > 0 ? (int64_t)nodes * island->per_node : island_devices(island);
}

#endif
