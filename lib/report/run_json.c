/*
 * run_json.c - see the header
 */
#include "report/run_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* ---- numbers ---- */

/* Whole numbers in full; with 17 digits the fewest that read back as the value. */
static void add_number(struct str *out, double value, int n_digits)
{
    char text[64], *comma;

    if (!isfinite(value)) {
        str_add(out, "null");
        return;
    }
    if (fabs(value) < 1e15 && value == (double)(int64_t)value) {
        str_printf(out, "%lld", (long long)value);
        return;
    }
    int digits = n_digits < 17 ? n_digits : 15;
    snprintf(text, sizeof text, "%.*g", digits, value);
    while (n_digits >= 17 && digits < 17 && strtod(text, NULL) != value)
        snprintf(text, sizeof text, "%.*g", ++digits, value);
    comma = strchr(text, ','); /* of some locales */
    if (comma)
        *comma = '.';
    str_add(out, text);
}

static void add_finite(cJSON *json, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(json, key, value);
    else
        cJSON_AddNullToObject(json, key);
}

/* ---- tables ---- */

static void add_column(cJSON *columns, const struct run_column *column, const int *rows, int n,
                       int n_digits)
{
    struct str text = { 0 };

    str_add_char(&text, '[');
    for (int i = 0; i < n; i++) {
        str_add(&text, i ? "," : "");
        add_number(&text, column->values[rows ? rows[i] : i], n_digits);
    }
    str_add_char(&text, ']');
    cJSON_AddRawToObject(columns, column->name, str_text(&text));
    str_release(&text);
}

cJSON *run_json_table(const struct run_table *table, const struct run_json_options *options)
{
    cJSON *json = cJSON_CreateObject();
    int *rows = NULL, n = table->n_rows;

    if (options->n_points)
        n = run_table_thin(table, options->n_points, &rows);
    if (*table->name)
        cJSON_AddStringToObject(json, "set", table->name);
    cJSON_AddNumberToObject(json, "lines", table->n_rows);
    cJSON *columns = cJSON_AddObjectToObject(json, "columns");
    for (int c = 0; c < table->n_columns; c++)
        add_column(columns, &table->columns[c], rows, n, options->n_digits);
    return json;
}

/* ---- the whole run ---- */

static void add_events(cJSON *json, const struct run_log *log, int n_most)
{
    cJSON *events = cJSON_AddArrayToObject(json, "events");
    int first = n_most && log->n_events > n_most ? log->n_events - n_most : 0;

    cJSON_AddNumberToObject(json, "events_left_out", first);
    for (int i = first; i < log->n_events; i++) {
        const struct run_event *event = &log->events[i];
        cJSON *item = cJSON_CreateObject();

        cJSON_AddNumberToObject(item, "step", (double)event->step);
        cJSON_AddStringToObject(item, "event", event->kind);
        cJSON_AddStringToObject(item, "text", event->text);
        if (event->time > 0)
            cJSON_AddNumberToObject(item, "time", event->time);
        cJSON_AddItemToArray(events, item);
    }
}

static void add_experts(cJSON *json, const struct run_log *log)
{
    if (!log->n_experts)
        return;
    cJSON *layers = cJSON_AddArrayToObject(json, "experts");
    for (int i = 0; i < log->n_experts; i++) {
        const struct run_experts *layer = &log->experts[i];
        cJSON *item = cJSON_CreateObject();

        cJSON_AddNumberToObject(item, "layer", layer->layer);
        add_finite(item, "balance", layer->balance);
        cJSON_AddItemToObject(item, "load", cJSON_CreateDoubleArray(layer->load, layer->n_experts));
        cJSON_AddItemToArray(layers, item);
    }
}

static void add_exposed(cJSON *json, const struct run_log *log)
{
    if (!log->n_exposed)
        return;
    cJSON *kinds = cJSON_AddObjectToObject(json, "exposed_s");
    for (int i = 0; i < log->n_exposed; i++)
        cJSON_AddNumberToObject(kinds, log->exposed[i].kind,
                                log->exposed[i].seconds / log->exposed[i].n_steps);
}

