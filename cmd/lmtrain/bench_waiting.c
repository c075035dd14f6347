/*
 * bench_waiting.c - what measured steps waited for, of rank 0 and of each rank
 */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "bench_report.h"
#include "report/table.h"

static cJSON *exposed_json(enum op_kind kind, enum mesh_axis axis)
{
    cJSON *item = cJSON_CreateObject();

    cJSON_AddStringToObject(item, "op", op_name(kind));
    if (op_is_collective(kind))
        cJSON_AddStringToObject(item, "axis", axis_name(axis));
    return item;
}

void bench_add_waiting(const struct bench_report *r, cJSON *json)
{
    const struct bench *bench = r->bench;
    cJSON *own = cJSON_AddArrayToObject(json, "exposed");
    cJSON *ranks = cJSON_AddArrayToObject(json, "exposed_ranks");

    for (int i = 0; i < bench->n_exposed; i++) {
        cJSON *item = exposed_json(bench->exposed[i].kind, bench->exposed[i].axis);

        cJSON_AddNumberToObject(item, "seconds", bench->exposed[i].seconds);
        cJSON_AddItemToArray(own, item);
    }
    for (int i = 0; i < bench->n_exposed_rows; i++) {
        const struct bench_exposed_row *row = &bench->exposed_rows[i];
        cJSON *item = exposed_json(row->kind, row->axis);

        cJSON_AddItemToObject(item, "rank_seconds",
                              cJSON_CreateDoubleArray(row->seconds, r->job->world_size));
        cJSON_AddItemToArray(ranks, item);
    }
}

/* In all, and for what most: collectives that no computation hides. */
static void print_waiting(const struct bench *bench, struct str *out)
{
    enum { SHOWN = 5 };

    str_printf(out, "waiting       %.2f ms for collectives%s", bench->wait_seconds * 1e3,
               bench->n_exposed ? ": " : "");
    for (int i = 0; i < bench->n_exposed && i < SHOWN; i++) {
        const struct run_exposed *e = &bench->exposed[i];
        bool has_axis = op_is_collective(e->kind);

        str_printf(out, "%s%s%s%s %.2f", i ? ", " : "", op_name(e->kind), has_axis ? " over " : "",
                   has_axis ? axis_name(e->axis) : "", e->seconds * 1e3);
    }
    str_add(out, "\n");
}

/* A row a collective: of few ranks each, of many the least, the median and the most. */
static void print_exposed(const struct bench *bench, int n_ranks, struct str *out)
{
    enum { FEW = 8 };
    struct arena arena = { 0 };
    struct report_table table;
    struct str line = { 0 };

    report_table_init(&table, n_ranks > FEW ? "lrrrr" : "lrrrrrrrr");
    str_add(&line, "waiting for, ms");
    for (int rank = 0; rank < n_ranks && n_ranks <= FEW; rank++)
        str_printf(&line, "\trank %d", rank);
    report_table_heading(&table, "%s%s", str_text(&line),
                         n_ranks > FEW ? "\tleast\tmedian\tmost\tof rank" : "");
    for (int i = 0; i < bench->n_exposed_rows; i++) {
        const struct bench_exposed_row *row = &bench->exposed_rows[i];
        struct run_exposed named = { row->kind, row->axis, 0 };
        double *sorted = arena_array(&arena, double, n_ranks);
        char name[64];
        int most = 0;

        str_clear(&line);
        for (int rank = 0; rank < n_ranks; rank++) {
            sorted[rank] = row->seconds[rank] * 1e3;
            most = row->seconds[rank] > row->seconds[most] ? rank : most;
            str_printf(&line, "\t%.2f", sorted[rank]);
        }
        run_exposed_text(&named, name, sizeof name);
        if (n_ranks <= FEW) {
            report_table_row(&table, "%s%s", name, str_text(&line));
            continue;
        }
        double median = bench_median(sorted, n_ranks);
        report_table_row(&table, "%s\t%.2f\t%.2f\t%.2f\t%d", name, sorted[0], median,
                         sorted[n_ranks - 1], most);
    }
    if (bench->n_exposed_rows) {
        str_add(out, "\n");
        report_table_print(&table, 0, out);
        str_add(out, "\n");
    }
    report_table_release(&table);
    str_release(&line);
    arena_release(&arena);
}

void bench_print_waiting(const struct bench_report *r, struct str *out)
{
    print_waiting(r->bench, out);
    print_exposed(r->bench, r->job->world_size, out);
}
