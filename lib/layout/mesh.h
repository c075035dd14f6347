/*
 * mesh.h - the ranks of a job as a box with one axis per kind of parallelism
 *
 * tp varies fastest with the world rank, then ulysses, cp, ep, dp, replica, pp, so that the ranks
 * that talk most are neighbours. Data-parallel ranks are on ep, dp and replica. Where devices
 * differ, two other orders put stages elsewhere: with the stages in reverse, and with whole
 * pipelines as neighbours (tp, ulysses, cp, ep, pp, dp, replica). The order is no numerics: sums
 * are in the order of coordinates.
 *
 * A composite axis is a list of others, the first fastest, whose ranks are one group:
 *
 *   data     ep, dp: what is divided over all data-parallel ranks where ep divides experts
 *   experts  tp, ep: whole experts, where tp divides none of them (moe.expert_tp 1)
 *
 * It adds no ranks to the world and has no place of its own in it, and where ep has one rank it has
 * one, too. What collectives over it read and write has the spreads of its parts.
 */
#ifndef LAYOUT_MESH_H
#define LAYOUT_MESH_H

#include <stdbool.h>

#include "ops/ops.h"

enum rank_order { ORDER_STAGES, ORDER_STAGES_REVERSED, ORDER_PIPELINES, N_RANK_ORDERS };

struct mesh {
    int size[N_AXES];
    enum rank_order order;
};

/* All sizes 1 but dp; and all but pp. */
struct mesh mesh_data_parallel(int dp_size);
struct mesh mesh_pipeline(int pp_size);

/* Data-parallel ranks in all, on ep, dp and replica; and which of them world_rank is. */
int mesh_data_size(const struct mesh *mesh);
int mesh_data_rank(const struct mesh *mesh, int world_rank);

/* The axis whose coordinate varies fastest with the world rank (i 0), and those behind it. */
enum mesh_axis mesh_nth_axis(const struct mesh *mesh, int i);

/* Ranks on the axis, which may be a composite. */
int mesh_size(const struct mesh *mesh, enum mesh_axis axis);

/* Whether inner is outer or a part of it. */
bool axis_covers(enum mesh_axis outer, enum mesh_axis inner);

/* World ranks from a place on the axis, which is no composite, to the next; below 0 on pp in
 * reverse. */
int mesh_stride(const struct mesh *mesh, enum mesh_axis axis);

/* Product of all sizes. */
int mesh_world_size(const struct mesh *mesh);

/* Where world_rank lies on the axis, which may be a composite; and on each that is none. */
int mesh_coordinate(const struct mesh *mesh, int world_rank, enum mesh_axis axis);
struct mesh_place {
    int of[N_AXES];
};
struct mesh_place mesh_place(const struct mesh *mesh, int world_rank);

/* Where the place lies on the axis; and the place that lies at `at` there, else as this one. */
int mesh_place_on(const struct mesh *mesh, const struct mesh_place *place, enum mesh_axis axis);
struct mesh_place mesh_place_at(const struct mesh *mesh, const struct mesh_place *place,
                                enum mesh_axis axis, int at);

/* The world rank of a place. */
int mesh_rank_at(const struct mesh *mesh, const struct mesh_place *place);

/* The ranks of a pipeline rank: runs of n neighbouring world ranks. */
struct mesh_ranks {
    int first, n; /* of the first run */
    int n_runs, stride;
};
struct mesh_ranks mesh_stage_ranks(const struct mesh *mesh, int pp_rank);

/* Those of them that one data-parallel rank has: one run. */
struct mesh_ranks mesh_replica_ranks(const struct mesh *mesh, int pp_rank, int data_rank);

/*
 * How many ranks of each group over the axis each node has, where these are neighbours in the
 * group's order and as many on all nodes, whole groups on one node included; 0: they lie otherwise.
 * node_ranks: neighbouring world ranks of a node.
 */
int mesh_node_members(const struct mesh *mesh, enum mesh_axis axis, int node_ranks);

/*
 * The ranks that differ from world_rank on this axis alone, in order of their coordinate,
 * world_rank included: ranks[mesh_size].
 */
void mesh_group(const struct mesh *mesh, int world_rank, enum mesh_axis axis, int *ranks);

/* How they lie: n_runs runs, `apart` ranks from one to the next, each of n ranks, a stride from one
 * to the next. first: the lowest of them; all others are not below 0. */
struct mesh_line {
    int first, n, stride;
    int n_runs, apart;
};
struct mesh_line mesh_line(const struct mesh *mesh, int world_rank, enum mesh_axis axis);

#endif
