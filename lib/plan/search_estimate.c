/*
 * search_estimate.c - the time and the bytes of one layout through its pipeline's lists
 */
#include "base/num.h"
#include "plan/search_impl.h"
#include "plan/step_time.h"

/* Micro-batches that are simulated for each pipeline rank; those between are as long as these. */
#define ROUNDS 8

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
            const struct layer_cost *to = split[s]->layers[i];
            const struct layer_cost *from = whole[s]->layers[i];

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

/* A replica's pipeline: its lists for so many micro-batches, its stages. */
struct replica_model {
    struct mesh mesh;
    struct pipeline pipeline;
    struct layer_cost *stages;
    struct boundary boundary;
    int64_t fixed_bytes, scratch_bytes; /* of each rank; the second is a part of the first */
    int64_t *own_scratch_bytes;         /* [pp] in its place */
};

/* The end of the step: each rank's last step, then what it does once. */
static int64_t time_pipeline(const struct replica_model *r, const struct pipeline *pipeline)
{
    struct arena arena = { 0 };
    int n = pipeline_n_stages(&pipeline->spec);
    int64_t *f = arena_array(&arena, int64_t, n), *i = arena_array(&arena, int64_t, n);
    int64_t *w = arena_array(&arena, int64_t, n), end = 0;
    struct pipeline_costs costs = { .f = f, .i = i, .w = w, .transfer = r->boundary.ns };
    struct pipeline_timing timing;
    struct err err;

    for (int s = 0; s < n; s++) {
        f[s] = r->stages[s].f;
        i[s] = r->stages[s].i;
        w[s] = r->stages[s].w;
    }
    CHECK(!pipeline_simulate(&timing, pipeline, &costs, &arena, &err));
    for (int rank = 0; rank < pipeline->spec.n_ranks; rank++)
        end = max_i64(end,
                      timing.ranks[rank].last_end + once_of_rank(&pipeline->spec, r->stages, rank));
    arena_release(&arena);
    return end;
}

static void build(struct pipeline *pipeline, struct pipeline_spec spec, int n_micro_batches,
                  struct arena *arena)
{
    struct err err;

    spec.n_micro_batches = n_micro_batches;
    CHECK(!pipeline_build(pipeline, &spec, arena, &err));
}

/* What layers keep, if that is to be chosen. */
static void choose_kept(struct replica_model *r, const struct search *search,
                        const struct layout *l, int replica, const int *first, struct arena *arena)
{
    r->own_scratch_bytes = arena_array(arena, int64_t, l->pp);
    for (int rank = 0; rank < l->pp; rank++)
        r->own_scratch_bytes[rank] = r->scratch_bytes;
    if (search_is_fitted(search, l))
        search_keep(search, l,
                    &(struct keep_request){ .pipeline = &r->pipeline,
                                            .mesh = &r->mesh,
                                            .replica = replica,
                                            .first = first,
                                            .fixed_bytes = r->fixed_bytes,
                                            .scratch_bytes = r->scratch_bytes,
                                            .boundary_bytes = r->boundary.bytes },
                    r->stages, r->own_scratch_bytes, arena);
}

/* Costs of all stages of a replica with all that the layout has. Returns whether the layout is
 * possible. */
static bool model_replica(struct replica_model *r, struct search *search, const struct layout *l,
                          int replica, struct arena *arena)
{
    const struct pipeline_spec *spec = &r->pipeline.spec;
    bool is_split = search_has_split_backward(spec->kind);
    const struct layer_costs **all =
        search_list_costs(search, l, spec, ALL_REPLICAS, COSTS_BASE, arena);
    const struct layer_costs **base =
        search_list_costs(search, l, spec, replica, COSTS_BASE, arena);
    const struct layer_costs **whole =
        search_list_costs(search, l, spec, replica, COSTS_WHOLE, arena);
    const struct layer_costs **split =
        is_split ? search_list_costs(search, l, spec, replica, COSTS_SPLIT, arena) : whole;

    if (!all || !base || !whole || !split)
        return false;
    const int *first = search_cut(search, l, spec, all, arena);
    if (!first)
        return false;
    r->mesh = search_mesh(search, l);
    r->boundary = spec->n_ranks > 1 ? find_boundary(search, l) : (struct boundary){ 0, 0 };
    r->fixed_bytes = whole[0]->fixed_bytes;
    r->scratch_bytes = whole[0]->scratch_bytes;
    r->stages = search_list_stages(search, whole, first, spec, arena);
    if (is_split)
        split_costs(whole, split, first, pipeline_n_stages(spec), r->stages);
    raise_costs(r->stages, search_list_stages(search, base, first, spec, arena),
                pipeline_n_stages(spec));
    choose_kept(r, search, l, replica, first, arena);
    return true;
}

static void note_bytes(const struct search *search, const struct replica_model *r,
                       struct largest_ranks *largest)
{
    struct largest_ranks of_replica = { .n = 0 };

    for (int rank = 0; rank < r->pipeline.spec.n_ranks; rank++) {
        size_t n_bytes = (size_t)(r->fixed_bytes - r->scratch_bytes + r->own_scratch_bytes[rank]) +
                         search_bytes_of_rank(&r->pipeline, r->stages, r->boundary.bytes, rank);

        search_note_largest(&of_replica, rank, search_scale_bytes(search, &r->mesh, rank, n_bytes));
    }
    if (!largest->n || largest->bytes[0] < of_replica.bytes[0])
        *largest = of_replica;
}

/* Raise the candidate's estimates to what a replica with so many micro-batches, or, for
 * ALL_REPLICAS, the slowest devices of all, come to. */
static bool estimate_replica(struct search *search, struct layout_candidate *candidate, int replica,
                             int n_micro_batches)
{
    struct pipeline_spec spec = search_spec(candidate);
    int p = spec.n_ranks, rounds = max_int(0, n_micro_batches / p - ROUNDS);
    struct arena scratch = { 0 };
    struct replica_model r;

    build(&r.pipeline, spec, n_micro_batches - rounds * p, &scratch);
    bool is_possible = model_replica(&r, search, &candidate->layout, replica, &scratch);
    if (is_possible) {
        int64_t ns = time_pipeline(&r, &r.pipeline);

        if (rounds > 0) {
            struct pipeline shorter;

            build(&shorter, spec, n_micro_batches - (rounds + 1) * p, &scratch);
            ns += rounds * (ns - time_pipeline(&r, &shorter));
        }
        candidate->estimate_ns = max_i64(ns, candidate->estimate_ns);
        note_bytes(search, &r, &candidate->largest);
    }
    arena_release(&scratch);
    return is_possible;
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
