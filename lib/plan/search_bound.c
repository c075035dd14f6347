/*
 * search_bound.c - times and bytes that a layout cannot be below
 *
 * A bound is what a pipeline cannot be below, whatever its schedule: a rank cannot begin before the
 * first micro-batch has come to it, then computes all of its own, and where a backward is one step,
 * the stages before it still have the last micro-batch's backward to do.
 *
 *     rank 0  F0 F1 F2 ..                          B1 B2
 *     rank 1     F0 F1 F2 ..                  B1 B2
 *     rank 2        F0 B0 F1 B1 F2 B2                     bound of rank 2: pre + all + post
 *             | pre |   all of its own  | post     |
 *
 * Where the numbers of recomputed layers are chosen with the estimate, the time is as if none were,
 * and the bytes as if all were in full.
 */
#include "base/num.h"
#include "layout/axes.h"
#include "plan/collective_cost.h"
#include "plan/price.h"
#include "plan/search_impl.h"

/* How sums and gathers of data parallel are bounded. */
struct exchanges {
    const struct cluster *cluster;
    struct group_shape groups[2]; /* that shard, or sum: dense parameters, experts */
    bool is_fast, is_early;       /* libraries add; each micro-batch's gradients are summed */
    bool is_compressed;           /* sums are of a codec, whose bytes are not bounded */
    int zero;
    enum parameter_hold hold;
    bool has_prefetch; /* and gathers some weights once a step */
};

static struct exchanges find_exchanges(const struct search *search, const struct layout *l)
{
    struct job job = *search->request->job;

    layout_apply(&job, l);
    const struct mesh mesh = job_mesh(&job);
    struct exchanges x = { .cluster = search->request->cluster,
                           .is_fast = job.parallel.reductions == REDUCTIONS_FAST,
                           .is_early = job_gradient_sum(&job, l->zero) == GRADIENT_SUM_EARLY,
                           .is_compressed = job.parallel.compress != CODEC_NONE,
                           .zero = l->zero,
                           .hold = l->hold,
                           .has_prefetch = search->request->job->parallel.prefetch != 0 };
    /* Of all the job's ranks, as many as the layout has. */
    job.world_size = mesh_world_size(&mesh);
    const struct prices prices = { .cluster = x.cluster, .node_ranks = job_node_ranks(&job) };
    x.groups[0] = price_group(&prices, &mesh, 0, axes_shard(&mesh, PARAMETER_DENSE));
    x.groups[1] = price_group(&prices, &mesh, 0, axes_shard(&mesh, PARAMETER_EXPERT));
    return x;
}

static bool may_go_by_node(const struct group_shape *group)
{
    return group->members > 1 && group->members < group->n;
}

static int64_t gather_over_ns(const struct exchanges *x, const struct group_shape *group,
                              int64_t n_bytes)
{
    if (group->n < 2)
        return 0;
    int64_t at_once = collective_ns(x->cluster, group, OP_ALL_GATHER, n_bytes);

    return may_go_by_node(group) ? min_i64(at_once, gather_by_node_ns(x->cluster, group, n_bytes))
                                 : at_once;
}

static int64_t sum_over_ns(const struct exchanges *x, const struct group_shape *group,
                           int64_t n_bytes)
{
    if (group->n < 2 || x->is_compressed)
        return 0;
    if (x->is_fast)
        return collective_ns(x->cluster, group, x->zero ? OP_REDUCE_SCATTER : OP_ALL_REDUCE,
                             n_bytes);
    int64_t summed = all_to_all_ns(x->cluster, group, n_bytes);

    if (may_go_by_node(group))
        summed = min_i64(summed, sum_by_node_ns(x->cluster, group, n_bytes, n_bytes));
    return summed + (x->zero ? 0 : gather_over_ns(x, group, n_bytes));
}

/* The least that summing gradients of so many bytes takes: in one piece, over the faster group,
 * whatever share of them are experts'. */
static int64_t sum_ns(const struct exchanges *x, int64_t n_bytes)
{
    return min_i64(sum_over_ns(x, &x->groups[0], n_bytes), sum_over_ns(x, &x->groups[1], n_bytes));
}

/* Likewise of weights. */
static int64_t gather_ns(const struct exchanges *x, int64_t n_bytes)
{
    return min_i64(gather_over_ns(x, &x->groups[0], n_bytes),
                   gather_over_ns(x, &x->groups[1], n_bytes));
}

/*
 * Of one rank, what its sums and gathers take beside its compute. Late sums: those of the first
 * chunk begin with its last backward, which comes when all else is done. Early ones, and what ZeRO
 * 3 gathers for each pass, take turns on their streams.
 */
