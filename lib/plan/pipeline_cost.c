/*
 * pipeline_cost.c - layers by the parameters that a program has; the bubble by simulating the
 * schedule with its FLOPs
 */
#include "plan/pipeline_cost.h"

#include <stdbool.h>
#include <string.h>

#include "config/parameters.h"
#include "layout/pipeline.h"

/* Whether the stage has the parameter, and not a copy of another's. */
static bool has_weight(const struct program *p, enum module_id module, int layer)
{
    char name[PARAMETER_NAME_MAX];

    parameters_name(name, (struct parameter_id){ module, PART_WEIGHT, layer });
    for (int i = 0; i < p->n_parameters; i++)
        if (!strcmp(p->parameters[i].name, name))
            return !p->parameters[i].is_copy;
    return false;
}

void plan_list_layers(const struct plan *plan, int pp_rank, struct str *out)
{
    const struct program *p = &plan->programs[pp_rank];
    int n_layers = plan->job->model.n_layers;
    struct arena arena = { 0 };
    char *has = arena_array(&arena, char, n_layers + 1);

    for (int i = 0; i < n_layers; i++)
        has[i] = (char)has_weight(p, MODULE_ATTENTION_NORM, i);
    if (has_weight(p, MODULE_EMBEDDING, LAYER_BEFORE))
        str_add(out, "embedding");
    for (int i = 0; i < n_layers; i++) {
        int end = i;

        while (has[i] && has[end + 1])
            end++;
        if (has[i])
            str_printf(out, end > i ? "%s%d-%d" : "%s%d", out->length ? ", " : "", i, end);
        i = end;
    }
    if (has_weight(p, MODULE_FINAL_NORM, n_layers))
        str_add(out, out->length ? ", head" : "head");
    arena_release(&arena);
}

/* FLOPs of the first micro-batch by the stage's F, I and W; of a sequence, where sizes are
 * given. */
static void add_costs(const struct plan *plan, const struct pipeline_spec *spec, int rank,
                      int64_t *costs[3])
{
    const struct program *p = &plan->programs[rank];
    const struct entry *step = &p->entries[ENTRY_STEP];

    for (int i = 0; i < step->n_actions; i++) {
        const struct action *a = &step->actions[i];

        if (a->kind != ACTION_RUN || a->micro_batch)
            continue;
        const struct function *f = &p->functions[a->function];
        int stage = pipeline_stage_of(spec, rank, f->chunk);
        for (int k = 0; k < f->n_ops; k++) {
            struct op_shape shape = program_op_shape(p, &f->ops[k]);
            int which = f->ops[k].phase == PHASE_F ? 0 : f->ops[k].phase == PHASE_W ? 2 : 1;

            costs[which][stage] += (int64_t)op_flops(&shape);
        }
    }
    for (int chunk = 0; spec->sizes && chunk < spec->n_chunks; chunk++)
        for (int which = 0; which < 3; which++)
            costs[which][pipeline_stage_of(spec, rank, chunk)] /= spec->sizes[0];
}

/* Costs are divided by a constant if a step's FLOPs exceed the range of times. */
static void scale_costs(const struct pipeline_spec *spec, int64_t *costs[3])
{
    double total = 0, most = (double)(INT64_MAX / 4);
    int n = pipeline_n_stages(spec);
    int64_t n_sequences = spec->n_micro_batches;

    for (int m = 0; spec->sizes && m < spec->n_micro_batches; m++)
        n_sequences += spec->sizes[m] - 1;
    for (int i = 0; i < 3 * n; i++)
        total += (double)n_sequences * (double)costs[i / n][i % n];
    for (int i = 0; i < 3 * n && total > most; i++)
        costs[i / n][i % n] /= 1 + (int64_t)(total / most);
}

int plan_bubble(const struct plan *plan, double *bubble, struct err *err)
{
    const struct job *job = plan->job;
    struct pipeline_spec spec = { .kind = job->parallel.schedule,
                                  .n_ranks = job->parallel.pp,
                                  .n_chunks = job->parallel.chunks ? job->parallel.chunks : 1,
                                  .n_micro_batches = job->n_micro_batches,
                                  .sizes = job->parallel.micro_batches.values };
    struct arena arena = { 0 };
    struct pipeline pipeline;
    struct pipeline_timing timing;
    int64_t *costs[3];

    for (int i = 0; i < 3; i++)
        costs[i] = arena_array(&arena, int64_t, pipeline_n_stages(&spec));
    for (int rank = 0; rank < spec.n_ranks; rank++)
        add_costs(plan, &spec, rank, costs);
    scale_costs(&spec, costs);
    struct pipeline_costs all = { costs[0], costs[1], costs[2], 0, spec.sizes };
    int status = pipeline_build(&pipeline, &spec, &arena, err);
    if (!status)
        status = pipeline_simulate(&timing, &pipeline, &all, &arena, err);
    if (!status)
        *bubble = (double)timing.bubble / (double)timing.span;
    arena_release(&arena);
    return status;
}
