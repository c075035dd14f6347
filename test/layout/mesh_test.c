/*
 * mesh_test.c - every mesh of up to 64 ranks, in every order: coordinates and groups agree
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "layout/mesh.h"

#define WORLD_MAX 64

/* The rank at these coordinates, by the orders that mesh.h states: tp fastest, then ulysses, cp,
 * ep, dp, replica, pp, which may be in reverse; or pp before dp. */
static int rank_at(const struct mesh *mesh, const int *coordinates)
{
    static const enum mesh_axis slowest_first[][N_AXES] = {
        { AXIS_PP, AXIS_REPLICA, AXIS_DP, AXIS_EP, AXIS_CP, AXIS_ULYSSES, AXIS_TP },
        { AXIS_REPLICA, AXIS_DP, AXIS_PP, AXIS_EP, AXIS_CP, AXIS_ULYSSES, AXIS_TP },
    };
    const enum mesh_axis *axes = slowest_first[mesh->order == ORDER_PIPELINES];
    int rank = 0;

    for (int i = 0; i < N_AXES; i++) {
        int at = coordinates[axes[i]];

        if (axes[i] == AXIS_PP && mesh->order == ORDER_STAGES_REVERSED)
            at = mesh->size[AXIS_PP] - 1 - at;
        rank = rank * mesh->size[axes[i]] + at;
    }
    return rank;
}

/* The ranks of a stage, and of one data-parallel rank in it, are those with their coordinates. */
static void check_stage(const struct mesh *mesh, int rank)
{
    int pp_rank = mesh_coordinate(mesh, rank, AXIS_PP), data_rank = mesh_data_rank(mesh, rank);
    struct mesh_ranks stage = mesh_stage_ranks(mesh, pp_rank);
    struct mesh_ranks own = mesh_replica_ranks(mesh, pp_rank, data_rank);
    int n = 0;

    for (int i = 0; i < stage.n_runs; i++)
        for (int j = 0; j < stage.n; j++, n++)
            assert_int_equal(mesh_coordinate(mesh, stage.first + i * stage.stride + j, AXIS_PP),
                             pp_rank);
    assert_int_equal(n * mesh->size[AXIS_PP], mesh_world_size(mesh));
    assert_int_equal(own.n_runs, 1);
    assert_int_equal(own.n * mesh->size[AXIS_PP] * mesh_data_size(mesh), mesh_world_size(mesh));
    assert_in_range(rank, own.first, own.first + own.n - 1);
    assert_int_equal(mesh_data_rank(mesh, own.first), data_rank);
    assert_int_equal(mesh_data_rank(mesh, own.first + own.n - 1), data_rank);
}

/* The ranks of a composite are those of its parts, the first fastest; no other rank is in the
 * line. Without ep it has one. */
static void check_composite(const struct mesh *mesh, int rank, enum mesh_axis axis,
                            enum mesh_axis inner, enum mesh_axis outer)
{
    struct mesh_place place = mesh_place(mesh, rank);
    int n = mesh->size[inner], size = mesh_size(mesh, axis), ranks[WORLD_MAX];
    struct mesh_line line = mesh_line(mesh, rank, axis);
    int at = size > 1 ? place.of[outer] * n + place.of[inner] : 0;

    assert_int_equal(size, mesh->size[AXIS_EP] > 1 ? n * mesh->size[outer] : 1);
    assert_int_equal(mesh_coordinate(mesh, rank, axis), at);
    assert_int_equal(line.n * line.n_runs, size);
    mesh_group(mesh, rank, axis, ranks);
    assert_int_equal(ranks[at], rank);
    for (int i = 0; i < size; i++) {
        struct mesh_place there = place;

        if (size > 1) {
            there.of[inner] = i % n;
            there.of[outer] = i / n;
        }
        assert_int_equal(ranks[i], mesh_rank_at(mesh, &there));
        assert_int_equal(ranks[i], line.first + i / line.n * line.apart + i % line.n * line.stride);
    }
}

/* The line of an axis has its ranks, from the lowest on. */
static void check_line(const struct mesh *mesh, int rank, enum mesh_axis axis)
{
    struct mesh_line line = mesh_line(mesh, rank, axis);
    int ranks[WORLD_MAX], is_backward = axis == AXIS_PP && mesh->order == ORDER_STAGES_REVERSED;

    mesh_group(mesh, rank, axis, ranks);
    assert_int_equal(line.n_runs, 1);
    assert_int_equal(line.n, mesh->size[axis]);
    for (int i = 0; i < line.n; i++)
        assert_int_equal(ranks[is_backward ? line.n - 1 - i : i], line.first + i * line.stride);
}