static int64_t bound_exchanges(const struct exchanges *x, const struct pipeline_spec *spec,
                               const struct layer_cost *stages, int rank, int64_t compute_end)
{
    const struct layer_cost *first = &stages[pipeline_stage_of(spec, rank, 0)];
    int64_t gradients = 0, weights = 0, m = spec->n_micro_batches;

    for (int i = 0; i < spec->n_chunks; i++) {
        const struct layer_cost *c = &stages[pipeline_stage_of(spec, rank, i)];

        gradients += c->gradient_bytes;
        weights += c->weight_bytes;
    }
    if (!x->is_early)
        return compute_end - first->i - first->w + sum_ns(x, first->gradient_bytes);
    int64_t sums = m * sum_ns(x, gradients), gathers = 0;
    if (x->zero == 3 && x->hold == HOLD_PASS && !x->has_prefetch)
        gathers = m * 2 * gather_ns(x, weights);
    return max_i64(sums, gathers);
}

/* exchanges: NULL, or what is done beside. */
static int64_t bound_time(const struct exchanges *x, const struct pipeline_spec *spec,
                          const struct layer_cost *stages)
{
    int64_t most = 0, pre = 0, post = 0, m = spec->n_micro_batches;
    bool is_split = search_has_split_backward(spec->kind);

    for (int rank = 0; rank < spec->n_ranks; rank++) {
        const struct layer_cost *first = &stages[pipeline_stage_of(spec, rank, 0)];
        int64_t all = 0;

        for (int i = 0; i < spec->n_chunks; i++) {
            const struct layer_cost *c = &stages[pipeline_stage_of(spec, rank, i)];

            all += c->f + c->i + c->w;
        }
        most = max_i64(most, pre + m * all + (is_split ? 0 : post));
        if (x)
            most = max_i64(most, bound_exchanges(x, spec, stages, rank, pre + m * all));
        pre += first->f;
        post += first->i + first->w;
    }
    return most;
}

/* The first rank has the first chunk's values of as many micro-batches as there are ranks, until
 * the first of them has come back; others have at least one. */
static size_t bound_bytes(const struct search *search, const struct layout_candidate *c,
                          const struct pipeline_spec *spec, const struct layer_cost *stages)
{
    const struct mesh mesh = search_mesh(search, &c->layout);
    size_t most = 0;

    for (int rank = 0; rank < spec->n_ranks; rank++) {
        size_t n = 0;

        for (int i = 0; i < spec->n_chunks; i++) {
            const struct layer_cost *s = &stages[pipeline_stage_of(spec, rank, i)];
            int slots = rank == 0 && i == 0 ? min_int(spec->n_ranks, spec->n_micro_batches) : 1;

            n += search_least_cells(&c->layout, s) + (size_t)(slots * s->slot_bytes);
        }
        n = search_scale_bytes(search, &mesh, rank, n);
        most = n > most ? n : most;
    }
    return most;
}

/* Of the slowest replica, each with its own micro-batches, without what ranks exchange. */
static int64_t bound_counted(struct search *search, const struct layout *l,
                             struct pipeline_spec spec)
{
    struct arena scratch = { 0 };
    int64_t most = 0;

    for (int i = 0; i < l->dp; i++) {
        if (i && search_is_like(search, l, i, i - 1))
            continue;
        spec.n_micro_batches = l->counts.values[i];
        struct layer_cost *stages = search_base_stages(search, l, &spec, i, &scratch);
        most = max_i64(most, stages ? bound_time(NULL, &spec, stages) : 0);
    }
    arena_release(&scratch);
    return most;
}

bool search_bound(struct search *search, struct layout_candidate *candidate)
{
    struct pipeline_spec spec = search_spec(candidate);
    struct layout *l = &candidate->layout;
    struct arena scratch = { 0 };

    search_prepare_fronts(search, candidate, 1);
    const struct layer_costs **costs =
        search_list_costs(search, l, &spec, ALL_REPLICAS, COSTS_BASE, &scratch);
    const int *first = costs && search_has_fronts(search, l)
                           ? search_cut(search, l, &spec, costs, &scratch)
                           : NULL;

    if (first) {
        struct layer_cost *stages = search_list_stages(search, costs, first, &spec, &scratch);
        struct exchanges exchanges = find_exchanges(search, l);

        search_keep_cut(search, l, first, pipeline_n_stages(&spec));
        candidate->bound_ns =
            l->counts.n ? bound_counted(search, l, spec) : bound_time(&exchanges, &spec, stages);
        if (search_is_fitted(search, l))
            search_keep_least(search, l, &spec, first, stages);
        candidate->bound_bytes = bound_bytes(search, candidate, &spec, stages);
    }
    arena_release(&scratch);
    return first != NULL;
}
