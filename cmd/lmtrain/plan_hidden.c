/*
 * plan_hidden.c - the sums of gradients of breadth-first pipelines, by chunk; recomputation before
 * the gradient is there, and weights that are gathered in the update, held against steps without
 */
#include "plan_hidden.h"

#include <stdbool.h>

#include "plan/gradient_sums.h"
#include "plan/programs.h"
#include "plan/step_time.h"
#include "plan_slices.h"

/* ---- sums of gradients ---- */

/* Whether chunks' sums have the backwards of other chunks to hide behind: breadth-first, late. */
static bool has_chunk_sums(const struct plan *plan)
{
    const struct job *job = plan->job;

    return job->parallel.schedule == PIPELINE_BREADTH_FIRST &&
           job->parallel.gradient_sum == GRADIENT_SUM_LATE && !job->parallel.compress &&
           !job->parallel.replica_micro_batches.n && job->parallel.dp * job->parallel.cp > 1;
}

/* Of the pipeline rank that waits longest for them. */
static int find_sums(struct gradient_sums *sums, const struct plan *plan,
                     const struct cluster *cluster, struct arena *arena, struct err *err)
{
    int n = plan->job->parallel.pp;
    struct step_replica all = { ALL_DATA_RANKS, plan->programs };
    const struct program **programs = arena_array(arena, const struct program *, n);
    struct simulated_step step;

    for (int rank = 0; rank < n; rank++)
        programs[rank] = &plan->programs[rank];
    struct simulate_watch watch = gradient_sums_watch(programs, n, arena);
    if (step_time_simulate(&step, plan->job, &all, 1, cluster, &watch, NULL, arena, err))
        return -1;
    *sums = gradient_sums_of(&watch, 0);
    for (int rank = 1; rank < n; rank++) {
        struct gradient_sums others = gradient_sums_of(&watch, rank);

        if (others.all_exposed > sums->all_exposed)
            *sums = others;
    }
    return 0;
}

/* "chunk 0's", "none": whose sums the rank waits for. */
static void print_exposed_chunks(const struct gradient_sums *sums, struct str *out)
{
    int n = 0;

    for (int chunk = 0; chunk < sums->n_chunks; chunk++)
        if (sums->exposed[chunk])
            str_printf(out, n++ ? ", %d" : "of chunk %d", chunk);
    if (!n)
        str_add(out, "of no chunk");
}

static void print_sums(const struct gradient_sums *sums, struct str *out)
{
    str_printf(out, "gradient sums: %d chunk%s, %.2f of %.2f ms exposed (", sums->n_chunks,
               str_s(sums->n_chunks), (double)sums->all_exposed / 1e6, (double)sums->all / 1e6);
    print_exposed_chunks(sums, out);
    str_printf(out, "; %.2f ms by Fold3D's formula)\n", (double)gradient_sums_formula(sums) / 1e6);
}

/* ---- recomputation ---- */

/* A step as planned, and one that recomputes nothing before its gradient is there. */
struct early {
    int n_layers;
    bool last_keeps, needs_cluster; /* the last stage has them kept; the job does not name prices */
    int64_t ns, ns_without;
    int64_t waits, waits_without; /* of the rank that is busiest as planned, for other stages */
    size_t n_bytes, n_bytes_without;
    int rank; /* of the pipeline */
};

static bool recomputes_early(const struct plan *plan)
{
    const struct job *job = plan->job;

    return job->parallel.pp > 1 &&
           (compile_early_layers(job) > 0 || job->memory.recompute_early_chosen) &&
           !job->parallel.replica_micro_batches.n &&
           (job->recompute != RECOMPUTE_NONE || job->recompute_layers.full.n ||
            job->recompute_layers.selective.n);
}

static int simulate_step(struct simulated_step *step, const struct plan *plan,
                         const struct program *programs, const struct cluster *cluster,
                         struct arena *arena, struct err *err)
{
    struct step_replica all = { ALL_DATA_RANKS, programs };

    return step_time_simulate(step, plan->job, &all, 1, cluster, NULL, NULL, arena, err);
}

/* A step as planned and one of another job, with the memory of the rank that is busiest as
 * planned. */
struct simulated_pair {
    struct simulated_step planned, other;
    size_t n_other_bytes;
};

static int simulate_pair(struct simulated_pair *pair, const struct plan *plan,
                         const struct job *job, const struct cluster *cluster, struct arena *arena,
                         struct err *err)
{
    int n = plan->job->parallel.pp;
    struct program *programs = arena_array(arena, struct program, n);
    int status = programs_compile_unverified(programs, job, plan->kernels, err);

