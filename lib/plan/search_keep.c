/*
 * search_keep.c - what the layers of an estimated layout keep and compute again, and what leaves
 * the device, so that each pipeline rank fits
 *
 * By sums of layers' costs, and by few points of their fronts (keep_mix.h). The best layouts are
 * fitted by memory_fit.h afterwards, which says what of this is so.
 */
#include <limits.h>

#include "base/num.h"
#include "plan/search_impl.h"

bool search_is_free(const struct layout *l)
{
    return l->recompute == RECOMPUTE_AUTO;
}

/* A pipeline rank whose layers are chosen for. */
struct keeping_rank {
    const struct search *search;
    const struct keep_request *request;
    struct search_kinds kinds;
    int rank;
    struct layer_cost *stages; /* of all ranks */
    int **n_layers;            /* [chunk][kind] */
    struct mix_problem problem;
    struct mix_group *groups;
    int64_t cells; /* bytes of the rank that stay */
    struct arena *arena;
};

static struct layer_cost *stage_of(const struct keeping_rank *r, int chunk)
{
    return &r->stages[pipeline_stage_of(&r->request->pipeline->spec, r->rank, chunk)];
}

/* Costs of stages are with the first point of every layer. */
static void open_chunks(struct keeping_rank *r)
{
    const struct keep_request *q = r->request;
    const struct pipeline_spec *spec = &q->pipeline->spec;

    r->n_layers = arena_array(r->arena, int *, spec->n_chunks);
    for (int c = 0; c < spec->n_chunks; c++) {
        const struct layer_cost *cost = stage_of(r, c);
        int stage = pipeline_stage_of(spec, r->rank, c);
        int64_t slot = cost->slot_bytes, handed = cost->handed_bytes;

        r->n_layers[c] = arena_array(r->arena, int, r->kinds.n);
        for (int i = q->first[stage]; r->kinds.n && i < q->first[stage + 1]; i++) {
            const struct mix_point *first = &r->kinds.items[r->kinds.of_layer[i]].points[0];

            r->n_layers[c][r->kinds.of_layer[i]]++;
            slot -= first->slot_bytes;
            handed -= first->handed_bytes;
        }
        r->problem.slot_bytes = max_i64(r->problem.slot_bytes, slot + q->boundary_bytes);
        r->problem.handed_bytes = max_i64(r->problem.handed_bytes, handed);
        r->cells += cost->weight_bytes + cost->gradient_bytes + cost->state_bytes;
    }
}

/* The layers of a kind in their places: the first ones are in all chunks, the last ones in those
 * that have most. */
static void list_groups(struct keeping_rank *r)
{
    int n_chunks = r->request->pipeline->spec.n_chunks;

    r->groups = arena_array(r->arena, struct mix_group, n_chunks * r->kinds.n);
    r->problem.groups = r->groups;
    for (int k = 0; k < r->kinds.n; k++)
        for (int place = 0;;) {
            int n = 0, next = INT_MAX;

            for (int c = 0; c < n_chunks; c++)
                if (r->n_layers[c][k] > place) {
                    n++;
                    next = min_int(next, r->n_layers[c][k]);
                }
            if (!n)
                break;
            r->groups[r->problem.n_groups++] = (struct mix_group){ k, next - place, n };
            place = next;
        }
}

/* Groups of a kind come in the order of places. What is computed again is so in the gradient's
 * pass. */
static void take_mix(struct keeping_rank *r, const struct mix *mix)
{
    for (int c = 0; c < r->request->pipeline->spec.n_chunks; c++) {
        struct layer_cost *stage = stage_of(r, c);
        int place = 0, kind = -1;

        for (int g = 0; g < r->problem.n_groups; g++) {
            const struct mix_group *group = &r->groups[g];
            const struct mix_point *first = &r->kinds.items[group->kind].points[0];

            place = group->kind == kind ? place : 0;
            kind = group->kind;
            place += group->n_layers;
            if (r->n_layers[c][kind] < place)
                continue;
            stage->i += mix->sums[g].ns;
            stage->slot_bytes += mix->sums[g].slot_bytes - group->n_layers * first->slot_bytes;
            stage->handed_bytes +=
                mix->sums[g].handed_bytes - group->n_layers * first->handed_bytes;
        }
        stage->slot_bytes = max_i64(0, stage->slot_bytes);
        stage->handed_bytes = max_i64(0, stage->handed_bytes);
    }
}

