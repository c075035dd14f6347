/*
 * run_scores.c - reading eval's reports
 */
#include "report/run_scores.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/str.h"

#define FILES_MAX 256 /* in a folder */

struct scores_reading {
    struct run_scores *scores;
    struct json_reader json;
    struct arena *arena;
    const char *file, *model;
};

/* NAN for null and whatever is not a number. */
static double read_number(struct json_reader *json)
{
    double value = NAN;
    char text[64];

    if (json_peek(json) != JSON_NUMBER) {
        json_skip(json);
        return NAN;
    }
    struct json_span span = json_scalar(json);
    if (span.n_bytes >= sizeof text)
        return NAN;
    memcpy(text, span.text, span.n_bytes);
    text[span.n_bytes] = '\0';
    return str_to_f64(text, &value) < 0 ? NAN : value;
}

static const char *read_text(struct json_reader *json)
{
    if (json_peek(json) == JSON_STRING)
        return json_string(json);
    json_skip(json);
    return "";
}

static struct run_score *add_score(struct scores_reading *r, const char *metric)
{
    struct run_scores *scores = r->scores;

    scores->items = arena_grow(r->arena, scores->items, sizeof *scores->items, &scores->capacity,
                               scores->n + 1);
    struct run_score *score = &scores->items[scores->n++];

    *score = (struct run_score){ .file = r->file, .metric = metric, .value = NAN, .error = NAN };
    return score;
}

/* {"items":100,"acc":0.25,"acc_stderr":0.04}: a score for each metric, whose error follows it. */
static void read_values(struct scores_reading *r, int first)
{
    struct run_scores *scores = r->scores;
    double n_items = NAN;

    json_open(&r->json, '{');
    while (json_next(&r->json, '}')) {
        const char *key = json_key(&r->json);
        double value = read_number(&r->json);

        if (!strcmp(key, "items"))
            n_items = value;
        else if (str_ends_with(key, "_stderr") && scores->n > first)
            scores->items[scores->n - 1].error = value;
        else
            add_score(r, key)->value = value;
    }
    for (int i = first; i < scores->n; i++)
        scores->items[i].n_items = n_items;
}

static void read_task(struct scores_reading *r)
{
    const char *task = "", *style = "";
    int first = r->scores->n;
    double shots = NAN;

    json_open(&r->json, '{');
    while (json_next(&r->json, '}')) {
        const char *key = json_key(&r->json);

        if (!strcmp(key, "task"))
            task = read_text(&r->json);
        else if (!strcmp(key, "style"))
            style = read_text(&r->json);
        else if (!strcmp(key, "shots"))
            shots = read_number(&r->json);
        else if (!strcmp(key, "scores") && json_peek(&r->json) == JSON_OBJECT)
            read_values(r, first);
        else
            json_skip(&r->json);
    }
    for (int i = first; i < r->scores->n; i++) {
        struct run_score *score = &r->scores->items[i];

        score->task = task;
        score->style = style;
        score->n_shots = shots >= 0 && shots < 1e6 ? (int)shots : -1;
    }
}

/* A report that does not end, as one that is being written, adds nothing. */
static void read_report(struct scores_reading *r)
{
    int first = r->scores->n;
    const char *model = "";

    json_open(&r->json, '{');
    while (json_next(&r->json, '}')) {
        const char *key = json_key(&r->json);

        if (!strcmp(key, "model")) {
            model = read_text(&r->json);
        } else if (!strcmp(key, "tasks") && json_peek(&r->json) == JSON_ARRAY) {
            json_open(&r->json, '[');
            while (json_next(&r->json, ']'))
                read_task(r);
        } else {
            json_skip(&r->json);
        }
    }
    if (json_end(&r->json) < 0)
        r->scores->n = first;
    for (int i = first; i < r->scores->n; i++)
        r->scores->items[i].model = model;
}

/* ---- files ---- */

static void read_file(struct scores_reading *r, const char *folder, const char *name)
{
    static const char begin[] = "{\"model\":";
    const char *path = arena_printf(r->arena, "%s/%s", folder, name);
    struct file_map map;
    struct err ignored;

    if (file_map_open(&map, path, &ignored) < 0)
        return;
    if (map.n_bytes >= sizeof begin && !memcmp(map.data, begin, sizeof begin - 1)) {
        r->file = name;
        json_reader_init(&r->json, (const char *)map.data, map.n_bytes, r->arena);
        read_report(r);
    }
    file_map_close(&map);
}

static int compare_names(const void *pa, const void *pb)
{
    return strcmp(*(const char *const *)pa, *(const char *const *)pb);
}

static void read_folder(struct scores_reading *r, const char *folder)
{
    const char **names = arena_array(r->arena, const char *, FILES_MAX);
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    int n = 0;

    while (entries && n < FILES_MAX && (entry = readdir(entries)))
        if (str_ends_with(entry->d_name, ".json"))
            names[n++] = arena_strdup(r->arena, entry->d_name);
    if (entries)
        closedir(entries);
    if (n)
        qsort(names, (size_t)n, sizeof *names, compare_names);
    for (int i = 0; i < n; i++)
        read_file(r, folder, names[i]);
}

void run_scores_read(struct run_scores *scores, const char *folder, struct arena *arena)
{
    struct scores_reading r = { .scores = scores, .arena = arena };

    *scores = (struct run_scores){ .n = 0 };
    read_folder(&r, folder);
    read_folder(&r, arena_printf(arena, "%s/eval", folder));
}
