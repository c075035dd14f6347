/*
 * search_costs.c - which costs of layers a layout's stages have, and their sums
 */
#include <string.h>

#include "base/num.h"
#include "plan/islands.h"
#include "plan/search_impl.h"

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

struct layer_cost search_ends_of_stage(const struct search *search,
                                       const struct layer_costs *const *costs,
                                       const struct pipeline_spec *spec, int stage)
{
    bool is_piped = spec->n_ranks > 1, is_first = stage == 0;
    bool is_last = stage + 1 == pipeline_n_stages(spec);

    /* One rank with several stages has both ends once. */
    if (is_piped ? !is_first && !is_last : !is_last)
        return (struct layer_cost){ 0 };
    return end_of(costs[stage], is_first || !is_piped, is_last || !is_piped,
                  search->request->job->model.tied_embeddings && is_piped);
}

static struct layer_cost cost_of_stage(const struct search *search,
                                       const struct layer_costs *const *costs, const int *first,
                                       const struct pipeline_spec *spec, int stage)
{
    struct layer_cost sum = search_ends_of_stage(search, costs, spec, stage);

    for (int i = first[stage]; i < first[stage + 1]; i++)
        search_add_cost(&sum, costs[stage]->layers[i]);
    return sum;
}

struct pipeline_spec search_spec(const struct layout_candidate *c)
{
    return (struct pipeline_spec){ .kind = c->layout.pp == 1 ? PIPELINE_1F1B : c->layout.schedule,
                                   .n_ranks = c->layout.pp,
                                   .n_chunks = c->layout.pp == 1 ? 1 : c->layout.chunks,
                                   .n_micro_batches = c->n_micro_batches };
}

/* ---- keys ---- */

static struct layer_key key_of(const struct layout *l, int island)
{
    struct layer_key key = { 0 };

    key.tp = l->tp;
    key.dp = l->dp;
    key.ep = l->ep;
    key.zero = l->zero;
    key.zero_group = l->zero_group;
    key.bucket_mb = l->bucket_mb;
    key.micro_batch = l->micro_batch;
    key.recompute = search_is_free(l) ? RECOMPUTE_NONE : l->recompute;
    key.hold = l->hold;
    key.island = island;
    return key;
}

bool search_has_split_backward(enum pipeline_kind kind)
{
    return kind == PIPELINE_ZB_H1 || kind == PIPELINE_ZB_H2 || kind == PIPELINE_ZB_V;
}

static struct layer_key key_of_costs(const struct search *search, const struct layout *l,
                                     int island, enum cost_kind kind)
{
    struct layer_key key = key_of(l, island);

    key.is_split = kind == COSTS_SPLIT;
    if (kind == COSTS_BASE) {
        key.dp = key.ep;
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

int search_island(const struct search *search, const struct mesh *mesh, int pp_rank, int replica)
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
        is_like = search_island(search, &mesh, rank, replica) ==
                  search_island(search, &mesh, rank, other);
    return is_like;
}

const struct layer_costs **search_list_costs(struct search *search, const struct layout *l,
                                             const struct pipeline_spec *spec, int replica,
                                             enum cost_kind kind, struct arena *arena)
{
    int n = pipeline_n_stages(spec);
    const struct layer_costs **costs = arena_array(arena, const struct layer_costs *, n);
    const struct mesh mesh = search_mesh(search, l);

    for (int i = 0; i < n; i++) {
        int island = search_island(search, &mesh, pipeline_rank_of(spec, i), replica);

        costs[i] = find_costs(search, l, island, kind);
        if (!costs[i]->is_possible)
            return NULL;
    }
    return costs;
}

struct key_list {
    struct layer_key *keys;
    int n, capacity;
    struct arena arena;
};

/* By rank and not by stage: a rank's stages are on the same devices. */
static void add_keys(struct search *search, const struct layout *l, enum cost_kind kind,
                     struct key_list *list)
{
    const struct mesh mesh = search_mesh(search, l);

    for (int rank = 0; rank < l->pp; rank++) {
        int island = search_island(search, &mesh, rank, ALL_REPLICAS);
        struct layer_key key = key_of_costs(search, l, island, kind);
        bool is_new = true;

        for (int i = list->n - 1; i >= 0 && is_new; i--)
            is_new = memcmp(&list->keys[i], &key, sizeof key) != 0;
        if (is_new) {
            list->keys = arena_grow(&list->arena, list->keys, sizeof *list->keys, &list->capacity,
                                    list->n + 1);
            list->keys[list->n++] = key;
        }
        if (search->request->cluster->n_islands == 1)
            return;
    }
}

void search_prepare(struct search *search, const struct layout_candidate *candidates, int n,
                    bool for_bounds)
{
    struct key_list list = { .n = 0 };

    for (int i = 0; i < n; i++) {
        const struct layout *l = &candidates[i].layout;
        bool is_split = search_has_split_backward(search_spec(&candidates[i]).kind);

        add_keys(search, l, for_bounds ? COSTS_BASE : COSTS_WHOLE, &list);
        if (is_split && !for_bounds)
            add_keys(search, l, COSTS_SPLIT, &list);
    }
    layer_costs_prepare(&search->costs, list.keys, list.n);
    search_prepare_fronts(search, candidates, n);
    arena_release(&list.arena);
}

/* ---- stages from keys ---- */

struct layer_cost *search_list_stages(const struct search *search,
                                      const struct layer_costs *const *costs, const int *first,
                                      const struct pipeline_spec *spec, struct arena *arena)
{
    int n = pipeline_n_stages(spec);
    struct layer_cost *stages = arena_array(arena, struct layer_cost, n);

    for (int i = 0; i < n; i++)
        stages[i] = cost_of_stage(search, costs, first, spec, i);
    return stages;
}

/* The cut is by the slowest devices. */
struct layer_cost *search_base_stages(struct search *search, const struct layout *l,
                                      const struct pipeline_spec *spec, int replica,
                                      struct arena *arena)
{
    const struct layer_costs **all =
        search_list_costs(search, l, spec, ALL_REPLICAS, COSTS_BASE, arena);
    const struct layer_costs **own = search_list_costs(search, l, spec, replica, COSTS_BASE, arena);

    if (!all || !own)
        return NULL;
    const int *first = search_cut(search, l, spec, all, arena);
    return first ? search_list_stages(search, own, first, spec, arena) : NULL;
}
