/*
 * plan_ladder.c - a row for each budget
 */
#include "plan_ladder.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "launch/cores.h"
#include "plan/keep_sets.h"
#include "plan/memory_ladder.h"
#include "plan/plan.h"
#include "plan/step_time.h"
#include "report/table.h"

enum { N_BUDGETS = 10 };

/* A budget's facts: of the pipeline rank with most in each. */
struct budget {
    const struct memory_rung *rung;
    int64_t device, host, file; /* bytes */
    int64_t added_ns, step_ns;  /* of a step; without what is added */
    double tokens_per_second;   /* 0: no cluster is given */
    const char *what;           /* goes, in short */
};

struct ladder_view {
    const struct plan_subject *subject;
    const struct plan *plain; /* where everything is kept */
    struct memory_rung rungs[N_BUDGETS];
    struct budget budgets[N_BUDGETS];
    struct arena arena;
};

/* ---- what goes ---- */

static void add_word(struct str *out, const char *text)
{
    str_printf(out, "%s%s", out->length ? ", " : "", text);
}

/* "states", or "40 % of gradients" */
static void add_cells(const struct memory_fit *fit, int pp, enum away_kind kind, const char *name,
                      struct str *out)
{
    int64_t all = 0, away = 0;
    char text[48];

    for (int i = 0; i < pp; i++) {
        all += fit->ranks[i].cell_bytes[kind];
        away += fit->ranks[i].away_bytes[kind];
    }
    if (!away)
        return;
    snprintf(text, sizeof text, "%.0f %% of %s", 100 * (double)away / (double)all, name);
    add_word(out, away >= all ? name : text);
}

/* "12 of 80 layers computed again in full" */
static void add_layers(const struct memory_fit *fit, int n_layers, struct str *out)
{
    const unsigned char *set_of_layer = fit->keep_sets.set_of_layer;
    int n_full = 0, n_partly = 0;
    char text[64];

    for (int i = 0; i < n_layers && set_of_layer; i++) {
        const struct keep_set *set = &fit->keep_sets.sets[set_of_layer[i]];
        const struct keep_point *first = fit->fronts->fronts[fit->fronts->front_of_layer[i]].points;

        n_full += set->full && !first->set.full;
        n_partly += !set->full && !bitset_is_empty(&set->dropped) &&
                    memcmp(&set->dropped, &first->set.dropped, sizeof set->dropped);
    }
    snprintf(text, sizeof text, "%d of %d layers remade", n_full, n_layers);
    if (n_full)
        add_word(out, text);
    snprintf(text, sizeof text, "%d of %d partly remade", n_partly, n_layers);
    if (n_partly)
        add_word(out, text);
}

static const char *describe(struct ladder_view *v, const struct memory_fit *fit)
{
    const struct job *job = v->plain->job;
    struct str text = { 0 };
    char size[32], line[64];
    int64_t kept = 0;
    bool on_host = false;

    add_cells(fit, job->parallel.pp, AWAY_STATES, "states", &text);
    add_cells(fit, job->parallel.pp, AWAY_GRADIENTS, "gradients", &text);
    add_cells(fit, job->parallel.pp, AWAY_WEIGHTS, "weights", &text);
    for (int i = 0; i < job->parallel.pp; i++) {
        kept = max_i64(kept, fit->ranks[i].activation_bytes);
        on_host |= fit->offload[i].updates_on_host;
    }
    snprintf(line, sizeof line, "%s of activations", str_bytes(size, sizeof size, (uint64_t)kept));
    if (kept)
        add_word(&text, line);
    add_layers(fit, job->model.n_layers, &text);
    if (on_host)
        add_word(&text, "update on the host");
    if (!text.length)
        add_word(&text, "nothing");
    const char *words = arena_strdup(&v->arena, str_text(&text));
    str_release(&text);
    return words;
}

/* ---- a budget ---- */

/* The job with the choice, which needs no other. */
static struct job *chosen_job(struct ladder_view *v, const struct memory_fit *fit)
{
    struct job *job = arena_new(&v->arena, struct job);

    *job = *v->plain->job;
    job->keep_sets = fit->keep_sets;
    job->offload = fit->offload;
    return job;
}

static int rate(struct ladder_view *v, struct budget *b, struct err *err)
{
    struct step_time time;
    struct plan plan;
    int status = plan_open_with(&plan, chosen_job(v, &b->rung->fit), v->plain->kernels, err);

    if (!status)
        status = step_time_predict(&time, &plan, &v->subject->cluster, &v->arena, err);
    if (!status)
        b->tokens_per_second = time.tokens_per_second;
    plan_close(&plan);
    return status;
}

static int look_at(struct ladder_view *v, struct budget *b, struct err *err)
{
    const struct memory_fit *fit = &b->rung->fit;
    int pp = v->plain->job->parallel.pp;

    if (!b->rung->fits)
        return 0;
    for (int i = 0; i < pp; i++) {
        b->device = max_i64(b->device, fit->ranks[i].device_bytes);
        b->host = max_i64(b->host, fit->ranks[i].host_bytes);
        b->file = max_i64(b->file, fit->ranks[i].file_bytes);
        b->step_ns = max_i64(b->step_ns, fit->ranks[i].step_ns);
    }
    b->added_ns = b->rung->added_ns;
    b->what = describe(v, fit);
    return v->subject->has_cluster ? rate(v, b, err) : 0;
}