    if (!status)
        status = simulate_step(&pair->planned, plan, plan->programs, cluster, arena, err);
    if (!status)
        status = simulate_step(&pair->other, plan, programs, cluster, arena, err);
    if (!status)
        pair->n_other_bytes = plan_needed_bytes(&programs[pair->planned.busiest], plan->kernels);
    for (int rank = 0; rank < n; rank++)
        program_release(&programs[rank]);
    return status;
}

static int find_early(struct early *early, const struct plan *plan, const struct cluster *cluster,
                      struct arena *arena, struct err *err)
{
    struct job without = *plan->job;
    struct simulated_pair pair;

    without.memory.recompute_early = 0;
    if (simulate_pair(&pair, plan, &without, cluster, arena, err) < 0)
        return -1;
    int rank = pair.planned.busiest;
    *early = (struct early){
        .n_layers = compile_early_layers(plan->job),
        .last_keeps = plan->job->parallel.schedule == PIPELINE_1F1B,
        .needs_cluster = plan->job->memory.recompute_early_chosen && !plan->job->cluster &&
                         !plan->job->searched.cluster,
        .ns = pair.planned.ns,
        .ns_without = pair.other.ns,
        .waits = pair.planned.ranks[rank].of[TIME_STAGES],
        .waits_without = pair.other.ranks[rank].of[TIME_STAGES],
        .n_bytes = plan_needed_bytes(&plan->programs[rank], plan->kernels),
        .n_bytes_without = pair.n_other_bytes,
        .rank = rank,
    };
    return 0;
}

static void print_early(const struct early *early, struct str *out)
{
    char more[32];
    size_t n_more =
        early->n_bytes > early->n_bytes_without ? early->n_bytes - early->n_bytes_without : 0;

    if (!early->n_layers) {
        str_add(out, "recomputed before the gradient arrives: nothing, which takes least time\n");
        return;
    }
    str_printf(out,
               "recomputed before the gradient arrives: %d layer%s of a stage%s; a step takes %.2f "
               "instead of %.2f ms, of which pipeline rank %d waits %.2f instead of %.2f ms for "
               "other stages; %s more memory\n",
               early->n_layers, str_s(early->n_layers),
               early->last_keeps ? " (the last one keeps them)" : "", (double)early->ns / 1e6,
               (double)early->ns_without / 1e6, early->rank, (double)early->waits / 1e6,
               (double)early->waits_without / 1e6, str_bytes(more, sizeof more, n_more));
    if (early->needs_cluster)
        str_add(out, "(a run does so if the job has the key cluster)\n");
}

/* ---- gathers of updated weights ---- */

/* A step as planned, and one that gathers all weights at its front. */
struct gathers {
    int n_ahead, n; /* buckets of the rank, and all that it gathers */
    int64_t ns, ns_without;
    int64_t waits, waits_without; /* of the rank that is busiest as planned, for gathers */
    int rank;                     /* of the pipeline */
};

static int count_ahead(const struct program *program)
{
    int n = 0;

    for (int i = 0; i < program->n_buckets; i++)
        n += program->buckets[i].gathered_ahead;
    return n;
}

static int count_gathers(const struct program *program)
{
    const struct entry *gather = &program->entries[ENTRY_GATHER];

    return gather->n_actions ? program->functions[gather->actions[0].function].n_ops : 0;
}

static bool gathers_ahead(const struct plan *plan)
{
    return count_ahead(&plan->programs[0]) > 0 && !plan->job->parallel.replica_micro_batches.n;
}

static int find_gathers(struct gathers *gathers, const struct plan *plan,
                        const struct cluster *cluster, struct arena *arena, struct err *err)
{
    struct job without = *plan->job;
    struct simulated_pair pair;

    without.parallel.prefetch = 0;
    if (simulate_pair(&pair, plan, &without, cluster, arena, err) < 0)
        return -1;
    int rank = pair.planned.busiest;
    *gathers = (struct gathers){
        .n_ahead = count_ahead(&plan->programs[rank]),
        .n = count_gathers(&plan->programs[rank]),
        .ns = pair.planned.ns,
        .ns_without = pair.other.ns,
        .waits = pair.planned.ranks[rank].of[TIME_GATHERS],
        .waits_without = pair.other.ranks[rank].of[TIME_GATHERS],
        .rank = rank,
    };
    return 0;
}

