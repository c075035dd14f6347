/*
 * mesh.c - world rank to coordinates and back
 */
#include "layout/mesh.h"

#include "base/err.h"
#include "base/num.h"

static const enum mesh_axis stages_outside[] = { AXIS_TP, AXIS_ULYSSES, AXIS_CP, AXIS_EP,
                                                 AXIS_DP, AXIS_REPLICA, AXIS_PP };
static const enum mesh_axis pipelines_inside[] = { AXIS_TP, AXIS_ULYSSES, AXIS_CP,     AXIS_EP,
                                                   AXIS_PP, AXIS_DP,      AXIS_REPLICA };
_Static_assert(sizeof stages_outside / sizeof *stages_outside == N_AXES &&
                   sizeof pipelines_inside / sizeof *pipelines_inside == N_AXES,
               "each axis has its place in the order of world ranks");

/* The parts of composites. */
enum { PARTS_MAX = 2 };
static const struct composite {
    int n;
    enum mesh_axis parts[PARTS_MAX]; /* the first varies fastest */
} composites[] = {
    [AXIS_DATA - N_AXES] = { 2, { AXIS_EP, AXIS_DP } },
    [AXIS_EXPERTS - N_AXES] = { 2, { AXIS_TP, AXIS_EP } },
};
_Static_assert(sizeof composites / sizeof *composites == N_GROUP_AXES - N_AXES,
               "each composite has parts");

/* An axis that is no composite is its own part. */
static struct composite parts_of(enum mesh_axis axis)
{
    return axis < N_AXES ? (struct composite){ 1, { axis } } : composites[axis - N_AXES];
}

struct mesh mesh_data_parallel(int dp_size)
{
    struct mesh mesh = { .order = ORDER_STAGES };

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

enum mesh_axis mesh_nth_axis(const struct mesh *mesh, int i)
{
    CHECK(i >= 0 && i < N_AXES);
    return mesh->order == ORDER_PIPELINES ? pipelines_inside[i] : stages_outside[i];
}

int mesh_world_size(const struct mesh *mesh)
{
    int product = 1;

    for (int axis = 0; axis < N_AXES; axis++)
        product *= mesh->size[axis];
    return product;
}

int mesh_size(const struct mesh *mesh, enum mesh_axis axis)
{
    struct composite c = parts_of(axis);
    int product = 1;

    if (axis >= N_AXES && mesh->size[AXIS_EP] == 1)
        return 1;
    for (int i = 0; i < c.n; i++)
        product *= mesh->size[c.parts[i]];
    return product;
}

bool axis_covers(enum mesh_axis outer, enum mesh_axis inner)
{
    struct composite c = parts_of(outer);

    for (int i = 0; i < c.n; i++)
        if (c.parts[i] == inner)
            return true;
    return outer == inner;
}

int mesh_data_size(const struct mesh *mesh)
{
    return mesh->size[AXIS_EP] * mesh->size[AXIS_DP] * mesh->size[AXIS_REPLICA];
}

int mesh_data_rank(const struct mesh *mesh, int world_rank)
{
    int replica = mesh_coordinate(mesh, world_rank, AXIS_REPLICA);
    int group = replica * mesh->size[AXIS_DP] + mesh_coordinate(mesh, world_rank, AXIS_DP);

    return group * mesh->size[AXIS_EP] + mesh_coordinate(mesh, world_rank, AXIS_EP);
}

static bool is_reversed(const struct mesh *mesh, enum mesh_axis axis)
{
    return axis == AXIS_PP && mesh->order == ORDER_STAGES_REVERSED;
}

/* Ranks between neighbours on the axis, whichever is first. */
static int distance(const struct mesh *mesh, enum mesh_axis axis)
{
    int product = 1;

    for (int i = 0; mesh_nth_axis(mesh, i) != axis; i++)
        product *= mesh->size[mesh_nth_axis(mesh, i)];
    return product;
}

int mesh_stride(const struct mesh *mesh, enum mesh_axis axis)
{
    return is_reversed(mesh, axis) ? -distance(mesh, axis) : distance(mesh, axis);
}

int mesh_coordinate(const struct mesh *mesh, int world_rank, enum mesh_axis axis)
{
    CHECK(world_rank >= 0);
    CHECK(world_rank < mesh_world_size(mesh));
    if (axis >= N_AXES) {
        struct mesh_place place = mesh_place(mesh, world_rank);

        return mesh_place_on(mesh, &place, axis);
    }
    int at = world_rank / distance(mesh, axis) % mesh->size[axis];
    return is_reversed(mesh, axis) ? mesh->size[axis] - 1 - at : at;
}

struct mesh_place mesh_place(const struct mesh *mesh, int world_rank)
{
    struct mesh_place place;

