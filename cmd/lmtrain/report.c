/*
 * report.c - lmtrain report: what a run recorded, for people to look at
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/num.h"
#include "cmd.h"
#include "kernels/kernels.h"
#include "layout/axes.h"
#include "plan/time_class.h"
#include "plan_subject.h"
#include "timelines.h"
#include "train/step_trace.h"

struct report_request {
    const char *trace, *device, *cluster;
    int step; /* 0: the last that was traced */
};

/* The traces of a step. */
struct traces {
    struct step_trace items[TIMELINE_RANKS_MAX];
    int n, n_left_out, world_size;
    int64_t step;
};

/* ---- the traces of a run ---- */

/* The number in ".../step-00000010.rank-3", or -1. */
static int64_t step_of(const char *path)
{
    const char *name = strrchr(path, '/');
    long long step;
    int rank;

    return name && sscanf(name, "/step-%lld.rank-%d", &step, &rank) == 2 ? step : -1;
}

static int read_traces(struct traces *traces, const char *run, int wanted, struct arena *arena,
                       struct err *err)
{
    glob_t found = { 0 };
    int status = 0;

    *traces = (struct traces){ .step = wanted };
    if (glob(arena_printf(arena, "%s/trace/step-*.rank-*", run), 0, NULL, &found) != 0)
        found.gl_pathc = 0;
    for (size_t i = 0; i < found.gl_pathc && !wanted; i++)
        if (step_of(found.gl_pathv[i]) > traces->step)
            traces->step = step_of(found.gl_pathv[i]);
    for (size_t i = 0; i < found.gl_pathc && !status; i++) {
        if (step_of(found.gl_pathv[i]) != traces->step)
            continue;
        if (traces->n == TIMELINE_RANKS_MAX) {
            traces->n_left_out++;
            continue;
        }
        struct step_trace *trace = &traces->items[traces->n];
        status = step_trace_read(trace, found.gl_pathv[i], arena, err);
        traces->world_size = trace->world_size;
        traces->n += !status;
    }
    globfree(&found);
    if (!status && !traces->n)
        status = err_set(err, ERR_DATA,
                         wanted ? "%s has no trace of step %d (hint: trace.steps: [%d] in the job)"
                                : "%s has no traced steps (hint: trace.steps: [10, 11] in the job)",
                         run, wanted, wanted);
    return status;
}

/* ---- timelines ---- */

