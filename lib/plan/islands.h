/*
 * islands.h - devices of ranks, where a cluster has several kinds
 *
 * Ranks of one pipeline stage wait for each other, so the slowest of its devices sets the
 * pace, and the one with the least memory what fits.
 */
#ifndef PLAN_ISLANDS_H
#define PLAN_ISLANDS_H

#include "base/dtype.h"
#include "base/str.h"
#include "config/cluster.h"
#include "layout/mesh.h"

/* Whether all devices are of one kind. */
bool islands_are_alike(const struct cluster *cluster);

/* How many of the world ranks first .. first + n - 1 are on the island. */
int64_t islands_count(const struct cluster *cluster, int island, int first, int n);

/* Of the islands that these ranks are on, the one whose devices multiply this dtype most slowly. */
int islands_slowest(const struct cluster *cluster, struct mesh_ranks ranks, enum dtype dtype);

/* Of their devices, the one with the least memory to use. */
const struct device_spec *islands_smallest(const struct cluster *cluster, struct mesh_ranks ranks);

/* Sum of the FLOP/s of ranks 0 .. n - 1, by their data sheets. */
double islands_peak(const struct cluster *cluster, int n, enum dtype dtype);

/* Append "h100-sxm", or "32 h100-sxm and 16 a100-sxm-80" of ranks 0 .. n - 1. */
void islands_name(const struct cluster *cluster, int n, struct str *out);

/* A cluster of so many devices of this island alone, with the same links, in the arena. */
struct cluster islands_view(const struct cluster *cluster, int island, int n_devices,
                            struct arena *arena);

#endif
