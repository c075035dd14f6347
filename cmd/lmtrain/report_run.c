/*
 * report_run.c - reading runs, and all of them as JSON or as a table
 */
#include "report_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/num.h"
#include "cmd.h"
#include "progress/status_file.h"
#include "report/run_watch.h"
#include "report/table.h"
#include "report_plan.h"
#include "report_summary.h"

#define N_DIFFERENCES 20

/* ---- reading ---- */

/* The last part of a path, slashes at its end aside. */
static const char *last_part(const char *path, struct arena *arena)
{
    char *copy = arena_strdup(arena, path);
    size_t length = strlen(copy);

    while (length > 1 && copy[length - 1] == '/')
        copy[--length] = '\0';
    char *slash = strrchr(copy, '/');
    return slash && slash[1] ? slash + 1 : copy;
}

/* All of the path where another run has the same last part. */
static const char *name_of(const char *const *folders, int n, int run, struct arena *arena)
{
    const char *name = last_part(folders[run], arena);

    for (int i = 0; i < n; i++)
        if (i != run && !strcmp(last_part(folders[i], arena), name))
            return folders[run];
    return name;
}

static struct report_rank rank_of(const struct report_run *run)
{
    const char *device = flat_job_find(&run->job, "device");
    bool is_gpu = (device && !strcmp(device, "cuda")) ||
                  run_table_find(&run->log.steps, "gpu_memory_bytes") != NULL;

    return (struct report_rank){ .n_ranks = run->log.n_ranks, .is_gpu = is_gpu };
}

/* With what the plan has found out of it. */
static void resolve_job(struct report_run *run, struct arena *arena)
{
    struct str text = { 0 };
    struct flat_job resolved;
    struct err ignored;

    job_print(run->times.plan.job, &text);
    if (!flat_job_parse(&resolved, str_text(&text), text.length, "job.yaml", arena, &ignored))
        run->job = resolved;
    str_release(&text);
}

static void summarize(struct report_run *run, struct arena *arena)
{
    const struct timeline_list *list = &run->times.list;
    struct mesh mesh = job_mesh(run->times.plan.job);
    struct timeline timeline = { .mesh = &mesh, .ranks = list->ranks, .n = list->n };

    timeline_summarize(&run->summary, &timeline, N_DIFFERENCES, arena);
}

static int open_run(struct report_run *run, const struct report_request *q, bool must_trace,
                    struct arena *arena, struct err *err)
{
    if (!file_is_folder(run->folder))
        return err_set(err, ERR_DATA,
                       "%s is not a folder (hint: RUN is what a job names as output)", run->folder);
    if (run_log_read(&run->log, run->folder, arena, err) && !must_trace)
        return -1;
    if (flat_job_read(&run->job, arena_printf(arena, "%s/job.yaml", run->folder), arena,
                      &run->plan_error))
        run->job = (struct flat_job){ .n = 0 };
    run_scores_read(&run->scores, run->folder, arena);
    const struct report_rank rank = rank_of(run);
    run->plan_error.text[0] = '\0';
    int status = report_timelines_open(&run->times, q, run->folder, &rank, must_trace, arena,
                                       &run->plan_error);
    if (status && must_trace) {
        *err = run->plan_error;
        return -1;
    }
    run->has_plan = !status;
    if (!status && !q->device && !q->cluster)
        resolve_job(run, arena);
    if (!status)
        summarize(run, arena);
    return 0;
}

/* ---- sweeps ---- */

struct folder_list {
    const char **items;
    int n, capacity;
};

static void add_folder(struct folder_list *list, const char *folder, struct arena *arena)
{
    list->items = arena_grow(arena, list->items, sizeof *list->items, &list->capacity, list->n + 1);
    list->items[list->n++] = folder;
}

/* The runs of the best trials, as far as they have begun. */
static int add_sweep(struct report *report, const char *folder, struct folder_list *list,
                     struct arena *arena, struct err *err)
{
    struct run_sweep *sweep = &report->sweeps[report->n_sweeps];
    int *order, n = 0;

    if (run_sweep_read(sweep, folder, arena, err))
        return -1;
    report->sweep_folders[report->n_sweeps++] = folder;
    run_sweep_rank(sweep, &order, arena);
    for (int i = 0; i < sweep->n_trials && n < REPORT_TRIALS_MAX; i++) {
        const char *run = run_sweep_folder(folder, order[i], arena);

        if (file_exists(arena_printf(arena, "%s/metrics.jsonl", run))) {
            add_folder(list, run, arena);
            n++;
        }
    }
    return 0;
}

