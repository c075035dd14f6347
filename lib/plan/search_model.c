/*
 * search_model.c - bounds and estimates of one layout from the costs of its layers
 *
 * A bound is what a pipeline cannot be below, whatever its schedule: a rank cannot begin before the
 * first micro-batch has come to it, then computes all of its own, and where a backward is one step,
 * the stages before it still have the last micro-batch's backward to do.
 *
 *     rank 0  F0 F1 F2 ..                          B1 B2
 *     rank 1     F0 F1 F2 ..                  B1 B2
 *     rank 2        F0 B0 F1 B1 F2 B2                     bound of rank 2: pre + all + post
 *             | pre |   all of its own  | post     |
 */
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "model/compile.h"
#include "plan/collective_cost.h"
#include "plan/fit.h"
#include "plan/islands.h"
#include "plan/partition.h"
#include "plan/search_impl.h"
#include "plan/step_time.h"

/* Micro-batches that are simulated for each pipeline rank; those between are as long as these. */
#define ROUNDS 8

/* ---- stages ---- */

/* What the ends add to the first and to the last stage. The head's matrix products are the last
 * stage's; a table that both have, if they are of two ranks, is of each, else half of the bytes. */
static struct layer_cost end_of(const struct layer_costs *costs, bool is_first, bool is_last,
                                bool is_tied)
{
    struct layer_cost end = costs->ends;
    int share = is_first && is_last ? 1 : is_tied ? 1 : 2;

    if (!is_last)
        end.f = end.i = end.w = end.slot_bytes = 0;
    end.once /= share;
    end.weight_bytes /= share;
    end.gradient_bytes /= share;
    end.state_bytes /= share;
    return end;
}

static struct layer_cost cost_of_stage(const struct search *search, const struct layer_costs *costs,
                                       const int *first, int stage, int n_stages, int pp)
{
    struct layer_cost sum = { 0 };
    bool is_first = stage == 0, is_last = stage + 1 == n_stages;

    for (int i = first[stage]; i < first[stage + 1]; i++)
        search_add_cost(&sum, costs->layers[i]);
    if (is_first || is_last) {
        struct layer_cost end = end_of(costs, is_first || pp == 1, is_last || pp == 1,
                                       search->request->job->model.tied_embeddings && pp > 1);

        /* One rank with several stages has both ends once. */
        if (pp > 1 || is_last)
            search_add_cost(&sum, &end);
    }
    return sum;
}

struct pipeline_spec search_spec(const struct layout_candidate *c)
{
    return (struct pipeline_spec){ .kind = c->layout.pp == 1 ? PIPELINE_1F1B : c->layout.schedule,
                                   .n_ranks = c->layout.pp,
                                   .n_chunks = c->layout.pp == 1 ? 1 : c->layout.chunks,
                                   .n_micro_batches = c->n_micro_batches };
}

static struct layer_key key_of(const struct layout *l, int island)
{
    struct layer_key key = { 0 };

    key.tp = l->tp;
    key.dp = l->dp;
    key.zero = l->zero;
    key.zero_group = l->zero_group;
    key.bucket_mb = l->bucket_mb;
    key.micro_batch = l->micro_batch;
    key.recompute = l->recompute;
    key.hold = l->hold;
    key.island = island;
    return key;
}

static bool has_split_backward(enum pipeline_kind kind)
{
    return kind == PIPELINE_ZB_H1 || kind == PIPELINE_ZB_H2 || kind == PIPELINE_ZB_V;
}

/* Which costs: those that no data parallel adds to, all, or all of programs whose backward is
 * split. */
enum cost_kind { COSTS_BASE, COSTS_WHOLE, COSTS_SPLIT };

static struct layer_key key_of_costs(const struct search *search, const struct layout *l,
                                     int island, enum cost_kind kind)
{
    struct layer_key key = key_of(l, island);

    key.is_split = kind == COSTS_SPLIT;
    if (kind == COSTS_BASE) {
        key.dp = 1;
        key.zero = key.zero_group = 0;
        key.bucket_mb = search->request->job->parallel.bucket_mb;
        key.hold = HOLD_PASS;
    }
    return key;
}

static const struct layer_costs *find_costs(struct search *search, const struct layout *l,
                                            int island, enum cost_kind kind)
{
    struct layer_key key = key_of_costs(search, l, island, kind);

    return layer_costs_find(&search->costs, &key);
}

struct mesh search_mesh(const struct search *search, const struct layout *l)
{
    struct job job = *search->request->job;

    layout_apply(&job, l);
    return job_mesh(&job);
}

/* Whose devices a pipeline rank's ranks compute on, those of one replica or of all. */
static int island_of(const struct search *search, const struct mesh *mesh, int pp_rank, int replica)
{
    const struct search_request *r = search->request;

    if (r->cluster->n_islands == 1)
        return 0;
    return islands_slowest(r->cluster,
                           replica < 0 ? mesh_stage_ranks(mesh, pp_rank)
                                       : mesh_replica_ranks(mesh, pp_rank, replica),
                           r->job->train.dtype);
}

