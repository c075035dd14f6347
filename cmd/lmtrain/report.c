/*
 * report.c - lmtrain report: what runs recorded, for people to look at
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "cmd.h"
#include "report_page.h"
#include "report_summary.h"

/* Whether the request is for traced steps alone, as a run without any cannot have. */
static bool is_of_traces(const struct report_request *q)
{
    return q->trace || q->steps || q->ranks;
}

static void print_json(const struct report_run *runs, int n, struct arena *arena, struct str *out)
{
    const struct run_json_options options = { .n_digits = 17 };
    cJSON *json = report_runs_json(runs, n, &options, arena);
    char *text = cJSON_Print(json);

    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

static void print_tables(const struct report_run *runs, int n, struct str *out)
{
    report_runs_print(runs, n, out);
    for (int i = 0; i < n; i++) {
        if (!runs[i].times.traces.n)
            continue;
        str_printf(out, "\n%s%s", n > 1 ? runs[i].name : "", n > 1 ? "\n" : "");
        report_summary_print(&runs[i].summary, out);
    }
}

static int write_page(const struct report_request *q, const struct report_run *runs, int n,
                      struct arena *arena, struct str *out, struct err *err)
{
    const char *path = q->to ? q->to : arena_printf(arena, "%s/report.html", runs->folder);

    if (report_page_write(runs, n, path, arena, err))
        return q->to ? -1 : err_add(err, "%s (hint: --to FILE writes it elsewhere)", runs->folder);
    if (q->json)
        log_info("%s: the page (hint: open it in a browser)", path);
    else
        str_printf(out, "%s%s: the page (hint: open it in a browser)\n", out->length ? "\n" : "",
                   path);
    return 0;
}

static int answer(const struct report_request *q, struct report_run *runs, int n,
                  struct arena *arena, struct str *out, struct err *err)
{
    if (q->trace && report_timelines_write(&runs->times, q, runs->folder, out, err))
        return -1;
    if (q->json)
        print_json(runs, n, arena, out);
    else if (!q->trace)
        print_tables(runs, n, out);
    return q->to || (!q->json && !q->trace) ? write_page(q, runs, n, arena, out, err) : 0;
}

static int run(const struct report_request *q, const struct option_arguments *folders,
               struct arena *arena, struct str *out)
{
    struct report_run *runs = arena_array(arena, struct report_run, folders->n);
    struct err err;

    if (is_of_traces(q) && folders->n > 1) {
        err_set(&err, ERR_CONFIG, "--%s is of one run, and these are %d",
                q->trace   ? "trace"
                : q->steps ? "step"
                           : "ranks",
                folders->n);
        return cmd_fail(&err);
    }
    int status =
        report_runs_open(runs, folders->items, folders->n, q, is_of_traces(q), arena, &err);
    if (!status)
        status = answer(q, runs, folders->n, arena, out, &err);
    report_runs_close(runs, folders->n);
    return status ? cmd_fail(&err) : 0;
}

int cmd_report(int argc, char **argv)
{
    struct report_request q = { 0 };
    const struct option table[] = {
        option_text("to", &q.to, "FILE",
                    "the page (default: report.html in the folder of the first RUN)"),
        option_flag("json", &q.json,
                    "print all that a page shows as JSON instead; also beside --to and --trace"),
        option_text("trace", &q.trace, "FILE",
                    "write a timeline of steps that the run traced (trace.steps of its job), for "
                    "Perfetto: each rank's ops, transfers and waiting; with a cluster the "
                    "predicted steps beside them"),
        option_text("step", &q.steps, "LIST",
                    "the step, or two, such as 10,11 (default: the last that was traced)"),
        option_text("ranks", &q.ranks, "LIST",
                    "these ranks, up to 64, such as 0-7,16 (default: the first 64 that were "
                    "traced)"),
        option_text("device", &q.device, "NAME", "predict the step on this device"),
        option_text("cluster", &q.cluster, "NAME",
                    "predict it on this cluster (default: the job's, if it has one)"),
    };
    const struct options options = {
        .command = "lmtrain report",
        .arguments = "RUN...",
        .summary = "Show what runs recorded: a page to open in a browser, tables, or a timeline of "
                   "traced steps",
        .details = "Exit status: 0; 1 the page cannot be written; 2 usage; 3 the run has no such "
                   "records.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 64,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0) {
        status = run(&q, &arguments, &arena, &out);
        if (out.length && !status)
            status = cmd_print(&out);
    }
    str_release(&out);
    arena_release(&arena);
    return status;
}