/* Records of a stream in order of time, as spans on rank 0's clock. */
static int compare_spans(const void *pa, const void *pb)
{
    const struct timeline_span *a = pa, *b = pb;

    if (a->stream != b->stream)
        return a->stream < b->stream ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* An op or a wait that the program does not have is of another program. */
static int check_record(const struct program *program, const struct run_record *record)
{
    const struct entry *e = &program->entries[ENTRY_STEP];

    if (record->action < 0 || record->action >= e->n_actions || record->stream < 0 ||
        record->stream >= N_STREAMS || record->waited < 0 || record->waited >= N_STREAMS ||
        record->end_ns < record->begin_ns)
        return -1;
    return record->op < program->functions[e->actions[record->action].function].n_ops ? 0 : -1;
}

static const char *category_of(const struct program *program, const struct run_record *record)
{
    const struct action *a = &program->entries[ENTRY_STEP].actions[record->action];

    return time_class_name(record->op < 0
                               ? time_class_of_stream((enum stream)record->waited)
                               : time_class_of(&program->functions[a->function].ops[record->op]));
}

static int add_measured(struct timeline_list *list, const struct plan *plan,
                        const struct step_trace *trace, struct err *err)
{
    struct mesh mesh = job_mesh(plan->job);
    int stage = mesh_coordinate(&mesh, trace->rank, axes_stages());
    const struct program *program = &plan->programs[stage];
    struct timeline_span *spans = arena_array(list->arena, struct timeline_span, trace->n);

    for (int i = 0; i < trace->n; i++) {
        const struct run_record *r = &trace->records[i];

        if (check_record(program, r))
            return err_set(err, ERR_DATA,
                           "the trace of step %lld, rank %d, is of another program than the run's "
                           "job.yaml says (hint: was it changed, or is it of another version?)",
                           (long long)trace->step, trace->rank);
        spans[i] = (struct timeline_span){
            .action = r->action,
            .category = category_of(program, r),
            .op = r->op,
            .stream = (enum stream)r->stream,
            .begin = clock_offset_map(&trace->begin, &trace->end, r->begin_ns),
            .end = clock_offset_map(&trace->begin, &trace->end, r->end_ns)
        };
    }
    if (trace->n)
        qsort(spans, (size_t)trace->n, sizeof *spans, compare_spans);
    list->ranks =
        arena_grow(list->arena, list->ranks, sizeof *list->ranks, &list->capacity, list->n + 1);
    list->ranks[list->n++] =
        (struct timeline_rank){ .rank = trace->rank,
                                .program = program,
                                .spans = spans,
                                .n = trace->n,
                                .is_measured = true,
                                .clock_error_ns = max_i64(trace->begin.error, trace->end.error) };
    return 0;
}

static int write_trace(const struct report_request *q, const char *run, const struct traces *traces,
                       const struct plan_subject *subject, const struct plan *plan,
                       struct arena *arena, struct str *out, struct err *err)
{
    struct timeline_list list = { .arena = arena };
    int *ranks = arena_array(arena, int, traces->n), status = 0;
    struct timeline_order order;

    for (int i = 0; i < traces->n; i++)
        ranks[i] = traces->items[i].rank;
    if (subject->has_cluster)
        status = timelines_add_predicted(&list, plan, &subject->cluster, ranks, traces->n, err);
    for (int i = 0; i < traces->n && !status; i++)
        status = add_measured(&list, plan, &traces->items[i], err);
    if (!status)
        status = timelines_write(&list, plan,
                                 arena_printf(arena, "%s, step %lld", run, (long long)traces->step),
                                 q->trace, &order, err);
    if (!status)
        str_printf(out, "%s: step %lld of %d rank%s%s (hint: open it at ui.perfetto.dev)\n",
                   q->trace, (long long)traces->step, traces->n, str_s(traces->n),
                   subject->has_cluster ? ", predicted and measured" : "");
    if (!status && order.n_beyond)
        log_warn("%d times something ends before it can, up to %.3f ms by the ranks' clocks, whose "
                 "errors are up to %.3f ms: was a clock set during the step?",
                 order.n_beyond, (double)order.most_ns / 1e6, (double)order.error_ns / 1e6);
    if (!status && traces->n_left_out)
        log_warn("%d more ranks were traced; a file has %d", traces->n_left_out,
                 TIMELINE_RANKS_MAX);
    return status;
}

static int answer(const struct report_request *q, const char *run, struct arena *arena,
                  struct str *out)
{
    struct plan_reading reading = { .device = q->device, .cluster = q->cluster, .n_top = 1 };
    struct traces *traces = arena_array(arena, struct traces, 1);
    struct plan_subject *subject = arena_array(arena, struct plan_subject, 1);
    struct pool *pool = NULL;
    struct kernels *kernels = NULL;
    struct plan plan = { .job = &subject->job };
    struct err err;

    if (!q->trace) {
        err_set(&err, ERR_CONFIG, "there is nothing to make (hint: --trace FILE)");
        return cmd_fail(&err);
    }
    int status = read_traces(traces, run, q->step, arena, &err);
    if (!status)
        status = plan_read_subject(subject, &reading, arena_printf(arena, "%s/job.yaml", run),
                                   traces->world_size, arena, &err);
    if (!status)
        status = pool_create(&pool, 1, NULL, &err);
    if (!status)
        status = kernels_cpu_create(&kernels, pool, NULL, &err);
    if (!status)
        status = plan_open_with(&plan, &subject->job, kernels, &err);
    if (!status)
        status = write_trace(q, run, traces, subject, &plan, arena, out, &err);
    plan_close(&plan);
    kernels_destroy(kernels);
    pool_destroy(pool);
    return status ? cmd_fail(&err) : 0;
}

int cmd_report(int argc, char **argv)
{
    struct report_request q = { 0 };
    const struct option table[] = {
        option_text("trace", &q.trace, "FILE",
                    "write a timeline of a step that the run traced (trace.steps of its job), for "
                    "Perfetto: each rank's ops, transfers and waiting; with a cluster the "
                    "predicted step beside it"),
        option_int("step", &q.step, "N", 1, 2000000000,
                   "the step (default: the last that was traced)"),
        option_text("device", &q.device, "NAME", "predict the step on this device"),
        option_text("cluster", &q.cluster, "NAME",
                    "predict it on this cluster (default: the job's, if it has one)"),
    };
    const struct options options = {
        .command = "lmtrain report",
        .arguments = "RUN",
        .summary = "Make what a run recorded into files to look at",
        .details = "Exit status: 0; 2 usage; 3 the run has no such records.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    struct str out = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0) {
        status = answer(&q, arguments.items[0], &arena, &out);
        if (out.length && !status)
            status = cmd_print(&out);
    }
    str_release(&out);
    arena_release(&arena);
    return status;
}