bool search_is_like(const struct search *search, const struct layout *l, int replica, int other)
{
    const struct mesh mesh = search_mesh(search, l);
    bool is_like = !l->counts.n || l->counts.values[replica] == l->counts.values[other];

    for (int rank = 0; rank < l->pp && is_like; rank++)
        is_like = island_of(search, &mesh, rank, replica) == island_of(search, &mesh, rank, other);
    return is_like;
}

/* Costs of each stage's island, by stage; NULL: the layout is not possible. */
static const struct layer_costs **list_costs(struct search *search, const struct layout *l,
                                             const struct pipeline_spec *spec, int replica,
                                             enum cost_kind kind, struct arena *arena)
{
    int n = pipeline_n_stages(spec);
    const struct layer_costs **costs = arena_array(arena, const struct layer_costs *, n);
    const struct mesh mesh = search_mesh(search, l);

    for (int i = 0; i < n; i++) {
        int island = island_of(search, &mesh, pipeline_rank_of(spec, i), replica);

        costs[i] = find_costs(search, l, island, kind);
        if (!costs[i]->is_possible)
            return NULL;
    }
    return costs;
}

/* By rank and not by stage: a rank's stages are on the same devices. */
static void add_keys(struct search *search, const struct layout_candidate *c, enum cost_kind kind,
                     struct layer_key **keys, int *n, int *capacity, struct arena *arena)
{
    const struct mesh mesh = search_mesh(search, &c->layout);

    for (int rank = 0; rank < c->layout.pp; rank++) {
        int island = island_of(search, &mesh, rank, ALL_REPLICAS);
        struct layer_key key = key_of_costs(search, &c->layout, island, kind);
        bool is_new = true;

        for (int i = *n - 1; i >= 0 && is_new; i--)
            is_new = memcmp(&(*keys)[i], &key, sizeof key) != 0;
        if (!is_new)
            continue;
        *keys = arena_grow(arena, *keys, sizeof **keys, capacity, *n + 1);
        (*keys)[(*n)++] = key;
        if (search->request->cluster->n_islands == 1)
            return;
    }
}

void search_prepare(struct search *search, const struct layout_candidate *candidates, int n,
                    bool for_bounds)
{
    struct layer_key *keys = NULL;
    int n_keys = 0, capacity = 0;
    struct arena arena = { 0 };

    for (int i = 0; i < n; i++) {
        const struct layout_candidate *c = &candidates[i];
        bool is_split = has_split_backward(search_spec(c).kind);

        add_keys(search, c, for_bounds ? COSTS_BASE : COSTS_WHOLE, &keys, &n_keys, &capacity,
                 &arena);
        if (is_split && !for_bounds)
            add_keys(search, c, COSTS_SPLIT, &keys, &n_keys, &capacity, &arena);
    }
    layer_costs_prepare(&search->costs, keys, n_keys);
    arena_release(&arena);
}

/* Costs of each stage of the pipeline, in the arena. */
static struct layer_cost *list_stages(const struct search *search,
                                      const struct layer_costs *const *costs, const int *first,
                                      const struct pipeline_spec *spec, struct arena *arena)
{
    int n = pipeline_n_stages(spec);
    struct layer_cost *stages = arena_array(arena, struct layer_cost, n);

    for (int i = 0; i < n; i++)
        stages[i] = cost_of_stage(search, costs[i], first, i, n, spec->n_ranks);
    return stages;
}

/* The cut is by the slowest devices. */
struct layer_cost *search_base_stages(struct search *search, const struct layout *l,
                                      const struct pipeline_spec *spec, int replica,
                                      struct arena *arena)
{
    const struct layer_costs **all = list_costs(search, l, spec, ALL_REPLICAS, COSTS_BASE, arena);
    const struct layer_costs **own = list_costs(search, l, spec, replica, COSTS_BASE, arena);
    const int *first = all ? search_cut(search, l, spec, all) : NULL;

    return first && own ? list_stages(search, own, first, spec, arena) : NULL;
}

/* ---- the bound ---- */

/* How sums and gathers of data parallel are bounded. */
struct exchanges {
    const struct cluster *cluster;
    struct group_shape group; /* that shards, or sums */
    bool is_fast, is_early;   /* libraries add; each micro-batch's gradients are summed */
    int zero;
    enum parameter_hold hold;
};

static struct exchanges find_exchanges(const struct search *search, const struct layout *l)
{
    struct job job = *search->request->job;