/* Copies share the link that memory_fit.h counts with. */
static double link_ns(const struct search *search)
{
    const struct cluster *cluster = search->request->cluster;
    double rate = cluster->links.host_bandwidth > 0 ? cluster->links.host_bandwidth
                                                    : cluster->islands[0].device->host_link;

    return rate > 0 ? 1e9 / rate : 0;
}

static void send_away(const struct keeping_rank *r, int64_t wanted)
{
    int n_chunks = r->request->pipeline->spec.n_chunks;
    struct layer_cost **stages = arena_array(r->arena, struct layer_cost *, n_chunks);

    for (int c = 0; c < n_chunks; c++)
        stages[c] = stage_of(r, c);
    search_send_away(&(struct away_request){ .job = r->search->request->job,
                                             .stages = stages,
                                             .n_chunks = n_chunks,
                                             .n_slots = r->problem.n_slots,
                                             .link_ns = link_ns(r->search) },
                     wanted);
}

static void keep_of_rank(struct keeping_rank *r, int64_t *scratch_bytes)
{
    const struct keep_request *q = r->request;
    struct pipeline_slots peak = pipeline_peak(q->pipeline, r->rank);
    struct mix mix;

    r->cells = q->fixed_bytes - q->scratch_bytes;
    open_chunks(r);
    list_groups(r);
    r->problem.kinds = r->kinds.items;
    r->problem.n_kinds = r->kinds.n;
    r->problem.n_slots = peak.f_to_w;
    r->problem.n_handed = peak.i_to_w;
    r->problem.scratch_bytes = q->scratch_bytes;
    r->problem.available = (int64_t)search_available(r->search, q->mesh, r->rank) - r->cells;
    keep_mix(&mix, &r->problem, r->arena);
    take_mix(r, &mix);
    *scratch_bytes = mix.scratch_bytes;
    if (!mix.fits && r->search->request->job->memory.offload != OFFLOAD_NONE)
        send_away(r, mix.n_bytes - r->problem.available);
}

void search_keep(const struct search *search, const struct layout *l,
                 const struct keep_request *request, struct layer_cost *stages,
                 int64_t *scratch_bytes, struct arena *arena)
{
    for (int rank = 0; rank < l->pp; rank++) {
        int island = search_island(search, request->mesh, rank, request->replica);
        struct keeping_rank r = { .search = search,
                                  .kinds = search_is_free(l) ? search_kinds(search, l, island)
                                                             : (struct search_kinds){ 0 },
                                  .request = request,
                                  .rank = rank,
                                  .stages = stages,
                                  .arena = arena };

        keep_of_rank(&r, &scratch_bytes[rank]);
    }
}

/* ---- the least ---- */

void search_keep_least(const struct search *search, const struct layout *l,
                       const struct pipeline_spec *spec, const int *first,
                       struct layer_cost *stages)
{
    const struct mesh mesh = search_mesh(search, l);

    for (int s = 0; s < pipeline_n_stages(spec); s++) {
        if (search->request->job->memory.offload != OFFLOAD_NONE) {
            stages[s].weight_bytes = stages[s].gradient_bytes = stages[s].state_bytes = 0;
            stages[s].slot_bytes = 0;
        }
        if (!search_is_free(l))
            continue;
        int island = search_island(search, &mesh, pipeline_rank_of(spec, s), ALL_REPLICAS);
        struct search_kinds kinds = search_kinds(search, l, island);

        for (int i = first[s]; i < first[s + 1]; i++) {
            const struct mix_kind *kind = &kinds.items[kinds.of_layer[i]];
            int64_t least = kind->points[0].slot_bytes;

            for (int p = 1; p < kind->n_points; p++)
                least = min_i64(least, kind->points[p].slot_bytes);
            stages[s].slot_bytes -= kind->points[0].slot_bytes - least;
        }
        stages[s].slot_bytes = max_i64(0, stages[s].slot_bytes);
    }
}
