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

int report_runs_open(struct report_run *runs, const char *const *folders, int n,
                     const struct report_request *request, bool must_trace, struct arena *arena,
                     struct err *err)
{
    for (int i = 0; i < n; i++)
        runs[i] =
            (struct report_run){ .folder = folders[i], .name = name_of(folders, n, i, arena) };
    for (int i = 0; i < n; i++)
        if (open_run(&runs[i], request, must_trace, arena, err))
            return -1;
    return 0;
}

void report_runs_close(struct report_run *runs, int n)
{
    for (int i = 0; i < n; i++)
        report_timelines_close(&runs[i].times);
}

/* ---- JSON ---- */

static cJSON *run_json(const struct report_run *run, const struct run_json_options *options,
                       struct arena *arena)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddStringToObject(json, "name", run->name);
    cJSON_AddStringToObject(json, "folder", run->folder);
    run_json_add_log(json, &run->log, options);
    run_json_add_scores(json, &run->scores);
    run_json_add_job(json, &run->job);
    if (*run->plan_error.text)
        cJSON_AddStringToObject(json, "plan_error", run->plan_error.text);
    if (!run->has_plan)
        return json;
    report_plan_add(&run->times, json, arena);
    if (run->summary.n_totals)
        cJSON_AddItemToObject(json, "trace", report_summary_json(&run->summary));
    return json;
}

cJSON *report_runs_json(const struct report_run *runs, int n,
                        const struct run_json_options *options, struct arena *arena)
{
    cJSON *json =
        n == 1 && runs->times.traces.n ? report_summary_json(&runs->summary) : cJSON_CreateObject();
    struct flat_job *jobs = arena_array(arena, struct flat_job, n);
    struct flat_job_difference *differences;

    cJSON_AddStringToObject(json, "lmtrain", cmd_build());
    cJSON_AddNumberToObject(json, "made", (double)time(NULL));
    cJSON *list = cJSON_AddArrayToObject(json, "runs");
    for (int i = 0; i < n; i++) {
        cJSON_AddItemToArray(list, run_json(&runs[i], options, arena));
        jobs[i] = runs[i].job;
    }
    int n_differences = flat_job_compare(&differences, jobs, n, arena);
    cJSON_AddItemToObject(json, "differences", run_json_differences(differences, n_differences, n));
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

void report_runs_print(const struct report_run *runs, int n, struct str *out)
{
    struct report_table table;

    report_table_init(&table, "lrrlrrrr");
    report_table_heading(&table, "run\tstep\tloss\tbest held-out\ttokens\ttokens/s\tMFU\trestarts");
    for (int i = 0; i < n; i++) {
        const struct run_log *log = &runs[i].log;
        const struct run_table *steps = &log->steps;
        char step[32], loss[32], tokens[32], speed[32], mfu[32];
        struct str best = { 0 };

        print_best(log, &best);
        report_table_row(
            &table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d", runs[i].name,
            number_text(step, sizeof step, "%.0f", run_table_last(steps, "step")),
            number_text(loss, sizeof loss, "%.4f", run_table_last(steps, "loss")), str_text(&best),
            number_text(tokens, sizeof tokens, "%.4g", run_table_last(steps, "tokens")),
            number_text(speed, sizeof speed, "%.4g", run_table_median(steps, "tokens_per_s")),
            number_text(mfu, sizeof mfu, "%.1f %%", 100 * run_table_median(steps, "mfu")),
            max_int(0, log->n_starts - 1));
        str_release(&best);
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
}
