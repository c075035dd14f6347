/*
 * job_layout.c - the table of a layout's fields
 */
#include "config/job_layout.h"

#include <stddef.h>
#include <string.h>

#include "config/fields_impl.h"

#define IN_JOB(member) offsetof(struct job, member)
#define IN_LAYOUT(member) offsetof(struct layout, member)

static const struct layout_row {
    const char *field;
    size_t in_job, in_layout; /* an int, an enum, or a struct job_counts */
    bool is_list;
    size_t given; /* in the job, an int that is 1 if the value is given; 0: none */
    bool is_kept; /* the job's, whatever parallel.mode is */
} rows[N_LAYOUT_KEYS] = {
    [LAYOUT_TP] = { "parallel.tp", IN_JOB(parallel.tp), IN_LAYOUT(tp), false, 0, false },
    [LAYOUT_PP] = { "parallel.pp", IN_JOB(parallel.pp), IN_LAYOUT(pp), false, 0, false },
    [LAYOUT_DP] = { "parallel.dp", IN_JOB(parallel.dp), IN_LAYOUT(dp), false,
                    IN_JOB(parallel.dp_given), false },
    [LAYOUT_CP] = { "parallel.cp", IN_JOB(parallel.cp), IN_LAYOUT(cp), false, 0, false },
    [LAYOUT_CP_KIND] = { "parallel.cp_kind", IN_JOB(parallel.cp_kind), IN_LAYOUT(cp_kind), false, 0,
                         true },
    [LAYOUT_EP] = { "parallel.ep", IN_JOB(parallel.ep), IN_LAYOUT(ep), false, 0, false },
    [LAYOUT_CHUNKS] = { "parallel.chunks", IN_JOB(parallel.chunks), IN_LAYOUT(chunks), false,
                        IN_JOB(parallel.chunks_given), false },
    [LAYOUT_SCHEDULE] = { "parallel.schedule", IN_JOB(parallel.schedule), IN_LAYOUT(schedule),
                          false, 0, false },
    [LAYOUT_ZERO] = { "parallel.zero", IN_JOB(parallel.zero), IN_LAYOUT(zero), false, 0, false },
    [LAYOUT_ZERO_GROUP] = { "parallel.zero_group", IN_JOB(parallel.zero_group),
                            IN_LAYOUT(zero_group), false, 0, false },
    [LAYOUT_HOLD] = { "parallel.hold", IN_JOB(parallel.hold), IN_LAYOUT(hold), false, 0, false },
    [LAYOUT_BUCKET] = { "parallel.bucket_mb", IN_JOB(parallel.bucket_mb), IN_LAYOUT(bucket_mb),
                        false, 0, false },
    [LAYOUT_RECOMPUTE] = { "recompute", IN_JOB(recompute), IN_LAYOUT(recompute), false, 0, false },
    [LAYOUT_MICRO_BATCH] = { "train.micro_batch", IN_JOB(train.micro_batch), IN_LAYOUT(micro_batch),
                             false, 0, false },
    [LAYOUT_ORDER] = { "parallel.order", IN_JOB(parallel.order), IN_LAYOUT(order), false, 0,
                       false },
    [LAYOUT_STAGES] = { "parallel.stages", IN_JOB(parallel.stages), IN_LAYOUT(stages), true, 0,
                        false },
    [LAYOUT_COUNTS] = { "parallel.replica_micro_batches", IN_JOB(parallel.replica_micro_batches),
                        IN_LAYOUT(counts), true, 0, false },
    [LAYOUT_FULL_LAYERS] = { "recompute_layers.full", IN_JOB(recompute_layers.full),
                             IN_LAYOUT(full_layers), true, 0, false },
    [LAYOUT_SELECTIVE_LAYERS] = { "recompute_layers.selective", IN_JOB(recompute_layers.selective),
                                  IN_LAYOUT(selective_layers), true, 0, false },
};

static size_t size_of(const struct layout_row *row)
{
    return row->is_list ? sizeof(struct job_counts) : sizeof(int);
}

const char *layout_field(enum layout_key key)
{
    return rows[key].field;
}

const char *layout_word(enum layout_key key)
{
    const char *dot = strrchr(rows[key].field, '.');

    return dot ? dot + 1 : rows[key].field;
}

const struct job_counts *layout_list(const struct layout *layout, enum layout_key key)
{
    if (!rows[key].is_list)
        return NULL;
    return (const struct job_counts *)(const void *)((const char *)layout + rows[key].in_layout);
}

int layout_value(const struct layout *layout, enum layout_key key)
{
    int value = 0;

    if (!rows[key].is_list)
        memcpy(&value, (const char *)layout + rows[key].in_layout, sizeof value);
    return value;
}

int layout_n_ranks(const struct layout *layout)
{
    return layout->tp * layout->pp * layout->dp * layout->cp;
}

