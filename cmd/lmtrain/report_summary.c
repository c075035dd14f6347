/*
 * report_summary.c - see the header
 */
#include "report_summary.h"

#include <stdio.h>

#include "ops/op_info.h"
#include "report/table.h"

static double in_ms(double ns)
{
    return ns / 1e6;
}

static const struct op *op_of(const struct timeline_difference *d)
{
    return &d->program->functions[d->function].ops[d->op];
}

/* ---- tables ---- */

static int64_t beside_of(const struct timeline_total *total)
{
    int64_t ns = 0;

    for (int i = 0; i < N_TIME_CLASSES; i++)
        ns += total->beside[i];
    return ns;
}

static void print_totals(const struct timeline_summary *s, struct str *out)
{
    struct report_table table;

    report_table_init(&table, "rrrlrrrrrrrrrr");
    report_table_heading(&table,
                         "step\trank\tstage\tms\tstep\tcompute\ttensor\tgradients\tgathers\t"
                         "copies\tstages\tissue\tidle\tbeside");
    for (int i = 0; i < s->n_totals; i++) {
        const struct timeline_total *t = &s->totals[i];

        report_table_row(
            &table, "%lld\t%d\t%d\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f",
            (long long)t->step, t->rank, t->stage, t->is_measured ? "measured" : "predicted",
            in_ms((double)t->ns), in_ms((double)t->compute), in_ms((double)t->of[TIME_TENSOR]),
            in_ms((double)t->of[TIME_GRADIENTS]), in_ms((double)t->of[TIME_GATHERS]),
            in_ms((double)t->of[TIME_COPIES]),
            in_ms((double)(t->of[TIME_STAGES] + t->of[TIME_TRANSFERS])),
            in_ms((double)t->of[TIME_ISSUE]), in_ms((double)t->idle), in_ms((double)beside_of(t)));
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
    str_add(out,
            "tensor to copies: collectives and copies that are waited for; stages: waiting for "
            "other stages, with transfers;\nbeside: what runs beside compute, waited for or "
            "not\n");
}

static void print_differences(const struct timeline_summary *s, struct str *out)
{
    struct report_table table;

    if (!s->n_differences)
        return;
    str_add(out, "\n");
    report_table_init(&table, "llrrrrr");
    report_table_heading(&table, "op\tof\tstage\truns\tpredicted\tmeasured\tdifference");
    for (int i = 0; i < s->n_differences; i++) {
        const struct timeline_difference *d = &s->differences[i];
        const struct op *op = op_of(d);
        char layer[16] = "";

        if (op->layer >= 0)
            snprintf(layer, sizeof layer, " L%d", op->layer);
        report_table_row(&table, "%s%s\t%s\t%d\t%d\t%.3f ms\t%.3f ms\t%+.3f ms", op_name(op->kind),
                         layer, d->program->functions[d->function].name, d->stage, d->n_runs,
                         in_ms(d->predicted_ns), in_ms(d->measured_ns),
                         in_ms(d->measured_ns - d->predicted_ns));
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

static void print_slowest(const struct timeline_summary *s, struct str *out)
{
    for (int i = 0; i < s->n_slowest; i++) {
        const struct timeline_slowest *w = &s->slowest[i];

        str_printf(out,
                   "%sstage %d, step %lld: rank %d computes longest, %.2f ms, %+.1f %% of the "
                   "median of %d other%s",
                   i ? "" : "\n", w->stage, (long long)w->step, w->rank, in_ms((double)w->compute),
                   w->peers ? 100 * ((double)w->compute / (double)w->peers - 1) : 0, w->n_peers,
                   w->n_peers == 1 ? "" : "s");
        if (w->more)
            str_printf(out, "; most of it in %s: %+.2f ms", time_class_name(w->class),
                       in_ms((double)w->more));
        str_add(out, "\n");
    }
}

/* What the step waits for in the end, where it is more than a hundredth of it. */
static void print_paths(const struct timeline_summary *s, struct str *out)
{
    for (int i = 0; i < s->n_paths; i++) {
        const struct critical_path *p = &s->paths[i];

        str_printf(out, "%scritical path of step %lld, %s, %.2f ms:", i ? "" : "\n",
                   (long long)p->step, p->is_measured ? "measured" : "predicted",
                   in_ms((double)p->ns));
        for (int class = 0; class < N_TIME_CLASSES; class ++)
            if (p->of[class] * 100 > p->ns)
                str_printf(out, " %s %.2f,", time_class_name((enum time_class) class),
                           in_ms((double)p->of[class]));
        str_printf(out, " idle %.2f; it goes %d time%s from a rank to another\n",
                   in_ms((double)p->idle), p->n_changes, str_s(p->n_changes));
    }
}

void report_summary_print(const struct timeline_summary *summary, struct str *out)
{
    print_totals(summary, out);
    print_differences(summary, out);
    print_slowest(summary, out);
    print_paths(summary, out);
}

/* ---- JSON ---- */

static void add_classes(cJSON *json, const char *name, const int64_t of[N_TIME_CLASSES])
{
    cJSON *classes = cJSON_AddObjectToObject(json, name);

    for (int i = 0; i < N_TIME_CLASSES; i++)
        cJSON_AddNumberToObject(classes, time_class_name((enum time_class)i), (double)of[i]);
}

static cJSON *total_json(const struct timeline_total *t)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "step", (double)t->step);
    cJSON_AddNumberToObject(json, "rank", t->rank);
    cJSON_AddNumberToObject(json, "stage", t->stage);
    cJSON_AddStringToObject(json, "kind", t->is_measured ? "measured" : "predicted");
    cJSON_AddNumberToObject(json, "step_ns", (double)t->ns);
    cJSON_AddNumberToObject(json, "compute_ns", (double)t->compute);
    cJSON_AddNumberToObject(json, "exposed_ns", (double)t->exposed);
    cJSON_AddNumberToObject(json, "waits_ns", (double)t->waits);
    cJSON_AddNumberToObject(json, "idle_ns", (double)t->idle);
    add_classes(json, "ns", t->of);
    add_classes(json, "beside_ns", t->beside);
    return json;
}

static cJSON *difference_json(const struct timeline_difference *d)
{
    const struct op *op = op_of(d);
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "name", op_name(op->kind));
    cJSON_AddNumberToObject(json, "layer", op->layer);
    cJSON_AddNumberToObject(json, "stage", d->stage);
    cJSON_AddStringToObject(json, "function", d->program->functions[d->function].name);
    cJSON_AddNumberToObject(json, "op", d->op);
    cJSON_AddNumberToObject(json, "runs", d->n_runs);
    cJSON_AddNumberToObject(json, "predicted_ns", d->predicted_ns);
    cJSON_AddNumberToObject(json, "measured_ns", d->measured_ns);
    return json;
}