/* The lowest, and its step. */
static void add_best(cJSON *json, const struct run_table *set)
{
    const double *loss = run_table_find(set, "eval_loss"), *step = run_table_find(set, "step");
    int best = -1;

    for (int i = 0; loss && i < set->n_rows; i++)
        if (!isnan(loss[i]) && (best < 0 || loss[i] < loss[best]))
            best = i;
    if (best < 0)
        return;
    cJSON_AddNumberToObject(json, "best_loss", loss[best]);
    cJSON_AddNumberToObject(json, "best_step", step[best]);
    cJSON_AddNumberToObject(json, "last_loss", run_table_last(set, "eval_loss"));
}

/* Seconds since the run began, as far as its lines say. */
static double elapsed_of(const struct run_log *log)
{
    double elapsed = run_table_last(&log->steps, "elapsed_s");

    return isnan(elapsed) ? run_table_last(&log->steps, "useful_s") : elapsed;
}

static void add_summary(cJSON *json, const struct run_log *log)
{
    const struct run_table *steps = &log->steps;
    cJSON *summary = cJSON_AddObjectToObject(json, "summary");

    add_finite(summary, "step", run_table_last(steps, "step"));
    add_finite(summary, "loss",
               run_table_last(steps, run_table_find(steps, "loss_mean") ? "loss_mean" : "loss"));
    add_finite(summary, "tokens", run_table_last(steps, "tokens"));
    add_finite(summary, "tokens_per_s", run_table_median(steps, "tokens_per_s"));
    add_finite(summary, "mfu", run_table_median(steps, "mfu"));
    add_finite(summary, "step_s", run_table_median(steps, "step_s"));
    add_finite(summary, "elapsed_s", elapsed_of(log));
    add_finite(summary, "useful_s", run_table_last(steps, "useful_s"));
    add_finite(summary, "skipped", run_table_last(steps, "skipped"));
    cJSON_AddNumberToObject(summary, "ranks", log->n_ranks);
    cJSON_AddNumberToObject(summary, "restarts", log->n_restarts);
    cJSON_AddNumberToObject(summary, "pauses", log->n_pauses);
    cJSON_AddNumberToObject(summary, "lines_left_out", log->n_left_out);
}

void run_json_add_log(cJSON *json, const struct run_log *log,
                      const struct run_json_options *options)
{
    add_summary(json, log);
    cJSON_AddItemToObject(json, "steps", run_json_table(&log->steps, options));
    cJSON *sets = cJSON_AddArrayToObject(json, "evaluations");
    for (int i = 0; i < log->n_evaluations; i++) {
        cJSON *set = run_json_table(&log->evaluations[i], options);

        add_best(set, &log->evaluations[i]);
        cJSON_AddItemToArray(sets, set);
    }
    add_events(json, log, options->n_events);
    add_experts(json, log);
    add_exposed(json, log);
}

/* ---- scores and jobs ---- */

void run_json_add_scores(cJSON *json, const struct run_scores *scores)
{
    cJSON *list = cJSON_AddArrayToObject(json, "scores");

    for (int i = 0; i < scores->n; i++) {
        const struct run_score *score = &scores->items[i];
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "file", score->file);
        cJSON_AddStringToObject(item, "model", score->model);
        cJSON_AddStringToObject(item, "task", score->task);
        cJSON_AddStringToObject(item, "style", score->style);
        if (score->n_shots >= 0)
            cJSON_AddNumberToObject(item, "shots", score->n_shots);
        cJSON_AddStringToObject(item, "metric", score->metric);
        add_finite(item, "value", score->value);
        add_finite(item, "stderr", score->error);
        add_finite(item, "items", score->n_items);
        cJSON_AddItemToArray(list, item);
    }
}

void run_json_add_job(cJSON *json, const struct flat_job *job)
{
    cJSON *keys = cJSON_AddObjectToObject(json, "job");

    for (int i = 0; i < job->n; i++)
        cJSON_AddStringToObject(keys, job->values[i].key, job->values[i].text);
}

cJSON *run_json_differences(const struct flat_job_difference *differences, int n, int n_jobs)
{
    cJSON *list = cJSON_CreateArray();

    for (int i = 0; i < n; i++) {
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "key", differences[i].key);
        cJSON *values = cJSON_AddArrayToObject(item, "values");
        for (int j = 0; j < n_jobs; j++)
            cJSON_AddItemToArray(values, differences[i].values[j]
                                             ? cJSON_CreateString(differences[i].values[j])
                                             : cJSON_CreateNull());
        cJSON_AddItemToArray(list, item);
    }
    return list;
}
