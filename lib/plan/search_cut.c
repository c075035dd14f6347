/*
 * search_cut.c - which layers each stage of a layout has: cut alike, or by the speed of its devices
 */
#include "base/num.h"
#include "model/compile.h"
#include "plan/fit.h"
#include "plan/islands.h"
#include "plan/partition.h"
#include "plan/search_impl.h"

void search_add_cost(struct layer_cost *sum, const struct layer_cost *c)
{
    sum->f += c->f;
    sum->i += c->i;
    sum->w += c->w;
    sum->once += c->once;
    sum->weight_bytes += c->weight_bytes;
    sum->gradient_bytes += c->gradient_bytes;
    sum->state_bytes += c->state_bytes;
    sum->slot_bytes += c->slot_bytes;
    sum->handed_bytes += c->handed_bytes;
}

/* Alike: as equal as possible in multiplications. */
static const int *cut_alike(struct search *search, int n_stages)
{
    const struct job *job = search->request->job;
    const int **first = &search->cuts[n_stages];
    struct arena scratch = { 0 };
    struct err err;

    if (*first)
        return *first;
    int *counts = arena_array(&scratch, int, n_stages);
    int *made = arena_array(search->arena, int, n_stages + 1);
    if (!model_cut_stages(&job->model, job->data.seq_len, n_stages, counts, &scratch, &err)) {
        for (int i = 0; i < n_stages; i++)
            made[i + 1] = made[i] + counts[i];
        *first = made;
    }
    arena_release(&scratch);
    return *first;
}

/* ---- stages on devices that differ ---- */

/* Bytes of cells with what ZeRO leaves of them. */
size_t search_least_cells(const struct layout *l, const struct layer_cost *c)
{
    int64_t d = l->zero_group ? l->zero_group : l->dp;

    return (size_t)(c->weight_bytes / (l->zero > 2 ? d : 1) +
                    c->gradient_bytes / (l->zero > 1 ? d : 1) +
                    c->state_bytes / (l->zero > 0 ? d : 1));
}

struct uneven_cut {
    const struct layer_costs *const *costs;
    const struct layer_cost **before; /* by stage: what the first 0, 1, .. layers take together */
    const struct layout *layout;
    const size_t *available; /* bytes, by stage; NULL: memory does not count */
    int n_stages, n_micro_batches;
};

/* A micro-batch of these layers on the stage's devices. */
static int64_t cost_of_cut(void *context, const struct partition_stage *s, int n_behind)
{
    const struct uneven_cut *u = context;
    bool is_last = s->device + 1 == u->n_stages;
    const struct layer_cost *a = &u->before[s->device][s->begin];
    const struct layer_cost *b = &u->before[s->device][s->end];
    struct layer_cost sum = { .weight_bytes = b->weight_bytes - a->weight_bytes,
                              .gradient_bytes = b->gradient_bytes - a->gradient_bytes,
                              .state_bytes = b->state_bytes - a->state_bytes,
                              .slot_bytes = b->slot_bytes - a->slot_bytes };
    int64_t ns = b->f + b->i + b->w - (a->f + a->i + a->w);

    /* Of 1F1B, a stage keeps one micro-batch more than the stage behind it. */
    int alive = min_int(n_behind + 1, u->n_micro_batches);
    if (u->available && search_least_cells(u->layout, &sum) + (size_t)(alive * sum.slot_bytes) >
                            u->available[s->device])
        return PARTITION_NEVER;
    if (is_last) {
        const struct layer_cost *ends = &u->costs[s->device]->ends;

        ns += ends->f + ends->i + ends->w;
    }
    return ns;
}

/* Stages on devices of one kind share a list. */
static void list_before(struct uneven_cut *u, int n_layers, struct arena *arena)
{
    u->before = arena_array(arena, const struct layer_cost *, u->n_stages);
    for (int s = 0; s < u->n_stages; s++) {
        for (int t = 0; t < s && !u->before[s]; t++)
            u->before[s] = u->costs[t] == u->costs[s] ? u->before[t] : NULL;
        if (u->before[s])
            continue;
        struct layer_cost *before = arena_array(arena, struct layer_cost, n_layers + 1);
        for (int i = 0; i < n_layers; i++) {
            before[i + 1] = before[i];
            search_add_cost(&before[i + 1], u->costs[s]->layers[i]);
        }
        u->before[s] = before;
    }
}

/* What each stage's devices have. */
static const size_t *list_available(const struct search *search, const struct layout *l,
                                    const struct pipeline_spec *spec, struct arena *arena)
{
    const struct search_request *r = search->request;
    const struct mesh mesh = search_mesh(search, l);
    int n_stages = pipeline_n_stages(spec);
    size_t *available = arena_array(arena, size_t, n_stages);

    for (int i = 0; i < n_stages; i++)
        available[i] = plan_available_bytes(
            islands_smallest(r->cluster, mesh_stage_ranks(&mesh, pipeline_rank_of(spec, i))),
            r->memory_share);
    return available;
}

/* The cut whose slowest stage is fastest, of those that fit if a rank has one stage; where none
 * does, of all. NULL: none is possible. */
static const int *cut_uneven(struct search *search, const struct layout *l,
                             const struct pipeline_spec *spec,
                             const struct layer_costs *const *costs)
{
    struct uneven_cut uneven = { .costs = costs,
                                 .layout = l,
                                 .n_stages = pipeline_n_stages(spec),
                                 .n_micro_batches = spec->n_micro_batches };
    struct partition_problem problem = { .n_layers = search->request->job->model.n_layers,
                                         .n_devices = uneven.n_stages,
                                         .most_per_stage = 1,
                                         .is_monotone = true,
                                         .cost = cost_of_cut,
                                         .context = &uneven };
    struct partition partition;
    struct arena scratch = { 0 };
    int *first = NULL;

    list_before(&uneven, problem.n_layers, &scratch);
    uneven.available = spec->n_chunks == 1 ? list_available(search, l, spec, &scratch) : NULL;
    partition_find(&partition, &problem, &scratch);
    if (!partition.n && uneven.available) {
        uneven.available = NULL;
        partition_find(&partition, &problem, &scratch);
    }
    if (partition.n == uneven.n_stages) {
        first = arena_array(search->arena, int, uneven.n_stages + 1);
        for (int i = 0; i < uneven.n_stages; i++)
            first[i + 1] = partition.stages[i].end;
    }
    arena_release(&scratch);
    return first;
}

/* First layers of the stages [n + 1]; NULL: not possible. */
const int *search_cut(struct search *search, const struct layout *l,
                      const struct pipeline_spec *spec, const struct layer_costs *const *base,
                      struct arena *arena)
{
    int n = pipeline_n_stages(spec);

    if (!l->stages.n)
        return search->are_alike || n == 1 ? cut_alike(search, n)
                                           : cut_uneven(search, l, spec, base);
    int *first = arena_array(arena, int, n + 1);
    for (int i = 0; i < n; i++)
        first[i + 1] = first[i] + l->stages.values[i];
    return first;
}

/* The layout has its cut, if it is not what compiling a job does by itself. */
void search_keep_cut(struct search *search, struct layout *l, const int *first, int n)
{
    if (search->are_alike || n == 1 || l->stages.n)
        return;
    int *counts = arena_array(search->arena, int, n);
    for (int i = 0; i < n; i++)
        counts[i] = first[i + 1] - first[i];
    l->stages = (struct job_counts){ counts, n };
}
