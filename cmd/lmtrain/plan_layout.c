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

/* ", cp 8 gather", ", cp 8 ulysses 2 x gather 4" */
static void print_context(const struct job *job, struct str *out)
{
    struct context_cut cut = job_context_cut(job);

    str_printf(out, ", cp %d ", job->parallel.cp);
    if (job->parallel.cp_sizes.ulysses)
        str_printf(out, "ulysses %d x ", cut.ulysses);
    str_add(out, choice_word(cp_kind_choices, (int)job->parallel.cp_kind));
    if (job->parallel.cp_sizes.ulysses)
        str_printf(out, " %d", cut.keys);
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
    if (job->parallel.ep > 1)
        str_printf(out, ", ep %d", job->parallel.ep);
    if (job->parallel.tp > 1)
        str_printf(out, ", tp %d%s", job->parallel.tp,
                   job->parallel.sequence_parallel ? " with sequence parallel" : "");
    if (job->parallel.cp > 1)
        print_context(job, out);
    if (job->parallel.pp > 1)
        print_pipeline(job, out);
    if (job->parallel.order != ORDER_STAGES)
        str_printf(out, " in the order %s",
                   choice_word(rank_order_choices, (int)job->parallel.order));
    if (job->parallel.zero)
        str_printf(out, ", zero %d", job->parallel.zero);
    if (job->parallel.zero_group)
        str_printf(out, " in groups of %d", job->parallel.zero_group);
    if (job->parallel.zero == 3)
        str_printf(out, " hold %s", choice_word(hold_choices, (int)job->parallel.hold));
}

static void print_recomputed_layers(const char *word, const struct job_counts *layers,
                                    struct str *out)
{
    if (layers->n)
        str_printf(out, ", %s in ", word);
    for (int i = 0; i < layers->n; i++)
        str_printf(out, i ? "+%d" : "%d", layers->values[i]);
    if (layers->n)
        str_add(out, " layers");
}

void plan_print_recompute(const struct job *job, struct str *out)
{
    int n = 0;

    if (job->recompute != RECOMPUTE_LIST)
        str_add(out, choice_word(recompute_choices, (int)job->recompute));
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (bitset_has(&job->recompute_ops, kind))
            str_printf(out, n++ ? ", %s" : "%s", op_info((enum op_kind)kind)->name);
    print_recomputed_layers("full", &job->recompute_layers.full, out);
    print_recomputed_layers("selective", &job->recompute_layers.selective, out);
}

/* "recompute_layers.full" is in an object; what is of parallel or train is not. */
static cJSON *object_of(enum layout_key key, cJSON *json)
{
    static const char group[] = "recompute_layers";

    if (!str_starts_with(layout_field(key), group))
        return json;
    cJSON *object = cJSON_GetObjectItem(json, group);
    return object ? object : cJSON_AddObjectToObject(json, group);
}

/* As a job has it: {"ulysses": 2, "gather": 4}. */
static void add_cp_sizes(const struct layout *layout, const char *word, cJSON *json)
{
    cJSON *object = cJSON_AddObjectToObject(json, layout_word(LAYOUT_CP_KIND));

    cJSON_AddNumberToObject(object, "ulysses", layout->cp_sizes.ulysses);
    cJSON_AddNumberToObject(object, word, layout->cp_sizes.keys);
}

void plan_add_layout_keys(const struct layout *layout, cJSON *json)
{
    for (int i = 0; i < N_LAYOUT_KEYS; i++) {
        enum layout_key key = (enum layout_key)i;
        const struct job_counts *list = layout_list(layout, key);
        const char *word = layout_value_word(key, layout_value(layout, key)),
                   *name = layout_word(key);

        if ((key == LAYOUT_HOLD && layout->zero < 3) || (key == LAYOUT_CP_KIND && layout->cp == 1))
            continue;
        if (key == LAYOUT_CP_KIND && layout->cp_sizes.ulysses)
            add_cp_sizes(layout, word, json);
        else if (word)
            cJSON_AddStringToObject(json, name, word);
        else if (!list)
            cJSON_AddNumberToObject(json, name, layout_value(layout, key));
        else if (list->n)
            cJSON_AddItemToObject(object_of(key, json), name,
                                  cJSON_CreateIntArray(list->values, list->n));
    }
}

void plan_add_layout(const struct job *job, cJSON *json)
{
    cJSON *object = cJSON_AddObjectToObject(json, "layout");
    const struct layout layout = layout_of_job(job);
    struct str recompute = { 0 };

    plan_add_layout_keys(&layout, object);
    cJSON_AddBoolToObject(object, "sequence_parallel",
                          job->parallel.tp > 1 && job->parallel.sequence_parallel);
    plan_print_recompute(job, &recompute);
    cJSON_ReplaceItemInObject(object, "recompute", cJSON_CreateString(str_text(&recompute)));
    str_release(&recompute);
}
