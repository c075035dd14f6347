/*
 * scores.c - from answers to scores
 */
#include "eval/scores.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/rows/json_value.h"
#include "eval/harness_impl.h"

/* ---- sums ---- */

static void score_part(struct score_line *line, struct task *task, int part,
                       const struct items *items, const struct item_result *results)
{
    const struct task_way *way = &task->parts[part].way;

    *line = (struct score_line){ .name = task->parts[part].name,
                                 .level = 2,
                                 .n_metrics = task_n_metrics(way) };
    for (int m = 0; m < line->n_metrics; m++) {
        double sum = 0, squares = 0;

        line->n = 0;
        for (int64_t i = 0; i < items->n; i++)
            if (items->items[i].part == part) {
                sum += results[i].values[m];
                line->n++;
            }
        line->metrics[m] = task_metric(task, way, m);
        line->values[m] = line->n ? sum / (double)line->n : 0;
        for (int64_t i = 0; i < items->n; i++)
            if (items->items[i].part == part)
                squares += pow(results[i].values[m] - line->values[m], 2);
        line->errors[m] =
            line->n > 1 ? sqrt(squares / (double)(line->n - 1) / (double)line->n) : NAN;
    }
}

static int find_metric(const struct score_line *line, const char *name)
{
    for (int m = 0; m < line->n_metrics; m++)
        if (!strcmp(line->metrics[m], name))
            return m;
    return -1;
}

/* A metric of several parts: only of those that have it. */
static void pool_metric(struct score_line *line, int metric, const struct score_line *parts, int n)
{
    double sum = 0, variance = 0;
    int64_t total = 0, n_parts = 0;

    for (int i = 0; i < n; i++) {
        int m = find_metric(&parts[i], line->metrics[metric]);

        if (m < 0 || !parts[i].n)
            continue;
        sum += parts[i].values[m] * (double)parts[i].n;
        total += parts[i].n;
        n_parts++;
        if (!isnan(parts[i].errors[m]))
            variance += (double)(parts[i].n - 1) * pow(parts[i].errors[m], 2) * (double)parts[i].n;
    }
    line->values[metric] = total ? sum / (double)total : 0;
    line->errors[metric] =
        total > n_parts ? sqrt(variance / (double)(total - n_parts) / (double)total) : NAN;
}

static void pool(struct score_line *line, const char *name, int level,
                 const struct score_line *parts, int n)
{
    *line = (struct score_line){ .name = name, .level = level };
    for (int i = 0; i < n; i++) {
        line->n += parts[i].n;
        for (int m = 0; m < parts[i].n_metrics; m++)
            if (find_metric(line, parts[i].metrics[m]) < 0 && line->n_metrics < TASK_METRICS_MAX)
                line->metrics[line->n_metrics++] = parts[i].metrics[m];
    }
    for (int m = 0; m < line->n_metrics; m++)
        pool_metric(line, m, parts, n);
}

static bool has_items(const struct items *items, int part)
{
    for (int64_t i = 0; i < items->n; i++)
        if (items->items[i].part == part)
            return true;
    return false;
}

void scores_compute(struct scores *scores, struct task *task, const struct items *items,
                    const struct item_result *results, struct arena *arena)
{
    struct score_line *parts = arena_array(arena, struct score_line, task->n_parts);
    const char **categories = arena_array(arena, const char *, task->n_parts);
    int n = 0;

    for (int p = 0; p < task->n_parts; p++)
        if (has_items(items, p)) {
            categories[n] = task->parts[p].category;
            score_part(&parts[n++], task, p, items, results);
        }
    scores->lines = arena_array(arena, struct score_line, 2 * n + 1);
    pool(&scores->lines[0], task->name, 0, parts, n);
    scores->n = 1;
    for (int i = 0;
         i < n && (n > 1 || categories[0]);) { /* those of a category follow each other */
        int end = i + 1;

        while (end < n && categories[i] && categories[end] &&
               !strcmp(categories[i], categories[end]))
            end++;
        if (categories[i])
            pool(&scores->lines[scores->n++], categories[i], 1, parts + i, end - i);
        for (; i < end; i++)
            scores->lines[scores->n++] = parts[i];
    }
}

/* ---- for people ---- */

static void print_line(const struct scores *scores, const struct score_line *line, int width,
                       struct str *out)
{
    const struct score_line *all = &scores->lines[0];
    char count[32];

