/*
 * plan_slices.c - the table of sites, those that follow each other and are alike in one row
 */
#include "plan_slices.h"

#include <stdbool.h>
#include <stdio.h>

#include "program/passes.h"
#include "report/table.h"

static int64_t exposed(int64_t ns, const struct slice_site *site)
{
    return ns > site->compute_ns ? ns - site->compute_ns : 0;
}

static bool are_alike(const struct slice_site *a, const struct slice_site *b)
{
    return a->function == b->function && a->n_slices == b->n_slices &&
           a->has_sequences == b->has_sequences && a->has_experts == b->has_experts &&
           a->has_ring == b->has_ring && a->ns == b->ns && a->whole_ns == b->whole_ns;
}

/* How many sites from here on are alike. */
static int count_alike(const struct slice_site *site)
{
    int n = 1;

    for (const struct slice_site *next = site->next; next && are_alike(site, next);
         next = next->next)
        n++;
    return n;
}

static void print_row(struct report_table *table, const struct program *p,
                      const struct slice_site *site, int n)
{
    char slices[48], layer[16] = "-";

    snprintf(slices, sizeof slices, "%s", site->has_ring ? "not cut: a ring" : "not cut");
    if (site->n_slices > 1)
        snprintf(slices, sizeof slices, "%d%s", site->n_slices,
                 site->has_experts     ? " of experts"
                 : site->has_sequences ? " of whole sequences"
                                       : " of tokens");
    if (site->layer >= 0)
        snprintf(layer, sizeof layer, "%d", site->layer);
    report_table_row(
        table, "%s\t%s\t%d\t%s\t%.4g\t%.4g\t%.4g\t%.4g", p->functions[site->function].name, layer,
        n, slices, (double)site->compute_ns / 1e6, (double)site->moved_ns / 1e6,
        (double)exposed(site->whole_ns, site) / 1e6, (double)exposed(site->ns, site) / 1e6);
}

void plan_print_slices(const struct plan *plan, struct str *out)
{
    const struct program *p = &plan->programs[0];
    struct report_table table;

    if (!p->slice_sites)
        return;
    report_table_init(&table, "lrrlrrrr");
    report_table_heading(&table, "overlap, ms\tlayer\tsites\tslices\tcompute\tmoved\t"
                                 "exposed uncut\texposed");
    for (const struct slice_site *site = p->slice_sites; site;) {
        int n = count_alike(site);

        print_row(&table, p, site, n);
        for (int i = 0; i < n; i++)
            site = site->next;
    }
    report_table_print(&table, 0, out);
    if (!plan->job->cluster && !plan->job->searched.cluster)
        str_add(out, "(a run cuts so if the job has the key cluster)\n");
    str_add_char(out, '\n');
    report_table_release(&table);
}

void plan_add_slices(const struct plan *plan, cJSON *json)
{
    const struct program *p = &plan->programs[0];
    cJSON *list = p->slice_sites ? cJSON_AddArrayToObject(json, "slices") : NULL;

    for (const struct slice_site *site = p->slice_sites; site; site = site->next) {
        cJSON *made = cJSON_CreateObject();

        cJSON_AddStringToObject(made, "function", p->functions[site->function].name);
        cJSON_AddNumberToObject(made, "layer", site->layer);
        cJSON_AddNumberToObject(made, "slices", site->n_slices);
        cJSON_AddBoolToObject(made, "of_sequences", site->has_sequences);
        cJSON_AddBoolToObject(made, "of_experts", site->has_experts);
        cJSON_AddBoolToObject(made, "ring", site->has_ring);
        cJSON_AddNumberToObject(made, "compute_ns", (double)site->compute_ns);
        cJSON_AddNumberToObject(made, "moved_ns", (double)site->moved_ns);
        cJSON_AddNumberToObject(made, "exposed_uncut_ns", (double)exposed(site->whole_ns, site));
        cJSON_AddNumberToObject(made, "exposed_ns", (double)exposed(site->ns, site));
        cJSON_AddItemToArray(list, made);
    }
}