/* Along each axis the group holds the ranks with that one coordinate changed, in order. */
static void check_rank(const struct mesh *mesh, int rank)
{
    int at[N_AXES], ranks[WORLD_MAX];

    for (int axis = 0; axis < N_AXES; axis++) {
        at[axis] = mesh_coordinate(mesh, rank, (enum mesh_axis)axis);
        assert_in_range(at[axis], 0, mesh->size[axis] - 1);
    }
    assert_int_equal(rank_at(mesh, at), rank);
    struct mesh_place place = mesh_place(mesh, rank);
    assert_memory_equal(place.of, at, sizeof at);
    assert_int_equal(mesh_rank_at(mesh, &place), rank);
    check_stage(mesh, rank);
    check_composite(mesh, rank, AXIS_DATA, AXIS_EP, AXIS_DP);
    check_composite(mesh, rank, AXIS_EXPERTS, AXIS_TP, AXIS_EP);
    for (int axis = 0; axis < N_AXES; axis++)
        check_line(mesh, rank, (enum mesh_axis)axis);
    assert_int_equal(mesh_data_rank(mesh, rank),
                     (at[AXIS_REPLICA] * mesh->size[AXIS_DP] + at[AXIS_DP]) * mesh->size[AXIS_EP] +
                         at[AXIS_EP]);
    for (int axis = 0; axis < N_AXES; axis++) {
        int here = at[axis];

        mesh_group(mesh, rank, (enum mesh_axis)axis, ranks);
        assert_true(mesh->size[axis] == 1 ||
                    ranks[1] - ranks[0] == mesh_stride(mesh, (enum mesh_axis)axis));
        for (int i = 0; i < mesh->size[axis]; i++) {
            at[axis] = i;
            assert_int_equal(ranks[i], rank_at(mesh, at));
        }
        at[axis] = here;
    }
}

/* Two ranks on one axis, one on each other. */
static void every_axis_alone(void **state)
{
    (void)state;
    for (int axis = 0; axis < N_AXES; axis++) {
        struct mesh mesh = mesh_data_parallel(1);

        mesh.size[axis] = 2;
        assert_int_equal(mesh_world_size(&mesh), 2);
        for (int rank = 0; rank < 2; rank++)
            check_rank(&mesh, rank);
        assert_int_equal(mesh_coordinate(&mesh, 1, (enum mesh_axis)axis), 1);
    }
}

static void every_mesh(void **state)
{
    struct mesh mesh;
    int n_meshes = 0;

    (void)state;
    for (int dp = 1; dp <= WORLD_MAX; dp++)
        for (int tp = 1; dp * tp <= WORLD_MAX; tp++)
            for (int pp = 1; dp * tp * pp <= WORLD_MAX; pp++)
                for (int cp = 1; dp * tp * pp * cp <= WORLD_MAX; cp++) {
                    int ulysses = cp % 2 ? 1 : 2;
                    int replica = dp % 2 ? 1 : 2; /* dp / 2 in each of two groups */
                    int ep = dp % 4 ? 1 : 2;      /* of neighbours in each */

                    mesh = mesh_data_parallel(dp / replica / ep);
                    mesh.size[AXIS_EP] = ep;
                    mesh.size[AXIS_REPLICA] = replica;
                    mesh.size[AXIS_TP] = tp;
                    mesh.size[AXIS_PP] = pp;
                    mesh.size[AXIS_CP] = cp / ulysses;
                    mesh.size[AXIS_ULYSSES] = ulysses;
                    assert_int_equal(mesh_world_size(&mesh), dp * tp * pp * cp);
                    assert_int_equal(mesh_data_size(&mesh), dp);
                    for (int order = 0; order < N_RANK_ORDERS; order++) {
                        mesh.order = (enum rank_order)order;
                        for (int rank = 0; rank < mesh_world_size(&mesh); rank++)
                            check_rank(&mesh, rank);
                    }
                    n_meshes++;
                }
    assert_true(n_meshes > 1000);
}