static int compare_lists(const struct job_counts *a, const struct job_counts *b)
{
    for (int i = 0; i < a->n && i < b->n; i++)
        if (a->values[i] != b->values[i])
            return a->values[i] < b->values[i] ? -1 : 1;
    return (a->n > b->n) - (a->n < b->n);
}

int layout_compare(const struct layout *a, const struct layout *b)
{
    for (int i = 0; i < N_LAYOUT_KEYS; i++) {
        enum layout_key key = (enum layout_key)i;
        const struct job_counts *list = layout_list(a, key);
        int of_a = layout_value(a, key), of_b = layout_value(b, key);
        int order = list ? compare_lists(list, layout_list(b, key)) : (of_a > of_b) - (of_a < of_b);

        if (order)
            return order;
    }
    return 0;
}

struct layout layout_of_job(const struct job *job)
{
    struct layout layout = { .cp_sizes = job->parallel.cp_sizes };

    for (const struct layout_row *row = rows; row < rows + N_LAYOUT_KEYS; row++)
        memcpy((char *)&layout + row->in_layout, (const char *)job + row->in_job, size_of(row));
    return layout;
}

void layout_apply(struct job *job, const struct layout *layout)
{
    const int given = 1;

    job->parallel.cp_sizes = layout->cp_sizes;
    for (const struct layout_row *row = rows; row < rows + N_LAYOUT_KEYS; row++) {
        memcpy((char *)job + row->in_job, (const char *)layout + row->in_layout, size_of(row));
        if (row->given)
            memcpy((char *)job + row->given, &given, sizeof given);
    }
}

void layout_print_value(const struct job *job, enum layout_key key, struct str *out)
{
    field_print(field_find(rows[key].field), job, out);
}

const char *layout_value_word(enum layout_key key, int value)
{
    const struct field *field = field_find(rows[key].field);

    if (key == LAYOUT_RECOMPUTE && value == RECOMPUTE_LIST)
        return "list";
    return field->choices ? choice_word(field->choices, value) : NULL;
}

/* ---- the numerics ---- */

void layout_keep_numerics(struct job *job, const struct job *run, struct arena *arena)
{
    static const char kept[] = "the run";
    const char **places = arena_array(arena, const char *, n_job_fields);

    for (int i = 0; i < n_job_fields; i++) {
        const struct field *field = &job_fields[i];
        bool is_list = field->type == FIELD_COUNTS;

        places[i] = job->places ? job->places[i] : NULL;
        if (field->numerics.change != NUMERICS_LAYOUT || !field->numerics.place)
            continue;
        memcpy((char *)job + field->offset, (const char *)run + field->offset,
               is_list ? sizeof(struct job_counts) : sizeof(int));
        if (field->type == FIELD_SIZES)
            memcpy((char *)job + field->items_offset, (const char *)run + field->items_offset,
                   sizeof(struct cp_sizes));
        places[i] = kept;
    }
    job->parallel.dp_given = job->parallel.gradient_sum_given = 1;
    job->parallel.gradient_sum = job_gradient_sum(run, run->parallel.zero);
    job->search.micro_batch = SEARCH_MICRO_BATCH_FIXED;
    job->places = places;
}

/* ---- what parallel.mode leaves open ---- */

bool layout_is_open(const struct job *job, enum layout_key key)
{
    enum parallel_mode mode = job->parallel.mode;

    if (mode == PARALLEL_MANUAL || rows[key].is_list || rows[key].is_kept)
        return false;
    if (key == LAYOUT_MICRO_BATCH)
        return job->search.micro_batch == SEARCH_MICRO_BATCH_AUTO;
    if (mode == PARALLEL_DATA &&
        (key == LAYOUT_TP || key == LAYOUT_PP || key == LAYOUT_CP || key == LAYOUT_EP))
        return false;
    if (key == LAYOUT_EP && !job->model.n_experts)
        return false;
    /* Auto leaves it open, too. */
    if (key == LAYOUT_RECOMPUTE && job->recompute == RECOMPUTE_AUTO)
        return true;
    return !job_is_given(job, rows[key].field);
}

bool layout_is_unset(const struct job *job, const char *field)
{
    for (int key = 0; key < N_LAYOUT_KEYS; key++)
        if (!rows[key].is_list && key != LAYOUT_MICRO_BATCH && !strcmp(rows[key].field, field))
            return job->parallel.mode != PARALLEL_MANUAL && !job_is_given(job, field);
    return false;
}

bool layout_is_refused(enum parallel_mode mode, enum layout_key key)
{
    if (rows[key].is_list)
        return mode != PARALLEL_MANUAL;
    if (mode == PARALLEL_DATA)
        return key == LAYOUT_TP || key == LAYOUT_PP;
    if (key == LAYOUT_CP || key == LAYOUT_CP_KIND || key == LAYOUT_EP)
        return false;
    return mode == PARALLEL_AUTO && key != LAYOUT_MICRO_BATCH && key != LAYOUT_RECOMPUTE;
}
