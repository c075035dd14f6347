/*
 * collective_group.c - where the ranks of a group lie on a cluster
 *
 * They are an arithmetic progression of world ranks, so how many nodes, domains and leaves a group
 * touches is a division. Those of a composite axis may be several progressions (mesh_line), which
 * are walked rank by rank.
 */
#include "base/num.h"
#include "plan/collective_cost.h"
#include "plan/island_units.h"

/* World ranks first, first + stride, ... */
struct progression {
    int64_t first, stride, n;
};

/* How many units of consecutive devices (nodes, domains, leaves) are touched, and how many ranks
 * the one with the fewest has. */
struct unit_count {
    int64_t n, fewest;
};

/* Ranks count from the island's first device. */
static struct unit_count count_units(struct progression ranks, int64_t unit)
{
    int64_t last = ranks.first + (ranks.n - 1) * ranks.stride;
    int64_t n = last / unit - ranks.first / unit + 1;

    if (ranks.stride >= unit && ranks.n > 1)
        return (struct unit_count){ ranks.n, 1 };
    if (n == 1)
        return (struct unit_count){ 1, ranks.n };
    int64_t head = ceil_div(unit - ranks.first % unit, ranks.stride);
    int64_t tail = last % unit / ranks.stride + 1;
    int64_t fewest = min_i64(head, tail);
    return (struct unit_count){ n, n > 2 ? min_i64(fewest, unit / ranks.stride) : fewest };
}

/* Those of the ranks that are devices begin .. end - 1, counted from begin; n is 0: none. */
static struct progression ranks_within(struct progression ranks, int64_t begin, int64_t end)
{
    int64_t skipped = begin > ranks.first ? ceil_div(begin - ranks.first, ranks.stride) : 0;
    int64_t first = ranks.first + skipped * ranks.stride;
    int64_t n = first < end ? (end - 1 - first) / ranks.stride + 1 : 0;

    return (struct progression){ first - begin, ranks.stride, min_i64(n, ranks.n - skipped) };
}

/* Of an island. */
struct units_touched {
    struct unit_count nodes, domains, leaves;
};

/* n of the group's ranks lie in island i. */
static void add_island(struct group_shape *shape, int i, int64_t n,
                       const struct units_touched *touched)
{
    if (!shape->n_islands) {
        shape->island = i;
        shape->per_node = (int)touched->nodes.fewest;
        shape->per_domain = (int)touched->domains.fewest;
    }
    shape->last_island = i;
    shape->n_islands++;
    shape->n += (int)n;
    shape->n_nodes += (int)touched->nodes.n;
    shape->n_domains += (int)touched->domains.n;
    shape->n_leaves += (int)touched->leaves.n;
    shape->per_node = min_int(shape->per_node, (int)touched->nodes.fewest);
    shape->per_domain = min_int(shape->per_domain, (int)touched->domains.fewest);
}

static struct group_shape shape_of_ranks(const struct cluster *cluster, struct progression ranks)
{
    struct group_shape shape = { 0 };
    int64_t begin = 0;

    for (int i = 0; i < cluster->n_islands && shape.n < ranks.n; i++) {
        const struct cluster_island *island = &cluster->islands[i];
        int64_t end = begin + island_devices(island);
        struct progression inside = ranks_within(ranks, begin, end);

        if (inside.n > 0)
            add_island(&shape, i, inside.n,
                       &(struct units_touched){
                           .nodes = count_units(inside, island->per_node),
                           .domains = count_units(inside, island_domain(island)),
                           .leaves = count_units(inside, island_leaf(cluster, island)) });
        begin = end;
    }
    CHECK(shape.n == ranks.n);
    return shape;
}

static bool spans_more(const struct group_shape *a, const struct group_shape *b)
{
    if (a->n_nodes != b->n_nodes)
        return a->n_nodes > b->n_nodes;
    if (a->n_domains != b->n_domains)
        return a->n_domains > b->n_domains;
    if (a->per_node != b->per_node)
        return a->per_node < b->per_node;
    return a->per_domain < b->per_domain;
}

/* Whether all groups lie in units alike: blocks of `span` ranks have a group for each place within
 * the stride. Units count from device `begin`. */
static bool is_aligned(int64_t stride, int64_t span, int64_t unit, int64_t begin)
{
    if (stride % unit == 0)
        return true;
    if (begin % min_i64(span, unit))
        return false;
    return unit % span == 0 || (span % unit == 0 && unit % stride == 0);
}

/* Units of consecutive devices that ascending ranks touch. */
struct unit_walk {
    int64_t unit;         /* devices */
    int64_t last, n_last; /* the unit at hand, and ranks in it so far */
    struct unit_count count;
};