/* Neighbours in the world talk over tp. */
static void tp_is_fastest(void **state)
{
    struct mesh mesh = mesh_data_parallel(3);
    int ranks[3];

    (void)state;
    mesh.size[AXIS_TP] = mesh.size[AXIS_PP] = 2;
    mesh_group(&mesh, 9, AXIS_TP, ranks);
    assert_int_equal(ranks[0], 8);
    assert_int_equal(ranks[1], 9);
    mesh_group(&mesh, 9, AXIS_DP, ranks);
    assert_int_equal(ranks[0], 7);
    assert_int_equal(ranks[1], 9);
    assert_int_equal(ranks[2], 11);
    mesh_group(&mesh, 9, AXIS_PP, ranks);
    assert_int_equal(ranks[0], 3);
    assert_int_equal(ranks[1], 9);
}

/* Four ranks of two stages: the last stage first, or pipelines one after the other. */
static void other_orders(void **state)
{
    struct mesh mesh = mesh_data_parallel(2);
    int ranks[2];

    (void)state;
    mesh.size[AXIS_PP] = 2;
    mesh.order = ORDER_STAGES_REVERSED;
    mesh_group(&mesh, 1, AXIS_PP, ranks);
    assert_int_equal(ranks[0], 3);
    assert_int_equal(ranks[1], 1);
    mesh.order = ORDER_PIPELINES;
    mesh_group(&mesh, 1, AXIS_PP, ranks);
    assert_int_equal(ranks[0], 0);
    assert_int_equal(ranks[1], 1);
    mesh_group(&mesh, 1, AXIS_DP, ranks);
    assert_int_equal(ranks[0], 1);
    assert_int_equal(ranks[1], 3);
}

static void data_parallel(void **state)
{
    struct mesh mesh = mesh_data_parallel(5);

    (void)state;
    assert_int_equal(mesh_world_size(&mesh), 5);
    for (int rank = 0; rank < 5; rank++)
        assert_int_equal(mesh_coordinate(&mesh, rank, AXIS_DP), rank);
}

/* Neighbours of each group on each node, by looking at all; 0: they are not as many everywhere. */
static int members_on_nodes(const struct mesh *mesh, enum mesh_axis axis, int node_ranks)
{
    int size = mesh_size(mesh, axis), n = 0, ranks[WORLD_MAX];

    for (int rank = 0; rank < mesh_world_size(mesh); rank++) {
        mesh_group(mesh, rank, axis, ranks);
        for (int i = 0, begin = 0; i < size; i++) {
            if (i + 1 < size && ranks[i + 1] / node_ranks == ranks[i] / node_ranks)
                continue;
            n = n ? n : i + 1 - begin;
            if (i + 1 - begin != n)
                return 0;
            begin = i + 1;
        }
    }
    return n;
}

static void members_of_nodes(void **state)
{
    static const enum mesh_axis axes[] = { AXIS_TP, AXIS_DP, AXIS_PP, AXIS_DATA };
    static const int node_ranks[] = { 1, 2, 3, 4, 6, 8 };
    struct mesh mesh = mesh_data_parallel(1);

    (void)state;
    for (int shape = 0; shape < 4 * 4 * 2 * 3 * N_RANK_ORDERS; shape++) {
        mesh.size[AXIS_TP] = 1 + shape % 4;
        mesh.size[AXIS_DP] = 1 + shape / 4 % 4;
        mesh.size[AXIS_EP] = 1 + shape / 16 % 2;
        mesh.size[AXIS_PP] = 1 + shape / 32 % 3;
        mesh.order = (enum rank_order)(shape / 96);
        for (int i = 0; i < 6 && mesh_world_size(&mesh) <= WORLD_MAX; i++)
            for (int a = 0; a < 4; a++) {
                int n = mesh_node_members(&mesh, axes[a], node_ranks[i]);
                int wanted = mesh_world_size(&mesh) % node_ranks[i]
                                 ? 0
                                 : members_on_nodes(&mesh, axes[a], node_ranks[i]);

                /* Alone on a node, or irregular: alike to callers, and so may composites be. */
                if (n > 1 || axes[a] != AXIS_DATA)
                    assert_int_equal(n > 1 ? n : 1, wanted > 1 ? wanted : 1);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_axis_alone), cmocka_unit_test(every_mesh),
        cmocka_unit_test(tp_is_fastest),    cmocka_unit_test(other_orders),
        cmocka_unit_test(data_parallel),    cmocka_unit_test(members_of_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