    layout_apply(&job, l);
    const struct mesh mesh = job_mesh(&job);
    struct exchanges x = { .cluster = search->request->cluster,
                           .is_fast = job.parallel.reductions == REDUCTIONS_FAST,
                           .is_early = job.parallel.gradient_sum_given
                                           ? job.parallel.gradient_sum == GRADIENT_SUM_EARLY
                                           : l->zero > 1,
                           .zero = l->zero,
                           .hold = l->hold };
    x.group = collective_group(x.cluster, &mesh, 0, axes_shard());
    return x;
}

/* The least that summing gradients of so many bytes takes: in one piece. */
static int64_t sum_ns(const struct exchanges *x, int64_t n_bytes)
{
    if (x->group.n < 2)
        return 0;
    if (x->is_fast)
        return collective_ns(x->cluster, &x->group, x->zero ? OP_REDUCE_SCATTER : OP_ALL_REDUCE,
                             n_bytes);
    return all_to_all_ns(x->cluster, &x->group, n_bytes) +
           (x->zero ? 0 : collective_ns(x->cluster, &x->group, OP_ALL_GATHER, n_bytes));
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
    if (x->zero == 3 && x->hold == HOLD_PASS && x->group.n > 1)
        gathers = m * 2 * collective_ns(x->cluster, &x->group, OP_ALL_GATHER, weights);
    return max_i64(sums, gathers);
}

/* exchanges: NULL, or what is done beside. */
static int64_t bound_time(const struct exchanges *x, const struct pipeline_spec *spec,
                          const struct layer_cost *stages)
{
    int64_t most = 0, pre = 0, post = 0, m = spec->n_micro_batches;
    bool is_split = has_split_backward(spec->kind);

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
    const struct layer_costs **costs =
        list_costs(search, l, &spec, ALL_REPLICAS, COSTS_BASE, &scratch);
    const int *first = costs ? search_cut(search, l, &spec, costs) : NULL;

    if (first) {
        struct layer_cost *stages = list_stages(search, costs, first, &spec, &scratch);
        struct exchanges exchanges = find_exchanges(search, l);

        search_keep_cut(search, l, first, pipeline_n_stages(&spec));
        candidate->bound_ns =
            l->counts.n ? bound_counted(search, l, spec) : bound_time(&exchanges, &spec, stages);
        candidate->bound_bytes = bound_bytes(search, candidate, &spec, stages);
    }
    arena_release(&scratch);
    return first != NULL;
}

/* ---- the estimate ---- */

/* Costs are at least what they are without data parallel, so that no estimate is below its
 * bound. */
static void raise_costs(struct layer_cost *stages, const struct layer_cost *base, int n)
{
    for (int i = 0; i < n; i++) {
        stages[i].f = max_i64(stages[i].f, base[i].f);
        stages[i].i = max_i64(stages[i].i, base[i].i);
        stages[i].w = max_i64(stages[i].w, base[i].w);
    }
}

/* Layers' times, and what I hands on to W, where the backward is in two. */
static void split_costs(const struct layer_costs *const *whole,
                        const struct layer_costs *const *split, const int *first, int n_stages,
                        struct layer_cost *stages)
{
    for (int s = 0; s < n_stages; s++)
        for (int i = first[s]; i < first[s + 1]; i++) {
            const struct layer_cost *to = split[s]->layers[i], *from = whole[s]->layers[i];

            stages[s].f += to->f - from->f;
            stages[s].i += to->i - from->i;
            stages[s].w += to->w - from->w;
            stages[s].handed_bytes += max_i64(0, to->slot_bytes - from->slot_bytes);
        }
}

/* What crosses from a stage to the next. */
struct boundary {
    int64_t ns, bytes;
};

static struct boundary find_boundary(const struct search *search, const struct layout *l)
{
    struct job job = *search->request->job;

    layout_apply(&job, l);
    return (struct boundary){ step_time_boundary_ns(&job, search->request->cluster),
                              step_time_boundary_bytes(&job) };
}

static int64_t once_of_rank(const struct pipeline_spec *spec, const struct layer_cost *stages,
                            int rank)
{
    int64_t once = 0;

    for (int chunk = 0; chunk < spec->n_chunks; chunk++)
        once += stages[pipeline_stage_of(spec, rank, chunk)].once;
    return once;
}

/* The end of the step of these micro-batches: each rank's last step, then what it does once. */
static int64_t time_pipeline(const struct search *search, const struct mesh *mesh,
                             const struct pipeline_spec *spec, const struct layer_cost *stages,
                             struct boundary boundary, int64_t fixed_bytes,
                             struct largest_ranks *largest)
{
    struct arena arena = { 0 };
    int n = pipeline_n_stages(spec);
    int64_t *f = arena_array(&arena, int64_t, n), *i = arena_array(&arena, int64_t, n);
    int64_t *w = arena_array(&arena, int64_t, n), end = 0;
    struct pipeline_costs costs = { .f = f, .i = i, .w = w, .transfer = boundary.ns };
    struct pipeline_timing timing;
    struct pipeline pipeline;
    struct err err;

