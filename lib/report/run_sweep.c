/*
 * run_sweep.c - lines of sweep.jsonl into trials
 */
#include "report/run_sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "report/json_values.h"

#define N_TRIALS_MAX 100000 /* what a damaged number may ask for */

static const char *sweep_path(const char *folder, struct arena *arena)
{
    return arena_printf(arena, "%s/sweep.jsonl", folder);
}

bool run_sweep_is(const char *folder)
{
    struct arena arena = { 0 };
    bool is = file_exists(sweep_path(folder, &arena));

    arena_release(&arena);
    return is;
}

const char *run_sweep_folder(const char *folder, int trial, struct arena *arena)
{
    return arena_printf(arena, "%s/trial-%03d", folder, trial);
}

/* ---- events ---- */

static struct sweep_trial_record *trial_of(struct run_sweep *sweep, const cJSON *line,
                                           struct arena *arena)
{
    double number = json_number(line, "trial", NAN);

    if (!(number >= 0 && number < N_TRIALS_MAX))
        return NULL;
    int trial = (int)number;
    sweep->trials =
        arena_grow(arena, sweep->trials, sizeof *sweep->trials, &sweep->capacity, trial + 1);
    while (sweep->n_trials <= trial)
        sweep->trials[sweep->n_trials++] =
            (struct sweep_trial_record){ .state = "waits", .rung = -1, .value = NAN };
    return &sweep->trials[trial];
}

static void take_value(const struct run_sweep *sweep, struct sweep_trial_record *trial,
                       const cJSON *line)
{
    double rung = json_number(line, "rung", NAN), step = json_number(line, "step", NAN);

    trial->rung = rung >= 0 && rung < 1000 ? (int)rung : -1;
    trial->step = step >= 0 && step < 9e15 ? (int64_t)step : 0;
    trial->value = json_number(line, "value", NAN);
    trial->state = trial->rung + 1 >= sweep->n_rungs ? "finished" : "paused";
}

static void take_trial(const struct run_sweep *sweep, struct sweep_trial_record *trial,
                       const char *event, const cJSON *line, struct arena *arena)
{
    if (!strcmp(event, "trial")) {
        char *settings = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(line, "settings"));

        trial->settings = settings ? arena_strdup(arena, settings) : NULL;
        free(settings);
    } else if (!strcmp(event, "start")) {
        trial->state = "runs";
    } else if (!strcmp(event, "value")) {
        take_value(sweep, trial, line);
    } else if (!strcmp(event, "fail")) {
        trial->state = "failed";
        trial->text = arena_strdup(arena, json_text(line, "text", ""));
    } else if (!strcmp(event, "stop")) {
        trial->state = "stopped";
    }
}

static void take_header(struct run_sweep *sweep, const cJSON *line, const char *text, size_t length,
                        struct arena *arena)
{
    sweep->header = arena_strndup(arena, text, length);
    sweep->metric = arena_strdup(arena, json_text(line, "metric", ""));
    sweep->is_maximized = !strcmp(json_text(line, "goal", ""), "maximize");
    sweep->n_rungs = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(line, "rungs"));
}

static void take_line(struct run_sweep *sweep, const char *text, size_t length, struct arena *arena)
{
    cJSON *line = cJSON_ParseWithLength(text, length);
    const char *event = json_text(line, "event", "");

    if (!strcmp(event, "sweep")) {
        take_header(sweep, line, text, length, arena);
    } else if (!strcmp(event, "resume")) {
        for (int i = 0; i < sweep->n_trials; i++)
            if (!strcmp(sweep->trials[i].state, "runs"))
                sweep->trials[i].state = "waits";
    } else if (!strcmp(event, "end") || !strcmp(event, "more")) {
        sweep->is_over = !strcmp(event, "end");
    } else if (sweep->header) {
        struct sweep_trial_record *trial = trial_of(sweep, line, arena);

        if (trial)
            take_trial(sweep, trial, event, line, arena);
    }
    cJSON_Delete(line);
}

/* ---- the file ---- */

int run_sweep_read(struct run_sweep *sweep, const char *folder, struct arena *arena,
                   struct err *err)
{
    const char *path = sweep_path(folder, arena);
    struct file_map map;
    int *order;

    *sweep = (struct run_sweep){ .best = -1 };
    if (file_map_open(&map, path, err) < 0)
        return -1;
    for (size_t at = 0; at < map.n_bytes;) {
        const char *line = (const char *)map.data + at;
        const char *end = memchr(line, '\n', map.n_bytes - at);

        if (!end)
            break;
        take_line(sweep, line, (size_t)(end - line), arena);
        at = (size_t)(end + 1 - (const char *)map.data);
    }
    file_map_close(&map);
    if (!sweep->header)
        return err_set(err, ERR_DATA, "%s: not the record of a sweep", path);
    run_sweep_rank(sweep, &order, arena);
    if (sweep->n_trials && !isnan(sweep->trials[order[0]].value))
        sweep->best = order[0];
    return 0;
}

/* ---- what is made of it ---- */

/* Whether a is better: further, then by its value, then the earlier one. */
static bool is_better(const struct run_sweep *sweep, int a, int b)
{
    const struct sweep_trial_record *of_a = &sweep->trials[a], *of_b = &sweep->trials[b];
    double sign = sweep->is_maximized ? -1 : 1;

    if (isnan(of_a->value) != isnan(of_b->value))
        return isnan(of_b->value);
    if (isnan(of_a->value))
        return a < b;
    if (of_a->rung != of_b->rung)
        return of_a->rung > of_b->rung;
    return of_a->value != of_b->value ? sign * of_a->value < sign * of_b->value : a < b;
}

/* By insertion: trials are few. */
void run_sweep_rank(const struct run_sweep *sweep, int **order, struct arena *arena)
{
    *order = arena_array(arena, int, sweep->n_trials);
    for (int i = 0; i < sweep->n_trials; i++) {
        int at = i;

        for (; at > 0 && is_better(sweep, i, (*order)[at - 1]); at--)
            (*order)[at] = (*order)[at - 1];
        (*order)[at] = i;
    }
}

static cJSON *trial_json(const struct sweep_trial_record *trial, int number)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "trial", number);
    cJSON_AddStringToObject(json, "state", trial->state);
    if (trial->rung >= 0) {
        cJSON_AddNumberToObject(json, "rung", trial->rung);
        cJSON_AddNumberToObject(json, "step", (double)trial->step);
    }
    if (!isnan(trial->value))
        cJSON_AddNumberToObject(json, "value", trial->value);
    if (trial->text)
        cJSON_AddStringToObject(json, "text", trial->text);
    cJSON_AddRawToObject(json, "settings", trial->settings ? trial->settings : "{}");
    return json;
}

cJSON *run_sweep_json(const struct run_sweep *sweep)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "metric", sweep->metric);
    cJSON_AddStringToObject(json, "goal", sweep->is_maximized ? "maximize" : "minimize");
    cJSON_AddBoolToObject(json, "over", sweep->is_over);
    cJSON_AddNumberToObject(json, "rungs", sweep->n_rungs);
    if (sweep->best >= 0)
        cJSON_AddNumberToObject(json, "best", sweep->best);
    cJSON *trials = cJSON_AddArrayToObject(json, "trials");
    for (int i = 0; i < sweep->n_trials; i++)
        cJSON_AddItemToArray(trials, trial_json(&sweep->trials[i], i));
    return json;
}
