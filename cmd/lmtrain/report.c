/*
 * report.c - lmtrain report: what runs recorded, for people to look at
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "cmd.h"
#include "report_page.h"
#include "report_summary.h"

#define N_SLICES 6000 /* of the timeline of a run, printed as JSON */

/* Whether the request is for traced steps alone, as a run without any cannot have. */
static bool is_of_traces(const struct report_request *q)
{
    return q->trace || q->steps || q->ranks;
}

static void print_json(const struct report *report, struct arena *arena, struct str *out)
{
    const struct run_json_options options = { .n_digits = 17, .n_slices = N_SLICES };
    cJSON *json = report_json(report, &options, arena);
    char *text = cJSON_Print(json);

    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

static void print_tables(const struct report *report, struct str *out)
{
    report_print(report, out);
    for (int i = 0; i < report->n; i++) {
        const struct report_run *run = &report->runs[i];

        if (!run->times.traces.n)
            continue;
        str_printf(out, "\n%s%s", report->n > 1 ? run->name : "", report->n > 1 ? "\n" : "");
        report_summary_print(&run->summary, out);
    }
}

static int write_page(const struct report_request *q, const struct report *report,
                      struct arena *arena, struct str *out, struct err *err)
{
    const char *path = q->to ? q->to : arena_printf(arena, "%s/report.html", report->folder);

    if (q->to && file_is_folder(q->to))
        return err_set(err, ERR_CONFIG, "--to is %s, a folder (hint: --to %s/report.html)", q->to,
                       q->to);
    if (report_page_write(report, path, arena, err))
        return q->to ? -1
                     : err_add(err, "%s (hint: --to FILE writes it elsewhere)", report->folder);
    if (q->json)
        log_info("%s: the page (hint: open it in a browser)", path);
    else
        str_printf(out, "%s%s: the page (hint: open it in a browser)\n", out->length ? "\n" : "",
                   path);
    return 0;
}

static int answer(const struct report_request *q, const struct report *report, struct arena *arena,
                  struct str *out, struct err *err)
{
    if (q->trace && report_timelines_write(&report->runs->times, q, report->runs->folder, out, err))
        return -1;
    if (q->json)
        print_json(report, arena, out);
    else if (!q->trace)
        print_tables(report, out);
    return q->to || (!q->json && !q->trace) ? write_page(q, report, arena, out, err) : 0;
}

/* --trace and what chooses steps are of a run. */
static int check(const struct report_request *q, const struct option_arguments *folders,
                 struct err *err)
{
    const char *option = q->trace ? "trace" : q->steps ? "step" : "ranks";

    if (is_of_traces(q) && folders->n > 1)
        return err_set(err, ERR_CONFIG, "--%s is of one run, and these are %d", option, folders->n);
    if (is_of_traces(q) && run_sweep_is(folders->items[0]))
        return err_set(err, ERR_CONFIG,
                       "--%s is of one run, and %s is a sweep (hint: the run of a trial is in its "
                       "folder, as %s/trial-000)",
                       option, folders->items[0], folders->items[0]);
    return 0;
}

static int run(const struct report_request *q, const struct option_arguments *folders,
               struct arena *arena, struct str *out)
{
    struct report report;
    struct err err;

    if (check(q, folders, &err))
        return cmd_fail(&err);
    int status = report_open(&report, folders->items, folders->n, q, is_of_traces(q), arena, &err);
    if (!status)
        status = answer(q, &report, arena, out, &err);
    report_close(&report);
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