    for (int s = 0; s < n; s++) {
        f[s] = stages[s].f;
        i[s] = stages[s].i;
        w[s] = stages[s].w;
    }
    CHECK(!pipeline_build(&pipeline, spec, &arena, &err) &&
          !pipeline_simulate(&timing, &pipeline, &costs, &arena, &err));
    *largest = (struct largest_ranks){ .n = 0 };
    for (int rank = 0; rank < spec->n_ranks; rank++) {
        size_t n_bytes =
            (size_t)fixed_bytes + search_bytes_of_rank(&pipeline, stages, boundary.bytes, rank);

        n_bytes = search_scale_bytes(search, mesh, rank, n_bytes);
        end = max_i64(end, timing.ranks[rank].last_end + once_of_rank(spec, stages, rank));
        search_note_largest(largest, rank, n_bytes);
    }
    arena_release(&arena);
    return end;
}

/* Costs of all stages of a replica with all that the layout has; NULL: not possible. */
static struct layer_cost *list_whole_stages(struct search *search, const struct layout *l,
                                            const struct pipeline_spec *spec, int replica,
                                            int64_t *fixed_bytes, struct arena *arena)
{
    int n = pipeline_n_stages(spec);
    bool is_split = has_split_backward(spec->kind);
    const struct layer_costs **all = list_costs(search, l, spec, ALL_REPLICAS, COSTS_BASE, arena);
    const struct layer_costs **base = list_costs(search, l, spec, replica, COSTS_BASE, arena);
    const struct layer_costs **whole = list_costs(search, l, spec, replica, COSTS_WHOLE, arena);
    const struct layer_costs **split =
        is_split ? list_costs(search, l, spec, replica, COSTS_SPLIT, arena) : NULL;
    const int *first = all ? search_cut(search, l, spec, all) : NULL;

    if (!first || !base || !whole || (is_split && !split))
        return NULL;
    struct layer_cost *stages = list_stages(search, whole, first, spec, arena);
    if (is_split)
        split_costs(whole, split, first, n, stages);
    raise_costs(stages, list_stages(search, base, first, spec, arena), n);
    *fixed_bytes = whole[0]->fixed_bytes;
    return stages;
}

/* Raise the candidate's estimates to what a replica with so many micro-batches, or, for
 * ALL_REPLICAS, the slowest devices of all, come to. */
static bool estimate_replica(struct search *search, struct layout_candidate *candidate, int replica,
                             int n_micro_batches)
{
    const struct layout *l = &candidate->layout;
    struct pipeline_spec spec = search_spec(candidate), shorter;
    struct arena scratch = { 0 };
    int p = spec.n_ranks, rounds = n_micro_batches / p - ROUNDS;
    int64_t fixed_bytes = 0;
    struct largest_ranks largest, ignored;
    struct layer_cost *stages =
        list_whole_stages(search, l, &spec, replica, &fixed_bytes, &scratch);

    spec.n_micro_batches = n_micro_batches - (rounds > 0 ? rounds * p : 0);
    if (stages) {
        const struct mesh mesh = search_mesh(search, l);
        struct boundary boundary = p > 1 ? find_boundary(search, l) : (struct boundary){ 0, 0 };
        int64_t ns = time_pipeline(search, &mesh, &spec, stages, boundary, fixed_bytes, &largest);

        if (rounds > 0) {
            shorter = spec;
            shorter.n_micro_batches -= p;
            ns += rounds * (ns - time_pipeline(search, &mesh, &shorter, stages, boundary,
                                               fixed_bytes, &ignored));
        }
        candidate->estimate_ns = max_i64(ns, candidate->estimate_ns);
        if (!candidate->largest.n || candidate->largest.bytes[0] < largest.bytes[0])
            candidate->largest = largest;
    }
    arena_release(&scratch);
    return stages != NULL;
}

bool search_estimate(struct search *search, struct layout_candidate *candidate)
{
    const struct layout *l = &candidate->layout;
    int n = l->counts.n ? l->dp : 1;
    bool is_possible = true;

    candidate->estimate_ns = candidate->bound_ns;
    candidate->largest.n = 0;
    for (int i = 0; i < n && is_possible; i++)
        if (!i || !search_is_like(search, l, i, i - 1))
            is_possible =
                estimate_replica(search, candidate, l->counts.n ? i : ALL_REPLICAS,
                                 l->counts.n ? l->counts.values[i] : candidate->n_micro_batches);
    candidate->estimate_bytes = candidate->largest.n ? candidate->largest.bytes[0] : 0;
    if (candidate->estimate_bytes < candidate->bound_bytes)
        candidate->estimate_bytes = candidate->bound_bytes;
    return is_possible;
}
