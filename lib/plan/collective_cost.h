/*
 * collective_cost.h - how long a collective or a transfer takes, by where the ranks of its group
 * lie
 *
 * t = latency + bytes / bandwidth of each level that the group spans: the fast link of a domain
 * (NVLink), the host's link between the domains of one node, NICs between nodes, the spine between
 * leaf switches, and what joins islands. Rings, trees and two-level sums are priced, and the least
 * of them is taken, as NCCL's tuning does (src/graph/tuning.cc). Pure arithmetic, nanoseconds and
 * bytes; O(islands) a call, whatever the number of ranks, but O(ranks) for a group of a composite
 * axis that is several progressions (collective_group.c).
 *
 * Promises (test/plan/collective_cost_test.c): more bytes, more latency, a slower link or more
 * groups that share it never make anything faster.
 */
#ifndef PLAN_COLLECTIVE_COST_H
#define PLAN_COLLECTIVE_COST_H

#include "config/cluster.h"
#include "layout/mesh.h"

/* A group of ranks as links see it. */
struct group_shape {
    int n;          /* ranks */
    int per_node;   /* ranks in a node, of the node with the fewest */
    int per_domain; /* ranks in a fast domain, of that with the fewest */
    int n_nodes;
    int n_domains; /* fast domains that it touches; 1: the fast link alone carries it */
    int n_leaves;  /* leaf switches */
    int n_islands;
    int n_sharing; /* ranks of a node that use its NICs at once, of all groups of the axis */
    int members;   /* neighbouring ranks that sum and gather among each other first, by node;
                      collective_group has 0: none do */
    int island;    /* of the first rank */
    int last_island;
};

/*
 * The group of world_rank over the axis, ranks placed on the cluster in order. Where sizes do not
 * divide nodes (groups of 3 on nodes of 8), the groups of a stage lie differently, and all of them
 * wait for the slowest: then it is the one that spans most among those of the same pipeline rank
 * that begin in the same island. The cluster has at least the mesh's ranks.
 */
struct group_shape collective_group(const struct cluster *cluster, const struct mesh *mesh,
                                    int world_rank, enum mesh_axis axis);

/*
 * Nanoseconds of one collective of the catalogue, as a library executes it that adds on the way.
 * n_bytes: of the whole (what is gathered, or what each rank sums). 0 for a group of one, or
 * without bytes.
 *
 * all_gather, reduce_scatter: a ring; NCCL has no tree for them, so their latency grows with the
 * ranks. all_reduce: the least of ring, tree, and reduce_scatter in a domain, all_reduce across,
 * all_gather in it; in one domain a ring, or what the switches add (NVLS). all_reduce_scalar
 * gathers all ranks' numbers, and gather_heads is a gather, too.
 */
int64_t collective_ns(const struct cluster *cluster, const struct group_shape *group,
                      enum op_kind kind, int64_t n_bytes);

/* Each rank sends another part of n_bytes to each: what sums of a fixed order begin with. */
int64_t all_to_all_ns(const struct cluster *cluster, const struct group_shape *group,
                      int64_t n_bytes);

/*
 * The same among `members` ranks of a group, and then of sums across such, of which each has one
 * for each of its ranks; and a gather across, then among the members (run/collective_nodes.c). They
 * are most often the group's ranks of a node, else a part of these, or those of several nodes.
 * wide_bytes: of the sums, n_bytes where they are no wider.
 */
int64_t sum_by_node_ns(const struct cluster *cluster, const struct group_shape *group,
                       int64_t n_bytes, int64_t wide_bytes);
int64_t gather_by_node_ns(const struct cluster *cluster, const struct group_shape *group,
                          int64_t n_bytes);

/* Each rank sends n_bytes to one neighbour while it receives as many from the other: the slowest
 * hop of the ring. */
int64_t rotate_ns(const struct cluster *cluster, const struct group_shape *group, int64_t n_bytes);

/* How far apart two ranks are: by the slowest level that lies between them. */
enum link_level {
    LEVEL_SAME,    /* one rank */
    LEVEL_FAST,    /* in one fast domain */
    LEVEL_HOST,    /* in one node, in two domains */
    LEVEL_RAIL,    /* under one leaf switch */
    LEVEL_SPINE,   /* in one island */
    LEVEL_ISLANDS, /* in two */
    N_LINK_LEVELS
};
enum link_level transfer_level(const struct cluster *cluster, int from, int to);

/* A message from one world rank to another. n_sharing: ranks of the node that send at once. */
int64_t transfer_ns(const struct cluster *cluster, int from, int to, int64_t n_bytes,
                    int n_sharing);

/* Whether the group uses NICs. */
bool collective_uses_nic(const struct group_shape *group);

/* While a collective or a message is under way, ops of its ranks take (1 + this) times as long. */
double collective_slowdown(const struct cluster *cluster, bool uses_nic);

#endif