static double percent(const struct budget *b)
{
    return 100 * (double)b->added_ns / (double)max_i64(1, b->step_ns);
}

/* ---- output ---- */

static void print_table(const struct ladder_view *v, struct str *out)
{
    bool has_rate = v->subject->has_cluster, has_file = false;
    char limit[32], device[32], host[32], file[32], speed[32] = "";
    struct report_table table;

    for (int i = 0; i < N_BUDGETS; i++)
        has_file |= v->budgets[i].file > 0;
    report_table_init(&table, has_file   ? has_rate ? "rrrrrrrl" : "rrrrrrl"
                              : has_rate ? "rrrrrrl"
                                         : "rrrrrl");
    report_table_heading(
        &table, "memory.device_bytes\ttaken\tin host memory%s\tadded\tof a step%s\twhat goes",
        has_file ? "\tin the file" : "", has_rate ? "\ttokens/s" : "");
    for (int i = 0; i < N_BUDGETS; i++) {
        const struct budget *b = &v->budgets[i];

        str_bytes(limit, sizeof limit, (uint64_t)b->rung->limit_bytes);
        if (!b->rung->fits) {
            report_table_row(&table, "%s%s\t\t\t\t\t%s", limit,
                             has_file && has_rate   ? "\t\t"
                             : has_file || has_rate ? "\t"
                                                    : "",
                             b->rung->why.text);
            continue;
        }
        snprintf(speed, sizeof speed, "\t%.0f", b->tokens_per_second);
        snprintf(file, sizeof file, "\t");
        str_bytes(file + 1, sizeof file - 1, (uint64_t)b->file);
        report_table_row(&table, "%s\t%s\t%s%s\t%.1f ms\t%+.1f %%%s\t%s", limit,
                         str_bytes(device, sizeof device, (uint64_t)b->device),
                         str_bytes(host, sizeof host, (uint64_t)b->host), has_file ? file : "",
                         (double)b->added_ns / 1e6, percent(b), has_rate ? speed : "", b->what);
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

static void print_json(const struct ladder_view *v, struct str *out)
{
    cJSON *json = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(json, "ladder");

    for (int i = 0; i < N_BUDGETS; i++) {
        const struct budget *b = &v->budgets[i];
        cJSON *item = cJSON_CreateObject();

        cJSON_AddNumberToObject(item, "limit_bytes", (double)b->rung->limit_bytes);
        cJSON_AddBoolToObject(item, "fits", b->rung->fits);
        if (b->rung->fits) {
            cJSON_AddNumberToObject(item, "device_bytes", (double)b->device);
            cJSON_AddNumberToObject(item, "host_bytes", (double)b->host);
            cJSON_AddNumberToObject(item, "file_bytes", (double)b->file);
            cJSON_AddNumberToObject(item, "added_ns", (double)b->added_ns);
            cJSON_AddNumberToObject(item, "added_percent", percent(b));
            cJSON_AddStringToObject(item, "away", b->what);
        } else {
            cJSON_AddStringToObject(item, "why", b->rung->why.text);
        }
        if (b->tokens_per_second > 0)
            cJSON_AddNumberToObject(item, "tokens_per_second", b->tokens_per_second);
        cJSON_AddItemToArray(list, item);
    }
    char *text = cJSON_Print(json);
    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

/* ---- the ladder ---- */

static int find_budgets(struct ladder_view *v, struct err *err)
{
    struct job *job = arena_new(&v->arena, struct job);
    const struct memory_fit_request request = { .job = job, .kernels = v->plain->kernels };

    *job = v->subject->job;
    if (job->parallel.prefetch < 0)
        job->parallel.prefetch = 0; /* as where a budget is given */
    if (job->memory.recompute_early < 0)
        job->memory.recompute_early = 0;
    if (!memory_is_chosen(job)) {
        job->memory.offload = OFFLOAD_AUTO;
        job->recompute = RECOMPUTE_AUTO;
    }
    if (memory_ladder(v->rungs, N_BUDGETS, &request, &v->arena, err) < 0)
        return -1;
    for (int i = 0; i < N_BUDGETS; i++) {
        v->budgets[i].rung = &v->rungs[i];
        if (look_at(v, &v->budgets[i], err) < 0)
            return -1;
    }
    return 0;
}

int plan_ladder(const struct plan_subject *subject, bool as_json, struct str *out, struct err *err)
{
    struct ladder_view *v = calloc(1, sizeof *v);
    struct job job = subject->job;
    struct rank_cores cores;
    struct plan plain = { .job = &job };

    CHECK(v);
    *v = (struct ladder_view){ .subject = subject, .plain = &plain };
    job.memory.offload = OFFLOAD_NONE;
    job.memory.device_bytes = 0;
    if (job.recompute == RECOMPUTE_AUTO)
        job.recompute = RECOMPUTE_NONE;
    int status = launch_cores_of(0, job.world_size, &cores, err);
    if (!status)
        status = plan_open(&plain, &job, cores.n_cores, -1, err);
    if (!status)
        status = find_budgets(v, err);
    if (!status)
        (as_json ? print_json : print_table)(v, out);
    plan_close(&plain);
    arena_release(&v->arena);
    free(v);
    return status;
}
