/*
 * search_job.c - what a job's keys leave open
 */
#include "plan/search_job.h"

#include "base/str.h"
#include "plan/fit.h"

bool search_is_wanted(const struct job *job)
{
    return job->parallel.mode != PARALLEL_MANUAL;
}

static unsigned open_keys(const struct job *job)
{
    unsigned keys = 0;

    for (int key = 0; key < N_LAYOUT_KEYS; key++)
        keys |= (unsigned)layout_is_open(job, (enum layout_key)key) << key;
    return keys;
}

static unsigned list_schedules(const struct job *job)
{
    unsigned schedules = 0;

    if (!job->search.listed)
        return 1U << PIPELINE_1F1B | 1U << PIPELINE_INTERLEAVED | 1U << PIPELINE_ZB_V;
    for (int kind = 0; kind < N_PIPELINE_KINDS; kind++)
        if (bitset_has(&job->search.schedules, kind))
            schedules |= 1U << kind;
    return schedules;
}

void search_print_degrees(const struct layout *l, struct str *out)
{
    str_printf(out, "tp %d, pp %d, dp %d", l->tp, l->pp, l->dp);
    if (l->cp > 1)
        str_printf(out, ", cp %d", l->cp);
    if (l->ep > 1)
        str_printf(out, ", ep %d", l->ep);
    str_printf(out, ", zero %d, recompute %s", l->zero,
               choice_word(recompute_choices, (int)l->recompute));
}

static int refuse_misfit(const struct search_result *result, const struct job *job, int n_ranks,
                         const struct cluster *cluster, struct err *err)
{
    char needed[32], available[32];
    struct str degrees = { 0 };

    search_print_degrees(&result->smallest, &degrees);
    err_set(err, ERR_CONFIG,
            "%s: none of %d layouts of %d ranks fits %s: the smallest (%s) needs %s a rank of %s "
            "(hint: more ranks%s, or a smaller model)",
            job->source, result->n_layouts, n_ranks, cluster->islands[0].device->name,
            str_text(&degrees), str_bytes(needed, sizeof needed, result->smallest_bytes),
            str_bytes(available, sizeof available, result->available),
            result->smallest.micro_batch > 1 ? ", a smaller train.micro_batch" : "");
    str_release(&degrees);
    return -1;
}

/* ---- sequences that are divided ---- */

static bool may_divide(const struct search_request *request)
{
    const struct job *job = request->job;
    bool is_one = job->train.micro_batch == 1 || layout_is_open(job, LAYOUT_MICRO_BATCH);

    return layout_is_open(job, LAYOUT_CP) && is_one && job->data.seq_len >= PLAN_LONG_SEQUENCE;
}

/* The better of two results: what fits, then the less time, or what needs less. */
static bool is_better(const struct search_result *a, const struct search_result *b)
{
    if (a->n_rows && b->n_rows)
        return search_cost(&a->rows[0]) < search_cost(&b->rows[0]);
    return a->n_rows || (!b->n_rows && a->smallest_bytes < b->smallest_bytes);
}

/* As search_layouts, over the number of ranks among which to divide sequences that is the best;
 * status: of the search without. */
static int search_divided(struct search_result *result, struct search_request request, int status,
                          struct arena *arena)
{
    struct job divided = *request.job;
    struct search_result found;
    struct err ignored;

    request.job = &divided;
    for (int cp = 2; cp <= request.n_ranks; cp *= 2) {
        divided.parallel.cp = cp;
        if ((!request.may_idle && request.n_ranks % cp) ||
            search_layouts(&found, &request, arena, &ignored))
            continue;
        int n_layouts = found.n_layouts + (status ? 0 : result->n_layouts);
        if (status || is_better(&found, result))
            *result = found;
        result->n_layouts = n_layouts;
        status = 0;
    }
    return status;
}

int search_job(struct search_result *result, struct job *job, int n_ranks, int n_rows,
               const struct cluster *cluster, struct kernels *kernels, struct pool *pool,
               struct arena *arena, struct err *err)
{
    struct search_request request = { .job = job,
                                      .kernels = kernels,
                                      .pool = pool,
                                      .cluster = cluster,
                                      .n_ranks = n_ranks,
                                      .may_idle = job->search.allow_idle,
                                      .keys = open_keys(job),
                                      .schedules = list_schedules(job),
                                      .max_tp = job->search.max_tp,
                                      .memory_share = job->search.memory_share,
                                      .within = job->search.within,
                                      .may_move = true,
                                      .objective = job->search.objective,
                                      .n_rows = n_rows };

    int status = search_layouts(result, &request, arena, err);
    if (may_divide(&request) && (status || !result->n_rows))
        status = search_divided(result, request, status, arena);
    if (status)
        return -1;
    if (!result->n_rows)
        return refuse_misfit(result, job, n_ranks, cluster, err);
    layout_apply(job, &result->rows[0].layout);
    job->parallel.mode = PARALLEL_MANUAL;
    return 0;
}