    str_printf(out, "%*s%-*s %9s", 2 * line->level, "", width - 2 * line->level, line->name,
               str_count(count, sizeof count, line->n));
    for (int m = 0; m < all->n_metrics; m++) {
        int at = find_metric(line, all->metrics[m]), room = (int)strlen(all->metrics[m]);

        room = room < 6 ? 6 : room;
        if (at < 0)
            str_printf(out, "  %*s %8s", room, "", "");
        else if (isnan(line->errors[at]))
            str_printf(out, "  %*.4f %8s", room, line->values[at], "");
        else
            str_printf(out, "  %*.4f %8.4f", room, line->values[at], line->errors[at]);
    }
    while (out->length && out->data[out->length - 1] == ' ')
        out->data[--out->length] = '\0';
    str_add_char(out, '\n');
}

void scores_print(const struct scores *scores, const struct task *task, int n_shots,
                  const struct harness *harness, struct str *out)
{
    const struct score_line *all = &scores->lines[0];
    struct str title = { 0 };
    char time[32];
    int width = 20;

    for (int i = 0; i < scores->n; i++) {
        int length = (int)strlen(scores->lines[i].name) + 2 * scores->lines[i].level;

        width = length > width ? length : width;
    }
    if (n_shots < 0)
        str_printf(&title, "%s, a file's shots", task->style);
    else
        str_printf(&title, "%s, %d shot%s", task->style, n_shots, n_shots == 1 ? "" : "s");
    str_printf(out, "%-*s %9s", width, str_text(&title), "items");
    for (int m = 0; m < all->n_metrics; m++)
        str_printf(out, "  %6s %8s", all->metrics[m], "stderr");
    str_add(out, "\n");
    for (int i = 0; i < scores->n; i++)
        print_line(scores, &scores->lines[i], width, out);
    str_printf(out, "%s, %.0f tokens/s (%" PRId64 " of %" PRId64 " computed)",
               str_duration(time, sizeof time, harness->seconds),
               harness->seconds > 0 ? (double)harness->n_asked / harness->seconds : 0,
               harness->n_tokens, harness->n_asked);
    if (harness->n_resumed)
        str_printf(out, "; %" PRId64 " items were known", harness->n_resumed);
    str_add(out, "\n");
    str_release(&title);
}

/* ---- for programs ---- */

static void add_text(struct str *out, const char *text)
{
    json_value_print_utf8(text, strlen(text), out);
}

static void print_values(const struct score_line *line, struct str *out)
{
    str_printf(out, "{\"items\":%" PRId64, line->n);
    for (int m = 0; m < line->n_metrics; m++) {
        str_add(out, ",");
        add_text(out, line->metrics[m]);
        str_printf(out, ":%.10g,\"%s_stderr\":", line->values[m], line->metrics[m]);
        if (isnan(line->errors[m]))
            str_add(out, "null");
        else
            str_printf(out, "%.10g", line->errors[m]);
    }
    str_add(out, "}");
}

static void print_level(const struct scores *scores, int level, const char *key, struct str *out)
{
    int n = 0;

    str_printf(out, ",\"%s\":{", key);
    for (int i = 0; i < scores->n; i++)
        if (scores->lines[i].level == level) {
            str_add(out, n++ ? "," : "");
            add_text(out, scores->lines[i].name);
            str_add(out, ":");
            print_values(&scores->lines[i], out);
        }
    str_add(out, "}");
}

void scores_print_json(const struct scores *scores, struct task *task, const struct items *items,
                       const struct item_result *results, const struct harness *harness,
                       bool with_samples, struct str *out)
{
    char shots[16] = "null"; /* those of a file are not counted */

    if (items->n_shots >= 0)
        snprintf(shots, sizeof shots, "%d", items->n_shots);
    str_add(out, "{\"task\":");
    add_text(out, task->name);
    str_add(out, ",\"style\":");
    add_text(out, task->style);
    str_printf(out,
               ",\"shots\":%s,\"seconds\":%.3f,\"tokens\":%" PRId64 ",\"tokens_computed\":%" PRId64
               ",\"scores\":",
               shots, harness->seconds, harness->n_asked, harness->n_tokens);
    print_values(&scores->lines[0], out);
    print_level(scores, 1, "categories", out);
    print_level(scores, 2, "subjects", out);
    if (with_samples) {
        str_add(out, ",\"samples\":[");
        for (int64_t i = 0; i < items->n; i++) {
            str_add(out, i ? ",\n" : "\n");
            harness_print_item(task, &items->items[i], &results[i], out);
        }
        str_add(out, "]");
    }
    str_add(out, "}");
}

void scores_print_report(const char *model, const char *tasks, struct str *out)
{
    str_add(out, "{\"model\":");
    add_text(out, model);
    str_printf(out, ",\"tasks\":[\n%s]}\n", tasks);
}
