/*
 * plan_hidden.c - the sums of gradients of breadth-first pipelines, by chunk
 */
#include "plan_hidden.h"

#include "plan/gradient_sums.h"
#include "plan/step_time.h"

/* ---- sums of gradients ---- */

/* Whether chunks' sums have the backwards of other chunks to hide behind: breadth-first, late. */
static bool has_chunk_sums(const struct plan *plan)
{
    const struct job *job = plan->job;

    return job->parallel.schedule == PIPELINE_BREADTH_FIRST &&
           job->parallel.gradient_sum == GRADIENT_SUM_LATE &&
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
    str_printf(out, "gradient sums: %d chunk%s, %.4g of %.4g ms exposed (", sums->n_chunks,
               str_s(sums->n_chunks), (double)sums->all_exposed / 1e6, (double)sums->all / 1e6);
    print_exposed_chunks(sums, out);
    str_printf(out, "; at most %.4g ms by Fold3D's formula)\n",
               (double)gradient_sums_formula(sums) / 1e6);
}

int plan_print_hidden(const struct plan *plan, const struct cluster *cluster, struct str *out,
                      struct err *err)
{
    struct gradient_sums sums;
    struct arena arena = { 0 };
    int status = 0;

    if (has_chunk_sums(plan)) {
        status = find_sums(&sums, plan, cluster, &arena, err);
        if (!status)
            print_sums(&sums, out);
    }
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

int plan_add_hidden(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                    struct err *err)
{
    struct gradient_sums sums;
    struct arena arena = { 0 };
    int status = 0;

    if (has_chunk_sums(plan)) {
        status = find_sums(&sums, plan, cluster, &arena, err);
        if (!status)
            add_sums(&sums, json);
    }
    arena_release(&arena);
    return status;
}