static void print_gathers(const struct gathers *gathers, struct str *out)
{
    str_printf(out,
               "weights gathered in the update: %d of %d buckets; a step takes %.2f instead of "
               "%.2f ms, of which pipeline rank %d waits %.2f instead of %.2f ms for gathers\n",
               gathers->n_ahead, gathers->n, (double)gathers->ns / 1e6,
               (double)gathers->ns_without / 1e6, gathers->rank, (double)gathers->waits / 1e6,
               (double)gathers->waits_without / 1e6);
}

/* ---- all ---- */

struct hidden {
    struct gradient_sums sums;
    struct early early;
    struct gathers gathers;
    bool has_sums, has_early, has_gathers;
};

static int find_hidden(struct hidden *h, const struct plan *plan, const struct cluster *cluster,
                       struct arena *arena, struct err *err)
{
    h->has_sums = has_chunk_sums(plan);
    h->has_early = recomputes_early(plan);
    h->has_gathers = gathers_ahead(plan);
    if ((h->has_sums && find_sums(&h->sums, plan, cluster, arena, err)) ||
        (h->has_early && find_early(&h->early, plan, cluster, arena, err)) ||
        (h->has_gathers && find_gathers(&h->gathers, plan, cluster, arena, err)))
        return -1;
    return 0;
}

int plan_print_hidden(const struct plan *plan, const struct cluster *cluster, struct str *out,
                      struct err *err)
{
    struct arena arena = { 0 };
    struct hidden h;

    plan_print_slices(plan, out);
    int status = find_hidden(&h, plan, cluster, &arena, err);
    if (!status && h.has_sums)
        print_sums(&h.sums, out);
    if (!status && h.has_early)
        print_early(&h.early, out);
    if (!status && h.has_gathers)
        print_gathers(&h.gathers, out);
    arena_release(&arena);
    return status;
}

static void add_sums(const struct gradient_sums *sums, cJSON *json)
{
    cJSON *made = cJSON_AddObjectToObject(json, "gradient_sums");
    cJSON *chunks = cJSON_AddArrayToObject(made, "chunks");

    cJSON_AddNumberToObject(made, "ns", (double)sums->all);
    cJSON_AddNumberToObject(made, "exposed_ns", (double)sums->all_exposed);
    cJSON_AddNumberToObject(made, "formula_ns", (double)gradient_sums_formula(sums));
    for (int i = 0; i < sums->n_chunks; i++) {
        cJSON *chunk = cJSON_CreateObject();

        cJSON_AddNumberToObject(chunk, "ns", (double)sums->sums[i]);
        cJSON_AddNumberToObject(chunk, "exposed_ns", (double)sums->exposed[i]);
        cJSON_AddItemToArray(chunks, chunk);
    }
}

static void add_early(const struct early *early, cJSON *json)
{
    cJSON *made = cJSON_AddObjectToObject(json, "recompute_early");

    cJSON_AddNumberToObject(made, "layers", early->n_layers);
    cJSON_AddNumberToObject(made, "step_ns", (double)early->ns);
    cJSON_AddNumberToObject(made, "step_ns_without", (double)early->ns_without);
    cJSON_AddNumberToObject(made, "stages_ns", (double)early->waits);
    cJSON_AddNumberToObject(made, "stages_ns_without", (double)early->waits_without);
    cJSON_AddNumberToObject(made, "needed_bytes", (double)early->n_bytes);
    cJSON_AddNumberToObject(made, "needed_bytes_without", (double)early->n_bytes_without);
}

static void add_gathers(const struct gathers *gathers, cJSON *json)
{
    cJSON *made = cJSON_AddObjectToObject(json, "gathers_ahead");

    cJSON_AddNumberToObject(made, "buckets", gathers->n_ahead);
    cJSON_AddNumberToObject(made, "all_buckets", gathers->n);
    cJSON_AddNumberToObject(made, "step_ns", (double)gathers->ns);
    cJSON_AddNumberToObject(made, "step_ns_without", (double)gathers->ns_without);
    cJSON_AddNumberToObject(made, "gathers_ns", (double)gathers->waits);
    cJSON_AddNumberToObject(made, "gathers_ns_without", (double)gathers->waits_without);
}

int plan_add_hidden(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                    struct err *err)
{
    struct arena arena = { 0 };
    struct hidden h;

    plan_add_slices(plan, json);
    int status = find_hidden(&h, plan, cluster, &arena, err);
    if (!status && h.has_sums)
        add_sums(&h.sums, json);
    if (!status && h.has_early)
        add_early(&h.early, json);
    if (!status && h.has_gathers)
        add_gathers(&h.gathers, json);
    arena_release(&arena);
    return status;
}
