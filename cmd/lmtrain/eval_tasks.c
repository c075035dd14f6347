/*
 * eval_tasks.c - lmtrain eval --task NAMES
 */
#include "eval_tasks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cmd.h"
#include "eval/scores.h"
#include "report/progress_line.h"
#include "serve/served.h"
#include "train/engine.h"

#define TASKS_MAX 16

/* One task with its items. */
struct evaluated {
    struct task task;
    struct items items;
    struct item_result *results;
};

struct evaluation {
    const struct eval_request *q;
    struct arena arena;
    struct evaluated tasks[TASKS_MAX];
    int n_tasks;
    struct served served;
    struct tokenizer *tokenizer;
    bool has_served;
    struct str json; /* objects so far */
    const char *now; /* the task that runs */
    struct progress_line line;
};

static void show(void *context, const struct harness_progress *p)
{
    struct evaluation *e = context;
    struct progress_line *line = &e->line;
    char time[32], items[64], score[32], left[PROGRESS_LEFT_BYTES];

    if (!progress_line_is_due(line))
        return;
    snprintf(items, sizeof items, "%s %" PRId64 "/%" PRId64, e->now, p->done, p->total);
    snprintf(score, sizeof score, "%.4f", p->score);
    /* What the journal knew took no time. */
    progress_line_left(line, (double)(p->done - p->n_known), (double)(p->total - p->n_known), left);
    progress_line_show(
        line,
        (const char *const[]){ items, left, score, str_duration(time, sizeof time, p->seconds) },
        4);
}

/* ---- before the model ---- */

/* What was found is printed once, by the rank that also has the results. */
static int speaks(const struct evaluation *e)
{
    return !serving_starts(e->q->serving) && e->q->serving->rank.world_rank == 0;
}

static int load_items(struct evaluation *e, struct evaluated *v, struct err *err)
{
    struct items_options options = {
        .data = e->q->data, .n_shots = e->q->shots, .limit = e->q->limit, .parts = e->q->subjects
    };

    if (items_load(&v->items, &v->task, &options, err) < 0)
        return -1;
    v->results = calloc((size_t)v->items.n, sizeof *v->results);
    if (!v->results)
        return err_set(err, ERR_DEVICE, "out of host memory");
    if (!speaks(e))
        return 0;
    fprintf(stderr, "%s%s: %" PRId64 " item%s", str_text(&v->items.found), v->task.name, v->items.n,
            str_s(v->items.n));
    if (v->items.n_shots >= 0)
        fprintf(stderr, ", %d shot%s", v->items.n_shots, str_s(v->items.n_shots));
    fprintf(stderr, "\n");
    return 0;
}

static int open_names(struct evaluation *e, struct err *err)
{
    for (const char *p = e->q->task; p;) {
        p += strspn(p, " ");
        size_t n = strcspn(p, ",");
        const char *name = arena_strndup(&e->arena, p, n);

        if (e->n_tasks == TASKS_MAX)
            return err_set(err, ERR_CONFIG, "more than %d tasks", TASKS_MAX);
        if (task_open(&e->tasks[e->n_tasks].task, name, e->q->style, err) < 0)
            return -1;
        struct task *task = &e->tasks[e->n_tasks++].task;
        for (int i = 0; i < task->n_parts && e->q->max_new_tokens; i++)
            task->parts[i].way.max_new_tokens = e->q->max_new_tokens;
        p = p[n] ? p + n + 1 : NULL;
    }
    return 0;
}

static int check_code(const struct evaluation *e, const struct task *task, struct err *err)
{
    for (int i = 0; i < task->n_parts && !e->q->print_prompts && !e->q->allow_code; i++)
        if (task->parts[i].way.kind == TASK_CODE)
            return harness_refuse_code(task, err);
    return 0;
}

/* The command that gets the first task's files says more than that there is no such folder. */
static int refuse_data(const struct evaluation *e, struct err *err)
{
    const char *get = e->tasks[0].task.get;

    return err_set(err, ERR_DATA, "--data %s is not a folder%s%s%s", e->q->data,
                   get ? " (hint: with DATA a folder: " : "", get ? get : "", get ? ")" : "");
}

/* All tasks are found before a model is loaded for the first of them. */
static int open_tasks(struct evaluation *e, struct err *err)
{
    if (open_names(e, err) < 0)
        return -1;
    if (!e->q->data)
        return err_set(err, ERR_CONFIG,
                       "lmtrain eval --task %s: --data DIR is missing (the folder of the task's "
                       "files; lmtrain eval -h shows how to download them)",
                       e->q->task);
    if (!file_is_folder(e->q->data))
        return refuse_data(e, err);
    for (int i = 0; i < e->n_tasks; i++)
        if (check_code(e, &e->tasks[i].task, err) < 0 || load_items(e, &e->tasks[i], err) < 0)
            return -1;
    return 0;
}

/* The folder of a tokenizer: that or where its file lies. */
static const char *folder_of(struct arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');

    if (file_is_folder(path))
        return path;
    return slash ? arena_strndup(arena, path, (size_t)(slash - path)) : ".";
}

static bool is_chat(const struct task *task)
{
    for (int i = 0; i < task->n_parts; i++)
        if (task->parts[i].way.chat)
            return true;
    return false;
}

