/*
 * changes.c - see the header
 */
#include "plan/changes.h"

#include <string.h>

static bool has_layers(const struct job *job)
{
    return job->recompute_layers.full.n || job->recompute_layers.selective.n;
}

/* Of all layers. */
static bool change_recompute(struct job *job, enum recompute_mode to)
{
    bool is_auto = job->recompute == RECOMPUTE_AUTO, is_chosen = is_auto && job->keep_sets.sets;
    bool is_full = job->recompute == RECOMPUTE_FULL || job->recompute_layers.full.n || is_chosen;
    bool is_any = (job->recompute != RECOMPUTE_NONE && !is_auto) || has_layers(job) || is_chosen;

    if (to == RECOMPUTE_SELECTIVE ? !is_full : !is_any)
        return false;
    job->recompute = to;
    job->recompute_ops = (struct bitset){ { 0 } };
    memset(&job->recompute_layers, 0, sizeof job->recompute_layers);
    job->keep_sets = (struct layer_keep_sets){ NULL, NULL };
    return true;
}

/* Stages and counts of replicas are of one layout. */
static bool halve(struct job *job, int *degree)
{
    if (*degree % 2 || job->parallel.stages.n || job->parallel.replica_micro_batches.n ||
        job->parallel.zero_group)
        return false;
    *degree /= 2;
    job->parallel.dp *= 2;
    job->parallel.dp_given = 1;
    if (job->parallel.pp == 1) {
        job->parallel.schedule = PIPELINE_1F1B;
        job->parallel.chunks = 1;
    }
    return true;
}

static bool change_micro_batch(struct job *job)
{
    if (job->parallel.micro_batches.n || job->parallel.replica_micro_batches.n ||
        job->n_micro_batches % 2)
        return false;
    job->train.micro_batch *= 2;
    return true;
}

static bool apply(struct job *job, enum change change)
{
    switch (change) {
    case CHANGE_SELECTIVE:
        return change_recompute(job, RECOMPUTE_SELECTIVE);
    case CHANGE_KEEP_ALL:
        return change_recompute(job, RECOMPUTE_NONE);
    case CHANGE_ZERO:
        job->parallel.zero--;
        return job->parallel.zero >= 0 && job->parallel.dp > 1;
    case CHANGE_MICRO_BATCH:
        return change_micro_batch(job);
    case CHANGE_TP:
        return halve(job, &job->parallel.tp);
    default:
        return halve(job, &job->parallel.pp);
    }
}

bool changes_make(struct job *changed, const struct job *job, enum change change,
                  struct arena *arena)
{
    struct err err;

    *changed = *job;
    return apply(changed, change) && !job_resolve(changed, job->world_size, arena, &err);
}

static void add_number(struct str *out, size_t begin, const char *key, int from, int to)
{
    if (from != to)
        str_printf(out, "%s%s: %d", out->length > begin ? " with " : "", key, to);
}

void changes_describe(const struct job *from, const struct job *to, struct str *out)
{
    size_t begin = out->length;

    add_number(out, begin, "parallel.tp", from->parallel.tp, to->parallel.tp);
    add_number(out, begin, "parallel.pp", from->parallel.pp, to->parallel.pp);
    add_number(out, begin, "parallel.cp", from->parallel.cp, to->parallel.cp);
    add_number(out, begin, "parallel.zero", from->parallel.zero, to->parallel.zero);
    if (to->recompute != from->recompute || has_layers(to) != has_layers(from))
        str_printf(out, "%srecompute: %s", out->length > begin ? " with " : "",
                   choice_word(recompute_choices, (int)to->recompute));
    if (to->train.gradient_dtype != from->train.gradient_dtype)
        str_printf(out, "%strain.gradient_dtype: %s", out->length > begin ? " with " : "",
                   dtype_name(to->train.gradient_dtype));
    if (to->optimizer.masters != from->optimizer.masters)
        str_printf(out, "%soptimizer.masters: %s", out->length > begin ? " with " : "",
                   choice_word(job_masters_choices, (int)to->optimizer.masters));
    if (to->optimizer.weight_rounding != from->optimizer.weight_rounding)
        str_printf(out, " with optimizer.weight_rounding: %s",
                   choice_word(job_weight_rounding_choices, (int)to->optimizer.weight_rounding));
    if (to->memory.offload != from->memory.offload)
        str_printf(out, "%smemory.offload: %s", out->length > begin ? " with " : "",
                   choice_word(offload_choices, (int)to->memory.offload));
    add_number(out, begin, "train.micro_batch", from->train.micro_batch, to->train.micro_batch);
    add_number(out, begin, "ranks", from->world_size, to->world_size);
}