static int list_runs(struct report *report, const char *const *folders, int n,
                     struct folder_list *list, struct arena *arena, struct err *err)
{
    for (int i = 0; i < n; i++) {
        if (!run_sweep_is(folders[i]))
            add_folder(list, folders[i], arena);
        else if (add_sweep(report, folders[i], list, arena, err))
            return -1;
    }
    return 0;
}

int report_open(struct report *report, const char *const *folders, int n,
                const struct report_request *request, bool must_trace, struct arena *arena,
                struct err *err)
{
    struct folder_list list = { .n = 0 };

    *report = (struct report){ .folder = folders[0],
                               .sweeps = arena_array(arena, struct run_sweep, n),
                               .sweep_folders = arena_array(arena, const char *, n) };
    if (list_runs(report, folders, n, &list, arena, err))
        return -1;
    report->runs = arena_array(arena, struct report_run, list.n);
    report->n = list.n;
    for (int i = 0; i < list.n; i++)
        report->runs[i] = (struct report_run){ .folder = list.items[i],
                                               .name = name_of(list.items, list.n, i, arena) };
    for (int i = 0; i < list.n; i++)
        if (open_run(&report->runs[i], request, must_trace, arena, err))
            return -1;
    return 0;
}

void report_close(struct report *report)
{
    for (int i = 0; i < report->n; i++)
        report_timelines_close(&report->runs[i].times);
}

/* ---- JSON ---- */

/*
 * "measured_memory": the peaks of the ranks' processes, as the run's status has them, and the most
 * that was in use of rank 0's GPU; nothing of runs that have neither.
 */
static void add_measured_memory(const struct report_run *run, cJSON *json, struct arena *arena)
{
    const double *gpu = run_table_find(&run->log.steps, "gpu_memory_bytes");
    struct run_watch watch;
    struct err ignored;
    cJSON *ranks = cJSON_CreateArray();
    double most = 0;

    if (run_watch_read(&watch, run->folder, status_now(), arena, &ignored) < 0)
        watch.n_listed = 0;
    for (int i = 0; i < watch.n_listed; i++) {
        const struct watch_rank *r = &watch.ranks[i];

        if (r->peak_bytes <= 0)
            continue;
        cJSON *rank = cJSON_CreateObject();
        cJSON_AddNumberToObject(rank, "rank", r->rank);
        if (*r->host)
            cJSON_AddStringToObject(rank, "host", r->host);
        cJSON_AddNumberToObject(rank, "peak_bytes", (double)r->peak_bytes);
        cJSON_AddItemToArray(ranks, rank);
    }
    for (int i = 0; gpu && i < run->log.steps.n_rows; i++)
        most = gpu[i] > most ? gpu[i] : most;
    if (!cJSON_GetArraySize(ranks) && most <= 0) {
        cJSON_Delete(ranks);
        return;
    }
    cJSON *measured = cJSON_AddObjectToObject(json, "measured_memory");
    cJSON_AddItemToObject(measured, "ranks", ranks);
    if (most > 0)
        cJSON_AddNumberToObject(measured, "gpu_bytes", most);
}

static cJSON *run_json(const struct report_run *run, const struct run_json_options *options,
                       struct arena *arena)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "name", run->name);
    cJSON_AddStringToObject(json, "folder", run->folder);
    run_json_add_log(json, &run->log, options);
    add_measured_memory(run, json, arena);
    run_json_add_scores(json, &run->scores);
    run_json_add_job(json, &run->job);
    if (*run->plan_error.text)
        cJSON_AddStringToObject(json, "plan_error", run->plan_error.text);
    if (!run->has_plan) {
        report_plan_add_kinds(&(struct timeline){ .n = 0 }, &run->log, json, arena);
        return json;
    }
    report_plan_add(&run->times, &run->log, options->n_slices, json, arena);
    if (run->summary.n_totals)
        cJSON_AddItemToObject(json, "trace", report_summary_json(&run->summary));
    return json;
}