/* ModelLink applies the chat template of a model that has one, unless it is turned off. */
static int ask_in_chat(struct evaluation *e, const char *tokenizer, struct err *err)
{
    const char *folder = folder_of(&e->arena, tokenizer);
    struct chat_template *template;
    int n = 0, status = 0;

    for (int i = 0; i < e->n_tasks; i++)
        n += is_chat(&e->tasks[i].task);
    if (!n || e->q->no_chat_template || !chat_template_is_in(folder))
        return 0;
    if (chat_template_open(&template, NULL, folder, err) < 0)
        return err_add(err, "hint: --no-chat-template");
    if (speaks(e))
        fprintf(stderr, "prompts use the chat template of %s (--no-chat-template: plain text)\n",
                folder);
    for (int i = 0; i < e->n_tasks && !status; i++)
        status = items_chat(&e->tasks[i].items, &e->tasks[i].task, template, err);
    chat_template_close(template);
    return status;
}

static int open_model(struct evaluation *e, struct err *err)
{
    const struct eval_request *q = e->q;

    if (serving_open_model(&e->served, q->model, q->ensemble, q->adapter, q->weights, err) < 0)
        return -1;
    e->has_served = true;
    serving_tell(q->serving, &e->served);
    const char *path = q->tokenizer ? q->tokenizer : e->served.job.data.tokenizer;
    if (served_open_tokenizer(&e->served, q->tokenizer, &e->tokenizer, err) < 0)
        return -1;
    if (tokenizer_vocab_size(e->tokenizer) > e->served.job.model.vocab_size)
        return err_set(err, ERR_CONFIG, "%s has %d tokens, but the model's vocabulary has %d", path,
                       tokenizer_vocab_size(e->tokenizer), e->served.job.model.vocab_size);
    if (ask_in_chat(e, path, err) < 0)
        return -1;
    return serving_check(q->serving, &e->served.job.model, err);
}

/* ---- a task ---- */

static int run_one(struct evaluation *e, struct evaluated *v, struct str *out, struct err *err)
{
    struct scores scores;
    const char *output = e->q->output;
    struct harness harness = {
        .served = &e->served,
        .kernels = e->q->serving->engine.kernels,
        .tokenizer = e->tokenizer,
        .sandbox = e->q->sandbox,
        .journal = output ? arena_printf(&e->arena, "%s.journal", output) : NULL,
        .progress = show,
        .context = e,
    };

    e->now = v->task.name;
    progress_line_begin(&e->line, 2);
    int status = harness_run(&harness, &v->task, &v->items, v->results, err);
    progress_line_end(&e->line);
    if (status < 0)
        return -1;
    if (!speaks(e))
        return 0;
    scores_compute(&scores, &v->task, &v->items, v->results, &e->arena);
    if (!e->q->json)
        scores_print(&scores, &v->task, v->items.n_shots, &harness, out);
    else
        scores_print_json(&scores, &v->task, &v->items, v->results, &harness, 0, out);
    if (e->q->json)
        str_add_char(out, '\n');
    if (e->json.length)
        str_add(&e->json, ",\n");
    scores_print_json(&scores, &v->task, &v->items, v->results, &harness, 1, &e->json);
    return 0;
}

/* The journal has done its work once the whole is written. */
static int write_output(struct evaluation *e, struct err *err)
{
    struct str all = { 0 };

    if (!e->q->output || !speaks(e))
        return 0;
    scores_print_report(e->served.folder, str_text(&e->json), &all);
    int status = file_write(e->q->output, all.data, all.length, err);
    str_release(&all);
    if (!status)
        unlink(arena_printf(&e->arena, "%s.journal", e->q->output));
    return status;
}

static int run_tasks(struct evaluation *e, struct str *out, struct err *err)
{
    if (open_model(e, err) < 0)
        return -1;
    if (serving_starts(e->q->serving))
        return 0;
    if (serving_open(e->q->serving, &e->served, e->q->threads, err) < 0)
        return -1;
    for (int i = 0; i < e->n_tasks; i++) {
        if (run_one(e, &e->tasks[i], out, err) < 0)
            return -1;
        str_add(out, i + 1 < e->n_tasks && !e->q->json ? "\n" : "");
    }
    return write_output(e, err);
}

static void evaluation_close(struct evaluation *e)
{
    for (int i = 0; i < e->n_tasks; i++) {
        harness_release(e->tasks[i].results, e->tasks[i].items.n);
        items_release(&e->tasks[i].items);
        task_close(&e->tasks[i].task);
    }
    tokenizer_close(e->tokenizer);
    if (e->has_served)
        served_close(&e->served);
    str_release(&e->json);
    arena_release(&e->arena);
}

int eval_tasks(const struct eval_request *q, struct str *out, struct err *err)
{
    struct evaluation *e = calloc(1, sizeof *e);
    int status = 0;

    if (!e)
        return err_set(err, ERR_DEVICE, "out of host memory");
    e->q = q;
    status = open_tasks(e, err);
    if (!status && q->print_prompts && q->tokenizer)
        status = ask_in_chat(e, q->tokenizer, err);
    for (int i = 0; i < e->n_tasks && !status && q->print_prompts; i++)
        items_print(&e->tasks[i].items, &e->tasks[i].task, out);
    if (!status && !q->print_prompts)
        status = run_tasks(e, out, err);
    evaluation_close(e);
    free(e);
    return status;
}
