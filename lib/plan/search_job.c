/*
 * search_job.c - what a job's keys leave open
 */
#include "plan/search_job.h"

#include "base/str.h"

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

static int refuse_misfit(const struct search_result *result, const struct job *job, int n_ranks,
                         const struct cluster *cluster, struct err *err)
{
    const struct layout *l = &result->smallest;
    char needed[32], available[32];

    return err_set(
        err, ERR_CONFIG,
        "%s: none of %d layouts of %d ranks fits %s: the smallest (tp %d, pp %d, dp %d, zero %d, "
        "recompute %s) needs %s a rank of %s (hint: more ranks%s, or a smaller model)",
        job->source, result->n_layouts, n_ranks, cluster->islands[0].device->name, l->tp, l->pp,
        l->dp, l->zero, choice_word(recompute_choices, (int)l->recompute),
        str_bytes(needed, sizeof needed, result->smallest_bytes),
        str_bytes(available, sizeof available, result->available),
        l->micro_batch > 1 ? ", a smaller train.micro_batch" : "");
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

    if (search_layouts(result, &request, arena, err))
        return -1;
    if (!result->n_rows)
        return refuse_misfit(result, job, n_ranks, cluster, err);
    layout_apply(job, &result->rows[0].layout);
    job->parallel.mode = PARALLEL_MANUAL;
    return 0;
}
