/*
 * run_log.c - lines of metrics.jsonl into tables
 */
#include "report/run_log.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "report/json_values.h"

struct log_reading {
    struct run_log *log;
    struct arena *arena;
};

/* ---- steps ---- */

static struct exposed_mean *exposed_of(struct log_reading *r, const char *kind)
{
    struct run_log *log = r->log;

    for (int i = 0; i < log->n_exposed; i++)
        if (!strcmp(log->exposed[i].kind, kind))
            return &log->exposed[i];
    log->exposed = arena_grow(r->arena, log->exposed, sizeof *log->exposed, &log->exposed_capacity,
                              log->n_exposed + 1);
    log->exposed[log->n_exposed] = (struct exposed_mean){ .kind = arena_strdup(r->arena, kind) };
    return &log->exposed[log->n_exposed++];
}

static double add_exposed(struct log_reading *r, const cJSON *kinds)
{
    const cJSON *item;
    double sum = 0;

    cJSON_ArrayForEach(item, kinds)
    {
        struct exposed_mean *exposed = exposed_of(r, item->string);

        exposed->seconds += item->valuedouble;
        exposed->n_steps++;
        sum += item->valuedouble;
    }
    return sum;
}

static double sum_of(const cJSON *list)
{
    const cJSON *item;
    double sum = 0;

    cJSON_ArrayForEach(item, list) sum += item->valuedouble;
    return sum;
}

static void add_step(struct log_reading *r, const cJSON *line)
{
    struct run_table *steps = &r->log->steps;
    const cJSON *item;

    run_table_add_row(steps);
    cJSON_ArrayForEach(item, line)
    {
        if (cJSON_IsNumber(item))
            run_table_set(steps, item->string, item->valuedouble);
        else if (!strcmp(item->string, "exposed_s") && cJSON_IsObject(item))
            run_table_set(steps, item->string, add_exposed(r, item));
        else if (!strcmp(item->string, "exposed_max"))
            run_table_set(steps, "exposed_max_s", json_number(item, "seconds", NAN));
        else if (!strcmp(item->string, "dropped"))
            run_table_set(steps, item->string, sum_of(item));
    }
}

/* Of the last line that has them. */
static void keep_experts(struct log_reading *r, const cJSON *line)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(line, "expert_layers"), *item, *load;
    struct run_log *log = r->log;

    log->n_experts = 0;
    log->experts = arena_array(r->arena, struct run_experts, cJSON_GetArraySize(list));
    cJSON_ArrayForEach(item, list)
    {
        const cJSON *loads = cJSON_GetObjectItemCaseSensitive(item, "load");
        struct run_experts *layer = &log->experts[log->n_experts++];
        double *values = arena_array(r->arena, double, cJSON_GetArraySize(loads));
        int n = 0;

        cJSON_ArrayForEach(load, loads) values[n++] = load->valuedouble;
        *layer = (struct run_experts){ .layer = (int)json_number(item, "layer", NAN),
                                       .n_experts = n,
                                       .balance = json_number(item, "balance", NAN),
                                       .load = values };
    }
}

/* ---- evaluations and events ---- */

static struct run_table *set_of(struct log_reading *r, const char *name)
{
    struct run_log *log = r->log;

    for (int i = 0; i < log->n_evaluations; i++)
        if (!strcmp(log->evaluations[i].name, name))
            return &log->evaluations[i];
    log->evaluations = arena_grow(r->arena, log->evaluations, sizeof *log->evaluations,
                                  &log->evaluation_capacity, log->n_evaluations + 1);
    run_table_init(&log->evaluations[log->n_evaluations], name, r->arena);
    return &log->evaluations[log->n_evaluations++];
}

static void add_evaluation(struct log_reading *r, const cJSON *line)
{
    struct run_table *set = set_of(r, json_text(line, "eval_set", ""));
    const cJSON *item;

    run_table_add_row(set);
    cJSON_ArrayForEach(item, line) if (cJSON_IsNumber(item))
        run_table_set(set, item->string, item->valuedouble);
}

/* ---- times of ops ---- */

static struct run_op_time *op_of(struct log_reading *r, const char *kind)
{
    struct run_log *log = r->log;

    for (int i = 0; i < log->n_ops; i++)
        if (!strcmp(log->ops[i].kind, kind))
            return &log->ops[i];
    log->ops = arena_grow(r->arena, log->ops, sizeof *log->ops, &log->op_capacity, log->n_ops + 1);
    log->ops[log->n_ops] = (struct run_op_time){ .kind = arena_strdup(r->arena, kind) };
    return &log->ops[log->n_ops++];
}