    for (int axis = 0; axis < N_AXES; axis++)
        place.of[axis] = mesh_coordinate(mesh, world_rank, (enum mesh_axis)axis);
    return place;
}

int mesh_place_on(const struct mesh *mesh, const struct mesh_place *place, enum mesh_axis axis)
{
    struct composite c = parts_of(axis);
    int at = 0;

    if (mesh_size(mesh, axis) == 1)
        return 0;
    for (int i = c.n - 1; i >= 0; i--)
        at = at * mesh->size[c.parts[i]] + place->of[c.parts[i]];
    return at;
}

struct mesh_place mesh_place_at(const struct mesh *mesh, const struct mesh_place *place,
                                enum mesh_axis axis, int at)
{
    struct composite c = parts_of(axis);
    struct mesh_place there = *place;

    CHECK(at >= 0 && at < mesh_size(mesh, axis));
    for (int i = 0; i < c.n && mesh_size(mesh, axis) > 1; i++) {
        there.of[c.parts[i]] = at % mesh->size[c.parts[i]];
        at /= mesh->size[c.parts[i]];
    }
    return there;
}

int mesh_rank_at(const struct mesh *mesh, const struct mesh_place *place)
{
    int rank = 0;

    for (int i = 0; i < N_AXES; i++) {
        enum mesh_axis axis = (enum mesh_axis)i;
        int at = place->of[axis];

        rank += distance(mesh, axis) * (is_reversed(mesh, axis) ? mesh->size[axis] - 1 - at : at);
    }
    return rank;
}

struct mesh_ranks mesh_replica_ranks(const struct mesh *mesh, int pp_rank, int data_rank)
{
    struct mesh_place place = { 0 };

    int group = data_rank / mesh->size[AXIS_EP];

    place.of[AXIS_PP] = pp_rank;
    place.of[AXIS_EP] = data_rank % mesh->size[AXIS_EP];
    place.of[AXIS_DP] = group % mesh->size[AXIS_DP];
    place.of[AXIS_REPLICA] = group / mesh->size[AXIS_DP];
    int n = mesh->size[AXIS_TP] * mesh->size[AXIS_ULYSSES] * mesh->size[AXIS_CP];

    return (struct mesh_ranks){ mesh_rank_at(mesh, &place), n, 1, n };
}

/* Data-parallel ranks on ep are neighbours; on dp and replica they lie as far apart, the second
 * behind the first. */
struct mesh_ranks mesh_stage_ranks(const struct mesh *mesh, int pp_rank)
{
    struct mesh_ranks ranks = mesh_replica_ranks(mesh, pp_rank, 0);

    ranks.n *= mesh->size[AXIS_EP];
    ranks.n_runs = mesh->size[AXIS_DP] * mesh->size[AXIS_REPLICA];
    ranks.stride = distance(mesh, AXIS_DP);
    if (ranks.stride == ranks.n)
        return (struct mesh_ranks){ ranks.first, ranks.n * ranks.n_runs, 1, 0 };
    return ranks;
}

void mesh_group(const struct mesh *mesh, int world_rank, enum mesh_axis axis, int *ranks)
{
    struct mesh_place own = mesh_place(mesh, world_rank);

    for (int i = 0; i < mesh_size(mesh, axis); i++) {
        struct mesh_place place = mesh_place_at(mesh, &own, axis, i);

        ranks[i] = mesh_rank_at(mesh, &place);
    }
}

struct mesh_line mesh_line(const struct mesh *mesh, int world_rank, enum mesh_axis axis)
{
    struct composite c = parts_of(axis);
    int size = mesh_size(mesh, axis), n = min_int(size, mesh->size[c.parts[0]]), n_runs = size / n;
    struct mesh_place own = mesh_place(mesh, world_rank);
    bool is_backward = is_reversed(mesh, axis);
    struct mesh_place lowest = mesh_place_at(mesh, &own, axis, is_backward ? n - 1 : 0);
    struct mesh_line line = { .first = mesh_rank_at(mesh, &lowest),
                              .n = n,
                              .stride = distance(mesh, c.parts[0]),
                              .n_runs = n_runs,
                              .apart = n_runs > 1 ? distance(mesh, c.parts[c.n - 1]) : 0 };

    /* Runs that touch are one. */
    if (line.apart == n * line.stride)
        return (struct mesh_line){ line.first, n * n_runs, line.stride, 1, 0 };
    return line;
}

/* Groups begin at all places within a stride, and their spans touch. */
int mesh_node_members(const struct mesh *mesh, enum mesh_axis axis, int node_ranks)
{
    struct mesh_line line = mesh_line(mesh, 0, axis);

    if (node_ranks < 1 || line.n_runs > 1 || mesh_world_size(mesh) % node_ranks)
        return 0;
    if (line.n == 1 || line.stride % node_ranks == 0)
        return 1;
    if (node_ranks % line.stride)
        return 0;
    int n = node_ranks / line.stride;
    if (n % line.n == 0)
        return line.n;
    return line.n % n == 0 ? n : 0;
}