static void end_unit(struct unit_walk *w)
{
    if (!w->n_last)
        return;
    w->count.fewest = w->count.n ? min_i64(w->count.fewest, w->n_last) : w->n_last;
    w->count.n++;
    w->n_last = 0;
}

static void walk_rank(struct unit_walk *w, int64_t rank)
{
    if (rank / w->unit != w->last)
        end_unit(w);
    w->last = rank / w->unit;
    w->n_last++;
}

/* Those of the line's ranks that are devices begin .. end - 1. */
static struct unit_count count_units_of_line(const struct mesh_line *line, int64_t begin,
                                             int64_t end, int64_t unit, int64_t *n)
{
    struct unit_walk walk = { .unit = unit };

    *n = 0;
    for (int run = 0; run < line->n_runs; run++)
        for (int i = 0; i < line->n; i++) {
            int64_t rank = line->first + (int64_t)run * line->apart + (int64_t)i * line->stride;

            if (rank < begin || rank >= end)
                continue;
            walk_rank(&walk, rank - begin);
            ++*n;
        }
    end_unit(&walk);
    return walk.count;
}

static struct group_shape shape_of_line(const struct cluster *cluster, const struct mesh_line *line)
{
    struct group_shape shape = { 0 };
    int64_t begin = 0, n;

    for (int i = 0; i < cluster->n_islands; i++) {
        const struct cluster_island *island = &cluster->islands[i];
        int64_t end = begin + island_devices(island);
        struct units_touched touched = {
            .nodes = count_units_of_line(line, begin, end, island->per_node, &n),
            .domains = count_units_of_line(line, begin, end, island_domain(island), &n),
            .leaves = count_units_of_line(line, begin, end, island_leaf(cluster, island), &n),
        };

        if (n > 0)
            add_island(&shape, i, n, &touched);
        begin = end;
    }
    return shape;
}

/* The axis' groups of one pipeline rank; where whole pipelines are neighbours, of all. */
struct axis_groups {
    int64_t begin, end; /* world ranks */
    int64_t stride;     /* from rank to rank of a group */
    int64_t n;          /* ranks of a group */
};

static struct axis_groups groups_of_axis(const struct mesh *mesh, int world_rank,
                                         enum mesh_axis axis)
{
    int64_t world = mesh_world_size(mesh), stage = world / mesh->size[AXIS_PP];
    struct mesh_line line = mesh_line(mesh, world_rank, axis);

    if (axis == AXIS_PP || mesh->order == ORDER_PIPELINES)
        stage = world;
    int64_t begin = world_rank / stage * stage;
    return (struct axis_groups){ begin, begin + stage, line.stride, line.n };
}

/*
 * Groups that begin a multiple of all units apart lie alike: so as many blocks as the least common
 * multiple has devices, and places within the stride, show all there are.
 */
static struct group_shape widest_group(const struct cluster *cluster,
                                       const struct axis_groups *groups, int64_t period,
                                       struct group_shape widest)
{
    int64_t span = groups->stride * groups->n;

    for (int64_t block = 0; block < period && groups->begin + (block + 1) * span <= groups->end;
         block++)
        for (int64_t place = 0; place < min_i64(groups->stride, period); place++) {
            struct progression ranks = { groups->begin + block * span + place, groups->stride,
                                         groups->n };
            struct group_shape shape = shape_of_ranks(cluster, ranks);

            if (shape.island == widest.island && spans_more(&shape, &widest))
                widest = shape;
        }
    return widest;
}

static int64_t island_begin(const struct cluster *cluster, int island)
{
    int64_t begin = 0;

    for (int i = 0; i < island; i++)
        begin += island_devices(&cluster->islands[i]);
    return begin;
}

struct group_shape collective_group(const struct cluster *cluster, const struct mesh *mesh,
                                    int world_rank, enum mesh_axis axis)
{
    struct axis_groups groups = groups_of_axis(mesh, world_rank, axis);
    int64_t span = groups.stride * groups.n;
    struct mesh_line line = mesh_line(mesh, world_rank, axis);
    struct progression ranks = { line.first, line.stride, line.n };
    struct group_shape shape =
        line.n_runs > 1 ? shape_of_line(cluster, &line) : shape_of_ranks(cluster, ranks);
    const struct cluster_island *island = &cluster->islands[shape.island];
    int64_t begin = island_begin(cluster, shape.island), domain = island_domain(island);

    if (groups.n > 1 && line.n_runs == 1 &&
        (!is_aligned(groups.stride, span, island->per_node, begin) ||
         !is_aligned(groups.stride, span, domain, begin)))
        shape =
            widest_group(cluster, &groups, least_common_multiple(island->per_node, domain), shape);
    shape.n_sharing = min_int(island->per_node, mesh_world_size(mesh));
    return shape;
}