/* Sums at first: means when the file has been read. */
static void add_op_times(struct log_reading *r, const cJSON *line)
{
    const cJSON *kinds = cJSON_GetObjectItemCaseSensitive(line, "ops_s"), *item;
    double n = json_number(line, "rank_steps", NAN);

    if (!cJSON_IsObject(kinds) || !(n > 0 && n < 9e15))
        return;
    r->log->n_op_steps += n;
    cJSON_ArrayForEach(item, kinds) if (cJSON_IsNumber(item)) op_of(r, item->string)->seconds +=
        item->valuedouble * n;
}

static void average_op_times(struct run_log *log)
{
    for (int i = 0; i < log->n_ops; i++)
        log->ops[i].seconds /= log->n_op_steps;
}

/* "start 2 of the run: 16 ranks, the first on node3" (train/pretrain_monitor.c). */
static void note_start(struct run_log *log, const char *text, bool is_resumed)
{
    const char *at = strchr(text, ':');
    int n_ranks;

    log->n_starts++;
    if (is_resumed)
        log->n_pauses++;
    else if (log->n_starts > 1)
        log->n_restarts++;
    if (at && sscanf(at, ": %d rank", &n_ranks) == 1 && n_ranks > 0)
        log->n_ranks = n_ranks;
}

static void add_event(struct log_reading *r, const cJSON *line, double step)
{
    struct run_log *log = r->log;
    double time = json_number(line, "time", NAN);

    log->events = arena_grow(r->arena, log->events, sizeof *log->events, &log->event_capacity,
                             log->n_events + 1);
    struct run_event *event = &log->events[log->n_events++];

    *event = (struct run_event){ .step = (int64_t)step,
                                 .kind = arena_strdup(r->arena, json_text(line, "event", "")),
                                 .text = arena_strdup(r->arena, json_text(line, "text", "")),
                                 .time = isnan(time) ? 0 : time };
    bool is_resumed = !strcmp(event->kind, "resumed");
    if (is_resumed || !strcmp(event->kind, "started"))
        note_start(log, event->text, is_resumed);
}

/* ---- the file ---- */

/* Returns whether the line is an object with a step. */
static bool add_line(struct log_reading *r, const char *text, size_t length)
{
    cJSON *line = cJSON_ParseWithLength(text, length);
    double step = json_number(line, "step", NAN);
    bool is_whole = cJSON_IsObject(line) && step >= 0 && step < 9e15;

    if (is_whole && cJSON_HasObjectItem(line, "event")) {
        add_event(r, line, step);
    } else if (is_whole && cJSON_HasObjectItem(line, "eval_loss")) {
        add_evaluation(r, line);
    } else if (is_whole && cJSON_HasObjectItem(line, "loss")) {
        add_step(r, line);
    } else if (is_whole && cJSON_HasObjectItem(line, "ops_s")) {
        add_op_times(r, line);
    }
    cJSON_Delete(line);
    return is_whole;
}

static void find_experts(struct log_reading *r, const char *text, size_t n_bytes)
{
    static const char key[] = "\"expert_layers\"";
    size_t end = n_bytes;

    while (end) {
        size_t begin = end - 1;

        while (begin && text[begin - 1] != '\n')
            begin--;
        if (memmem(text + begin, end - begin, key, sizeof key - 1)) {
            cJSON *line = cJSON_ParseWithLength(text + begin, end - begin);

            if (cJSON_HasObjectItem(line, "expert_layers"))
                keep_experts(r, line);
            cJSON_Delete(line);
            if (r->log->n_experts)
                return;
        }
        end = begin ? begin - 1 : 0;
    }
}

int run_log_read(struct run_log *log, const char *folder, struct arena *arena, struct err *err)
{
    const char *path = arena_printf(arena, "%s/metrics.jsonl", folder);
    struct log_reading r = { log, arena };
    struct file_map map;

    *log = (struct run_log){ .n_starts = 0 };
    run_table_init(&log->steps, "", arena);
    if (!file_exists(path))
        return err_set(err, ERR_DATA,
                       "%s has no metrics.jsonl (hint: RUN is the folder that a job names as "
                       "output)",
                       folder);
    if (file_map_open(&map, path, err) < 0)
        return -1;
    for (size_t at = 0; at < map.n_bytes;) {
        const char *line = (const char *)map.data + at;
        const char *end = memchr(line, '\n', map.n_bytes - at);
        size_t length = end ? (size_t)(end - line) : map.n_bytes - at;

        log->n_left_out += !add_line(&r, line, length);
        at += length + 1;
    }
    if (run_table_find(&log->steps, "balance"))
        find_experts(&r, (const char *)map.data, map.n_bytes);
    file_map_close(&map);
    average_op_times(log);
    if (!log->steps.n_rows && !log->n_evaluations && !log->n_events)
        return err_set(err, ERR_DATA, "%s: nothing has been recorded yet", path);
    return 0;
}