static void add_sweeps(const struct report *report, cJSON *json)
{
    if (!report->n_sweeps)
        return;
    cJSON *list = cJSON_AddArrayToObject(json, "sweeps");
    for (int i = 0; i < report->n_sweeps; i++) {
        cJSON *sweep = run_sweep_json(&report->sweeps[i]);

        cJSON_AddStringToObject(sweep, "folder", report->sweep_folders[i]);
        cJSON_AddItemToArray(list, sweep);
    }
}

cJSON *report_json(const struct report *report, const struct run_json_options *options,
                   struct arena *arena)
{
    cJSON *json = report->n == 1 && report->runs->times.traces.n
                      ? report_summary_json(&report->runs->summary)
                      : cJSON_CreateObject();
    struct flat_job *jobs = arena_array(arena, struct flat_job, report->n);
    struct flat_job_difference *differences;

    cJSON_AddStringToObject(json, "lmtrain", cmd_build());
    cJSON_AddNumberToObject(json, "made", (double)time(NULL));
    cJSON *list = cJSON_AddArrayToObject(json, "runs");
    for (int i = 0; i < report->n; i++) {
        cJSON_AddItemToArray(list, run_json(&report->runs[i], options, arena));
        jobs[i] = report->runs[i].job;
    }
    add_sweeps(report, json);
    int n = flat_job_compare(&differences, jobs, report->n, arena);
    cJSON_AddItemToObject(json, "differences", run_json_differences(differences, n, report->n));
    return json;
}

/* ---- a table ---- */

static const char *number_text(char *text, size_t size, const char *format, double value)
{
    if (isnan(value))
        return "-";
    snprintf(text, size, format, value);
    return text;
}

/* "4.4938 kjv, 5.1 code": each set's lowest */
static void print_best(const struct run_log *log, struct str *out)
{
    for (int s = 0; s < log->n_evaluations; s++) {
        const struct run_table *set = &log->evaluations[s];
        const double *loss = run_table_find(set, "eval_loss");
        double best = NAN;

        for (int i = 0; i < set->n_rows; i++)
            best = loss ? fmin(best, loss[i]) : NAN;
        if (!isnan(best))
            str_printf(out, "%s%.4f%s%s", out->length ? ", " : "", best, *set->name ? " " : "",
                       set->name);
    }
    if (!out->length)
        str_add(out, "-");
}

static void print_runs(const struct report *report, struct str *out)
{
    struct report_table table;

    report_table_init(&table, "lrrlrrrr");
    report_table_heading(&table, "run\tstep\tloss\tbest held-out\ttokens\ttokens/s\tMFU\trestarts");
    for (int i = 0; i < report->n; i++) {
        const struct run_log *log = &report->runs[i].log;
        const struct run_table *steps = &log->steps;
        char step[32], loss[32], tokens[32], speed[32], mfu[32];
        struct str best = { 0 };

        print_best(log, &best);
        report_table_row(
            &table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d", report->runs[i].name,
            number_text(step, sizeof step, "%.0f", run_table_last(steps, "step")),
            number_text(loss, sizeof loss, "%.4f", run_table_last(steps, "loss")), str_text(&best),
            number_text(tokens, sizeof tokens, "%.4g", run_table_last(steps, "tokens")),
            number_text(speed, sizeof speed, "%.4g", run_table_median(steps, "tokens_per_s")),
            number_text(mfu, sizeof mfu, "%.1f %%", 100 * run_table_median(steps, "mfu")),
            log->n_restarts);
        str_release(&best);
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

/* Best first. */
static void print_sweep(const struct run_sweep *sweep, struct arena *arena, struct str *out)
{
    struct report_table table;
    int *order;

    run_sweep_rank(sweep, &order, arena);
    report_table_init(&table, "rlrrl");
    report_table_heading(&table, "trial\tstate\tstep\t%s\tsettings", sweep->metric);
    for (int i = 0; i < sweep->n_trials; i++) {
        const struct sweep_trial_record *trial = &sweep->trials[order[i]];
        char value[32];

        report_table_row(&table, "%d\t%s\t%lld\t%s\t%s", order[i], trial->state,
                         (long long)trial->step,
                         number_text(value, sizeof value, "%.4f", trial->value),
                         trial->settings ? trial->settings : "");
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
    str_add(out, "\n");
}

void report_print(const struct report *report, struct str *out)
{
    struct arena arena = { 0 };

    for (int i = 0; i < report->n_sweeps; i++)
        print_sweep(&report->sweeps[i], &arena, out);
    if (report->n)
        print_runs(report, out);
    arena_release(&arena);
}