static cJSON *slowest_json(const struct timeline_slowest *w)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "stage", w->stage);
    cJSON_AddNumberToObject(json, "step", (double)w->step);
    cJSON_AddNumberToObject(json, "rank", w->rank);
    cJSON_AddNumberToObject(json, "peers", w->n_peers);
    cJSON_AddNumberToObject(json, "compute_ns", (double)w->compute);
    cJSON_AddNumberToObject(json, "peers_compute_ns", (double)w->peers);
    if (w->more) {
        cJSON_AddStringToObject(json, "most_in", time_class_name(w->class));
        cJSON_AddNumberToObject(json, "more_ns", (double)w->more);
    }
    return json;
}

static cJSON *path_json(const struct critical_path *p, const struct timeline_summary *s)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "step", (double)p->step);
    cJSON_AddStringToObject(json, "kind", p->is_measured ? "measured" : "predicted");
    cJSON_AddNumberToObject(json, "step_ns", (double)p->ns);
    cJSON_AddNumberToObject(json, "idle_ns", (double)p->idle);
    cJSON_AddNumberToObject(json, "unexplained_ns", (double)p->unexplained);
    cJSON_AddNumberToObject(json, "changes", p->n_changes);
    add_classes(json, "ns", p->of);
    cJSON *bounds = cJSON_AddObjectToObject(json, "bound_ns");
    for (int i = 0; i < N_PRICE_BOUNDS && !p->is_measured; i++)
        cJSON_AddNumberToObject(bounds, price_bound_name((enum price_bound)i), (double)p->bound[i]);
    cJSON *ranks = cJSON_AddArrayToObject(json, "ranks_ns");
    for (int i = 0; i < s->n_totals; i++) {
        if (!p->ranks[i])
            continue;
        cJSON *rank = cJSON_CreateObject();

        cJSON_AddNumberToObject(rank, "rank", s->totals[i].rank);
        cJSON_AddNumberToObject(rank, "ns", (double)p->ranks[i]);
        cJSON_AddItemToArray(ranks, rank);
    }
    return json;
}

cJSON *report_summary_json(const struct timeline_summary *summary)
{
    cJSON *json = cJSON_CreateObject();
    cJSON *ranks = cJSON_AddArrayToObject(json, "ranks");
    cJSON *ops = cJSON_AddArrayToObject(json, "ops");
    cJSON *slowest = cJSON_AddArrayToObject(json, "slowest");
    cJSON *paths = cJSON_AddArrayToObject(json, "critical_paths");

    for (int i = 0; i < summary->n_totals; i++)
        cJSON_AddItemToArray(ranks, total_json(&summary->totals[i]));
    for (int i = 0; i < summary->n_differences; i++)
        cJSON_AddItemToArray(ops, difference_json(&summary->differences[i]));
    for (int i = 0; i < summary->n_slowest; i++)
        cJSON_AddItemToArray(slowest, slowest_json(&summary->slowest[i]));
    for (int i = 0; i < summary->n_paths; i++)
        cJSON_AddItemToArray(paths, path_json(&summary->paths[i], summary));
    return json;
}
