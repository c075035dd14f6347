/*
 * mesh.c - world rank to coordinates and back
 */
#include "layout/mesh.h"

#include "base/err.h"

static const enum mesh_axis fastest_first[] = { AXIS_TP, AXIS_CP,      AXIS_EP,
                                                AXIS_DP, AXIS_REPLICA, AXIS_PP };
_Static_assert(sizeof fastest_first / sizeof *fastest_first == N_AXES,
               "each axis has its place in the order of world ranks");

struct mesh mesh_data_parallel(int dp_size)
{
    struct mesh mesh;

    for (int axis = 0; axis < N_AXES; axis++)
        mesh.size[axis] = 1;
    mesh.size[AXIS_DP] = dp_size;
    return mesh;
}

struct mesh mesh_pipeline(int pp_size)
{
    struct mesh mesh = mesh_data_parallel(1);

    mesh.size[AXIS_PP] = pp_size;
    return mesh;
}

enum mesh_axis mesh_nth_axis(int i)
{
    CHECK(i >= 0 && i < N_AXES);
    return fastest_first[i];
}

int mesh_world_size(const struct mesh *mesh)
{
    int product = 1;

    for (int axis = 0; axis < N_AXES; axis++)
        product *= mesh->size[axis];
    return product;
}

int mesh_data_size(const struct mesh *mesh)
{
    return mesh->size[AXIS_DP] * mesh->size[AXIS_REPLICA];
}

int mesh_data_rank(const struct mesh *mesh, int world_rank)
{
    return mesh_coordinate(mesh, world_rank, AXIS_REPLICA) * mesh->size[AXIS_DP] +
           mesh_coordinate(mesh, world_rank, AXIS_DP);
}

/* Ranks between neighbours on the axis. */
static int mesh_stride(const struct mesh *mesh, enum mesh_axis axis)
{
    int stride = 1;

    for (int i = 0; fastest_first[i] != axis; i++)
        stride *= mesh->size[fastest_first[i]];
    return stride;
}

int mesh_coordinate(const struct mesh *mesh, int world_rank, enum mesh_axis axis)
{
    CHECK(world_rank >= 0);
    CHECK(world_rank < mesh_world_size(mesh));
    return world_rank / mesh_stride(mesh, axis) % mesh->size[axis];
}

struct mesh_place mesh_place(const struct mesh *mesh, int world_rank)
{
    struct mesh_place place;

    for (int axis = 0; axis < N_AXES; axis++)
        place.of[axis] = mesh_coordinate(mesh, world_rank, (enum mesh_axis)axis);
    return place;
}

void mesh_group(const struct mesh *mesh, int world_rank, enum mesh_axis axis, int *ranks)
{
    int stride = mesh_stride(mesh, axis);
    int first = world_rank - mesh_coordinate(mesh, world_rank, axis) * stride;

    for (int i = 0; i < mesh->size[axis]; i++)
        ranks[i] = first + i * stride;
}
