/*
 * plan_stages.c - the table of a pipeline's ranks
 */
#include "plan_stages.h"
#include "plan/pipeline_cost.h"
#include "program/passes.h"
#include "report/table.h"

/* FLOPs of each pipeline rank, in the arena, as shares of the sum. */
static double *list_shares(const struct plan *plan, struct arena *arena)
{
    int n = plan->job->parallel.pp;
    double *flops = arena_array(arena, double, n), all = 0;

    for (int i = 0; i < n; i++)
        all += flops[i] = program_entry_flops(&plan->programs[i], ENTRY_STEP);
    for (int i = 0; i < n; i++)
        flops[i] /= all;
    return flops;
}

void plan_print_stages(const struct plan *plan, struct str *out)
{
    const struct job *job = plan->job;
    struct report_table table;
    struct arena arena = { 0 };
    double *shares = list_shares(plan, &arena), bubble;
    char text[32];
    struct err err;

    report_table_init(&table, "rlrr");
    report_table_heading(&table, "pipeline rank\tlayers\tmemory\twork");
    for (int i = 0; i < job->parallel.pp; i++) {
        struct str layers = { 0 };

        plan_list_layers(plan, i, &layers);
        report_table_row(&table, "%d\t%s\t%s\t%.1f %%", i, str_text(&layers),
                         str_bytes(text, sizeof text, program_memory_bytes(&plan->programs[i])),
                         100 * shares[i]);
        str_release(&layers);
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
    arena_release(&arena);
    if (!plan_bubble(plan, &bubble, &err))
        str_printf(out, "pipeline bubble: %.1f %% of a step (FLOP-weighted, transfers free)\n\n",
                   100 * bubble);
}

void plan_add_stages(const struct plan *plan, cJSON *json)
{
    struct arena arena = { 0 };
    double *shares = list_shares(plan, &arena), bubble;
    cJSON *stages = cJSON_AddArrayToObject(json, "stages");
    struct err err;

    for (int i = 0; i < plan->job->parallel.pp; i++) {
        cJSON *stage = cJSON_CreateObject();
        struct str layers = { 0 };

        plan_list_layers(plan, i, &layers);
        cJSON_AddStringToObject(stage, "layers", str_text(&layers));
        cJSON_AddNumberToObject(stage, "stage_bytes",
                                (double)program_memory_bytes(&plan->programs[i]));
        cJSON_AddNumberToObject(stage, "flops_share", shares[i]);
        cJSON_AddItemToArray(stages, stage);
        str_release(&layers);
    }
    if (!plan_bubble(plan, &bubble, &err))
        cJSON_AddNumberToObject(json, "bubble", bubble);
    arena_release(&arena);
}
