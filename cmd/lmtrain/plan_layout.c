/*
 * plan_layout.c - the layout of a job as text and as JSON
 */
#include "plan_layout.h"

#include "ops/op_info.h"

static void print_pipeline(const struct job *job, struct str *out)
{
    str_printf(out, ", pp %d %s", job->parallel.pp, pipeline_name(job->parallel.schedule));
    if (job->parallel.chunks > 1)
        str_printf(out, " of %d chunks", job->parallel.chunks);
    for (int i = 0; i < job->parallel.stages.n; i++)
        str_printf(out, i ? "+%d" : " of %d", job->parallel.stages.values[i]);
    if (job->parallel.stages.n)
        str_add(out, " layers");
}

void plan_print_layout(const struct job *job, struct str *out)
{
    const struct job_counts *counts = &job->parallel.replica_micro_batches;

    str_printf(out, "dp %d", job->parallel.dp);
    for (int i = 0, n; i < counts->n; i += n) {
        for (n = 1; i + n < counts->n && counts->values[i + n] == counts->values[i];)
            n++;
        str_printf(out, i ? " + %d x %d" : " of %d x %d", n, counts->values[i]);
    }
    if (counts->n)
        str_add(out, " micro-batches");
    if (job->parallel.tp > 1)
        str_printf(out, ", tp %d%s", job->parallel.tp,
                   job->parallel.sequence_parallel ? " with sequence parallel" : "");
    if (job->parallel.pp > 1)
        print_pipeline(job, out);
    if (job->parallel.zero)
        str_printf(out, ", zero %d", job->parallel.zero);
    if (job->parallel.zero_group)
        str_printf(out, " in groups of %d", job->parallel.zero_group);
    if (job->parallel.zero == 3)
        str_printf(out, " hold %s", choice_word(hold_choices, (int)job->parallel.hold));
}

void plan_print_recompute(const struct job *job, struct str *out)
{
    int n = 0;

    if (job->recompute != RECOMPUTE_LIST)
        str_add(out, choice_word(recompute_choices, (int)job->recompute));
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (bitset_has(&job->recompute_ops, kind))
            str_printf(out, n++ ? ", %s" : "%s", op_info((enum op_kind)kind)->name);
}

void plan_add_layout(const struct job *job, cJSON *json)
{
    cJSON *layout = cJSON_AddObjectToObject(json, "layout");
    struct str recompute = { 0 };

    cJSON_AddNumberToObject(layout, "dp", job->parallel.dp);
    cJSON_AddNumberToObject(layout, "tp", job->parallel.tp);
    cJSON_AddBoolToObject(layout, "sequence_parallel",
                          job->parallel.tp > 1 && job->parallel.sequence_parallel);
    cJSON_AddNumberToObject(layout, "pp", job->parallel.pp);
    cJSON_AddStringToObject(layout, "schedule", pipeline_name(job->parallel.schedule));
    cJSON_AddNumberToObject(layout, "chunks", job->parallel.chunks);
    if (job->parallel.replica_micro_batches.n)
        cJSON_AddItemToObject(layout, "replica_micro_batches",
                              cJSON_CreateIntArray(job->parallel.replica_micro_batches.values,
                                                   job->parallel.replica_micro_batches.n));
    if (job->parallel.stages.n)
        cJSON_AddItemToObject(
            layout, "stages",
            cJSON_CreateIntArray(job->parallel.stages.values, job->parallel.stages.n));
    cJSON_AddNumberToObject(layout, "zero", job->parallel.zero);
    cJSON_AddNumberToObject(layout, "zero_group", job->parallel.zero_group);
    if (job->parallel.zero == 3)
        cJSON_AddStringToObject(layout, "hold", choice_word(hold_choices, (int)job->parallel.hold));
    cJSON_AddNumberToObject(layout, "bucket_mb", job->parallel.bucket_mb);
    cJSON_AddNumberToObject(layout, "micro_batch", job->train.micro_batch);
    plan_print_recompute(job, &recompute);
    cJSON_AddStringToObject(layout, "recompute", str_text(&recompute));
    str_release(&recompute);
}
