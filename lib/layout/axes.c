/*
 * axes.c - one row per axis
 */
#include "layout/axes.h"

#include "base/err.h"

/*
 * In the order of sums: neighbours in the batch first (ep, dp, replica), so that a sum does not
 * hang on how data-parallel ranks are divided among these. Where several axes have the same roles,
 * axes_tensor, axes_experts, axes_stages and the axis that shards are the first of them.
 */
static const struct axis_row {
    enum mesh_axis axis;
    enum axis_role role[2]; /* by enum parameter_kind */
    const char *places;
} rows[] = {
    { AXIS_EP, { SPLITS_TOKENS, SPLITS_MODEL }, "expert_groups" },
    { AXIS_DP, { SPLITS_TOKENS, SPLITS_TOKENS }, "replicas" },
    { AXIS_REPLICA, { SPLITS_TOKENS, SPLITS_TOKENS }, "groups" },
    { AXIS_CP, { SPLITS_TOKENS, SPLITS_TOKENS }, "parts" },
    { AXIS_ULYSSES, { SPLITS_TOKENS, SPLITS_TOKENS }, "row_parts" },
    { AXIS_TP, { SPLITS_MODEL, SPLITS_MODEL }, "shards" },
    { AXIS_PP, { SPLITS_LAYERS, SPLITS_LAYERS }, "stages" },
};
_Static_assert(sizeof rows / sizeof *rows == N_AXES, "each axis has a row");

/* Of a composite, its first part's. */
static const struct axis_row *row_of(enum mesh_axis axis)
{
    int i = 0;

    while (!axis_covers(axis, rows[i].axis))
        CHECK(++i < N_AXES);
    return &rows[i];
}

enum axis_role axis_role(enum mesh_axis axis, enum parameter_kind kind)
{
    return row_of(axis)->role[kind];
}

const char *axis_places(enum mesh_axis axis)
{
    return row_of(axis)->places;
}

struct axis_list axes_of(const struct mesh *mesh, enum axis_role role, enum parameter_kind kind)
{
    struct axis_list list = { 0 };

    for (int i = 0; i < N_AXES; i++)
        if (rows[i].role[kind] == role && mesh->size[rows[i].axis] > 1)
            list.axes[list.n++] = rows[i].axis;
    return list;
}

/* The first that has these roles. */
static enum mesh_axis axis_with(enum axis_role dense, enum axis_role expert)
{
    int i = 0;

    while (rows[i].role[PARAMETER_DENSE] != dense || rows[i].role[PARAMETER_EXPERT] != expert)
        CHECK(++i < N_AXES);
    return rows[i].axis;
}

enum mesh_axis axes_shard(const struct mesh *mesh, enum parameter_kind kind)
{
    if (kind == PARAMETER_DENSE && mesh->size[axes_experts()] > 1)
        return AXIS_DATA;
    return axis_with(SPLITS_TOKENS, SPLITS_TOKENS);
}

enum mesh_axis axes_tensor(void)
{
    return axis_with(SPLITS_MODEL, SPLITS_MODEL);
}

enum mesh_axis axes_experts(void)
{
    return axis_with(SPLITS_TOKENS, SPLITS_MODEL);
}

enum mesh_axis axes_exchange(const struct mesh *mesh, bool over_tensor)
{
    if (!over_tensor)
        return axes_experts();
    return mesh->size[axes_experts()] > 1 ? AXIS_EXPERTS : axes_tensor();
}

bool axis_has_experts(enum mesh_axis axis)
{
    return axis == AXIS_EP || axis == AXIS_EXPERTS;
}

enum mesh_axis axes_stages(void)
{
    return axis_with(SPLITS_LAYERS, SPLITS_LAYERS);
}

enum mesh_axis axes_keys(void)
{
    return AXIS_CP;
}

enum mesh_axis axes_heads(void)
{
    return AXIS_ULYSSES;
}

bool axis_cuts_sequences(enum mesh_axis axis)
{
    return axis == axes_keys() || axis == axes_heads();
}

struct axis_list axes_of_replicas(const struct mesh *mesh, enum parameter_kind kind)
{
    struct axis_list list = axes_of(mesh, SPLITS_TOKENS, kind), others = { 0 };

    for (int i = 0; i < list.n; i++)
        if (!axis_covers(axes_shard(mesh, kind), list.axes[i]))
            others.axes[others.n++] = list.axes[i];
    return others;
}

int axes_size(const struct mesh *mesh, enum axis_role role, enum parameter_kind kind)
{
    struct axis_list list = axes_of(mesh, role, kind);
    int size = 1;

    for (int i = 0; i < list.n; i++)
        size *= mesh->size[list.axes[i]];
    return size;
}
