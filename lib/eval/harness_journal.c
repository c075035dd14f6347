/*
 * harness_journal.c - what is known of items, a line of JSON each
 *
 * {"task":..,"part":..,"item":..,"prompt":"HASH",..}: an evaluation takes from a journal what is of
 * its own prompts, whatever else is in it, so that options need not be compared.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "data/rows/json_value.h"
#include "data/rows/rows.h"
#include "eval/harness_impl.h"

static void print_text(struct str *out, const char *key, const char *text)
{
    str_printf(out, ",\"%s\":", key);
    json_value_print_utf8(text, strlen(text), out);
}

void harness_print_item(struct task *task, const struct item *item, const struct item_result *r,
                        struct str *out)
{
    const struct task_part *part = &task->parts[item->part];

    str_add(out, "{\"task\":");
    json_value_print_text(task->name, strlen(task->name), out);
    print_text(out, "style", task->style);
    print_text(out, "part", part->name);
    str_printf(out, ",\"item\":%" PRId64 ",\"prompt\":\"%016" PRIx64 "\"", item->number,
               item->hash);
    if (r->log_likelihoods) {
        str_add(out, ",\"log_likelihoods\":[");
        for (int i = 0; i < item->n_choices; i++)
            str_printf(out, "%s%.9g", i ? "," : "", r->log_likelihoods[i]);
        str_add(out, "]");
    }
    if (r->text)
        print_text(out, "text", r->text);
    if (r->log_likelihoods)
        str_printf(out, ",\"choice\":%d", r->choice);
    print_text(out, "answer", r->answer ? r->answer : "");
    print_text(out, "target", item->target);
    for (int m = 0; m < task_n_metrics(&part->way); m++)
        str_printf(out, ",\"%s\":%g", task_metric(task, &part->way, m), r->values[m]);
    str_add(out, "}");
}

int journal_add(struct harness_run *run, int64_t item, struct err *err)
{
    struct str line = { 0 };

    if (run->journal < 0)
        return 0;
    harness_print_item(run->task, &run->items->items[item], &run->results[item], &line);
    str_add_char(&line, '\n');
    size_t left = file_write_all(run->journal, line.data, line.length);
    str_release(&line);
    return left ? err_set_errno(err, ERR_FAILED, "%s", run->h->journal) : 0;
}

/* ---- going on ---- */

static int consistency_text(const struct json_value *object, const char *key, const char *text)
{
    const struct json_value *v = json_value_get(object, key);

    return v && v->kind == JSON_STRING && !strcmp(v->text, text);
}

/* Whether there is a whole number under a key. */
static int number_of(const struct json_value *object, const char *key, int64_t *number)
{
    const struct json_value *v = json_value_get(object, key);

    return v && v->kind == JSON_NUMBER && str_to_i64(v->text, number) == 0;
}

static char *copy_text(const struct json_value *object, const char *key)
{
    const struct json_value *v = json_value_get(object, key);

    return v && v->kind == JSON_STRING ? strdup(v->text) : NULL;
}

static int take_likelihoods(const struct json_value *list, const struct item *item,
                            struct item_result *r)
{
    if (!list || list->kind != JSON_ARRAY || list->n != item->n_choices)
        return 0;
    for (const struct json_value *v = list->first; v; v = v->next)
        if (v->kind != JSON_NUMBER)
            return 0;
    r->log_likelihoods = calloc((size_t)list->n + 1, sizeof *r->log_likelihoods);
    const struct json_value *v = list->first;
    for (int i = 0; r->log_likelihoods && v; i++, v = v->next)
        r->log_likelihoods[i] = strtod(v->text, NULL);
    return r->log_likelihoods != NULL;
}

/* Whether a line is of an item: then it is done. */
static int take(struct harness_run *run, int64_t index, const struct json_value *line)
{
    const struct item *item = &run->items->items[index];
    const struct task_way *way = &run->task->parts[item->part].way;
    struct item_result *r = &run->results[index];
    int64_t chosen;
    bool is_choice = number_of(line, "choice", &chosen) && chosen >= 0 && chosen < item->n_choices;
    char hash[20];

    snprintf(hash, sizeof hash, "%016" PRIx64, item->hash);
    if (r->is_done || !consistency_text(line, "prompt", hash) ||
        !consistency_text(line, "target", item->target) ||
        !consistency_text(line, "style", run->task->style))
        return 0;
    for (int m = 0; m < task_n_metrics(way); m++) {
        const struct json_value *value = json_value_get(line, task_metric(run->task, way, m));

        if (!value || value->kind != JSON_NUMBER)
            return 0;
        r->values[m] = strtod(value->text, NULL);
    }
    if (way->kind == TASK_CHOICE &&
        !take_likelihoods(json_value_get(line, "log_likelihoods"), item, r))
        return 0;
    r->choice = is_choice ? (int)chosen : -1;
    r->text = copy_text(line, "text");
    r->answer = copy_text(line, "answer");
    r->is_done = true;
    run->n_done++;
    run->sum += r->values[0];
    return 1;
}

/* The item that a line speaks of, or -1. starts: of each part. */
static int64_t find_item(const struct harness_run *run, const int64_t *starts,
                         const struct json_value *line)
{
    int64_t number;

    if (!consistency_text(line, "task", run->task->name) || !number_of(line, "item", &number) ||
        number < 0 || number >= run->items->n)
        return -1;
    for (int p = 0; p < run->task->n_parts; p++)
        if (starts[p] >= 0 && consistency_text(line, "part", run->task->parts[p].name)) {
            int64_t at = starts[p] + number;

            return at < run->items->n && run->items->items[at].part == p ? at : -1;
        }
    return -1;
}

static int read_lines(struct harness_run *run, const int64_t *starts, struct err *err)
{
    struct rows *rows;
    struct row row;
    struct err ignored;
    int more;

    if (file_size(run->h->journal) <= 0)
        return 0;
    if (rows_open(&rows, run->h->journal, ROWS_JSONL, NULL, err) < 0)
        return -1;
    while ((more = rows_next(rows, &row, err)) > 0) {
        struct arena arena = { 0 };
        struct json_value *line;

        /* A line that was cut off is one that wasn't written. */
        if (row.kind == ROW_JSON &&
            !json_value_parse(&line, row.text, row.n_bytes, &arena, &ignored)) {
            int64_t at = find_item(run, starts, line);

            if (at >= 0)
                take(run, at, line);
        }
        arena_release(&arena);
    }
    rows_close(rows);
    return more;
}

static int64_t *find_starts(const struct harness_run *run)
{
    int64_t *starts = calloc((size_t)run->task->n_parts, sizeof *starts);

    CHECK(starts);
    for (int p = 0; p < run->task->n_parts; p++)
        starts[p] = -1;
    for (int64_t i = run->items->n - 1; i >= 0; i--)
        starts[run->items->items[i].part] = i;
    return starts;
}

int journal_open(struct harness_run *run, struct err *err)
{
    if (!run->h->journal)
        return 0;
    int64_t *starts = find_starts(run);
    int status = file_exists(run->h->journal) ? read_lines(run, starts, err) : 0;
    free(starts);
    if (status < 0)
        return -1;
    run->journal = file_open_write(run->h->journal, O_WRONLY | O_APPEND | O_CREAT, err);
    /* A line that was cut off is ended. */
    if (run->journal >= 0 && file_size(run->h->journal) > 0 &&
        file_write_all(run->journal, "\n", 1))
        return err_set_errno(err, ERR_FAILED, "%s", run->h->journal);
    return run->journal < 0 ? -1 : 0;
}
