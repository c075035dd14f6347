/*
 * plan_stages.c - the table of a pipeline's ranks
 */
#include "plan_stages.h"
#include "plan/pipeline_cost.h"
#include "program/passes.h"
#include "report/table.h"

void plan_print_stages(const struct plan *plan, struct str *out)
{
    const struct job *job = plan->job;
    struct report_table table;
    struct arena arena = { 0 };
    double *flops = arena_array(&arena, double, job->parallel.pp), all = 0, bubble;
    char text[32];
    struct err err;

    for (int i = 0; i < job->parallel.pp; i++)
        all += flops[i] = program_entry_flops(&plan->programs[i], ENTRY_STEP);
    report_table_init(&table, "rlrr");
    report_table_heading(&table, "pipeline rank\tlayers\tmemory\twork");
    for (int i = 0; i < job->parallel.pp; i++) {
        struct str layers = { 0 };

        plan_list_layers(plan, i, &layers);
        report_table_row(&table, "%d\t%s\t%s\t%.1f %%", i, str_text(&layers),
                         str_bytes(text, sizeof text, program_memory_bytes(&plan->programs[i])),
                         100 * flops[i] / all);
        str_release(&layers);
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
    arena_release(&arena);
    if (!plan_bubble(plan, &bubble, &err))
        str_printf(out, "pipeline bubble: %.1f %% of a step (FLOP-weighted, transfers free)\n\n",
                   100 * bubble);
}
