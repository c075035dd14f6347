/*
 * report.c - lmtrain report: what a run recorded, for people to look at
 */
#include <stdlib.h>

#include "base/log.h"
#include "base/num.h"
#include "cmd.h"
#include "kernels/kernels.h"
#include "layout/axes.h"
#include "plan_subject.h"
#include "report_summary.h"
#include "timelines.h"
#include "train/step_traces.h"

#define N_DIFFERENCES 20

struct report_request {
    const char *trace, *device, *cluster, *steps, *ranks;
    bool json;
};

/* ---- timelines ---- */

/* Records of a stream in order of time. */
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

static enum time_class class_of(const struct program *program, const struct run_record *record)
{
    const struct action *a = &program->entries[ENTRY_STEP].actions[record->action];

    return record->op < 0 ? time_class_of_stream((enum stream)record->waited)
                          : time_class_of(&program->functions[a->function].ops[record->op]);
}

/* On rank 0's clock. */
static int add_measured(struct timeline_list *list, const struct plan *plan,
                        const struct step_trace *trace, struct err *err)
{
    struct mesh mesh = job_mesh(plan->job);
    int stage = mesh_coordinate(&mesh, trace->rank, axes_stages());
    const struct program *programs =
        replica_programs_find(list->replicas, mesh_data_rank(&mesh, trace->rank), err);
    if (!programs)
        return -1;
    const struct program *program = &programs[stage];
    struct timeline_span *spans = arena_array(list->arena, struct timeline_span, trace->n);

    for (int i = 0; i < trace->n; i++) {
        const struct run_record *r = &trace->records[i];

        if (check_record(program, r))
            return err_set(err, ERR_DATA,
                           "the trace of step %lld, rank %d, is of another program than the run's "
                           "job.yaml says (hint: was it changed, or is it of another version?)",
                           (long long)trace->step, trace->rank);
        spans[i] =
            (struct timeline_span){ .action = r->action,
                                    .op = r->op,
                                    .stream = (enum stream)r->stream,
                                    .begin =
                                        clock_offset_map(&trace->begin, &trace->end, r->begin_ns),
                                    .end = clock_offset_map(&trace->begin, &trace->end, r->end_ns),
                                    .class = class_of(program, r) };
    }
    if (trace->n)
        qsort(spans, (size_t)trace->n, sizeof *spans, compare_spans);
    timelines_add(list, &(struct timeline_rank){
                            .rank = trace->rank,
                            .step = trace->step,
                            .program = program,
                            .spans = spans,
                            .n = trace->n,
                            .is_measured = true,
                            .clock_error_ns = max_i64(trace->begin.error, trace->end.error) });
    return 0;
}

/* When the first of the measured ranks begins the step. */
static int64_t begin_of(const struct timeline_list *list, int64_t step)
{
    int64_t first = INT64_MAX;

    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < list->ranks[i].n; k++)
            if (list->ranks[i].is_measured && list->ranks[i].step == step)
                first = min_i64(first, list->ranks[i].spans[k].begin);
    return first;
}

static int64_t last_end(const struct timeline_rank *ranks, int n)
{
    int64_t last = 0;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < ranks[i].n; k++)
            last = max_i64(last, ranks[i].spans[k].end);
    return last;
}

/* Predicted steps begin where measured ones do, but not before the one before has ended. */
static int add_predicted(struct timeline_list *list, const struct plan *plan,
                         const struct cluster *cluster, const struct step_traces *traces,
                         struct err *err)
{
    int *ranks = arena_array(list->arena, int, traces->n), first = list->n;

    for (int i = 0; i < traces->n; i++)
        ranks[i] = traces->items[i].rank;
    if (timelines_add_predicted(list, plan, cluster, ranks, traces->n, err))
        return -1;
    int64_t took = last_end(&list->ranks[first], traces->n), shift = 0;
    for (int i = 0; i < traces->n; i++) {
        struct timeline_rank *r = &list->ranks[first + i];
        int64_t begin = begin_of(list, traces->items[i].step);

        r->step = traces->items[i].step;
        if (i && r->step != r[-1].step)
            shift = max_i64(shift + took, begin - begin_of(list, traces->items[0].step));
        r->shift = shift;
    }
    return 0;
}

/* ---- what is made of them ---- */

/* "FILE: step 10 and 11 of 2 ranks, predicted and measured" */
static void print_made(const struct report_request *q, const struct timeline_list *list,
                       const struct step_traces *traces, struct str *out)
{
    int n_steps = 1;

    for (int i = 1; i < traces->n; i++)
        n_steps += traces->items[i].step != traces->items[i - 1].step;
    int n_ranks = traces->n / n_steps;
    str_printf(out, "%s: step %lld", q->trace, (long long)traces->items[0].step);
    if (n_steps > 1)
        str_printf(out, " and %lld", (long long)traces->items[traces->n - 1].step);
    str_printf(out, " of %d rank%s%s (hint: open it at ui.perfetto.dev)\n", n_ranks, str_s(n_ranks),
               list->n > traces->n ? ", predicted and measured" : "");
}

static int write_trace(const struct report_request *q, const char *title,
                       const struct timeline_list *list, const struct step_traces *traces,
                       const struct plan *plan, struct str *out, struct err *err)
{
    struct timeline_order order;

    if (timelines_write(list, plan, title, q->trace, &order, err))
        return -1;
    if (!q->json)
        print_made(q, list, traces, out);
    if (order.n_beyond)
        log_warn("%d times something ends before it can, up to %.3f ms by the ranks' clocks, whose "
                 "errors are up to %.3f ms: was a clock set during the step?",
                 order.n_beyond, (double)order.most_ns / 1e6, (double)order.error_ns / 1e6);
    return 0;
}

static void summarize(const struct report_request *q, const struct timeline_list *list,
                      const struct plan *plan, struct str *out)
{
    struct mesh mesh = job_mesh(plan->job);
    struct timeline timeline = { .mesh = &mesh, .ranks = list->ranks, .n = list->n };
    struct timeline_summary summary;

    timeline_summarize(&summary, &timeline, N_DIFFERENCES, list->arena);
    if (!q->json) {
        report_summary_print(&summary, out);
        return;
    }
    cJSON *json = report_summary_json(&summary);
    char *text = cJSON_Print(json);
    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

static int make(const struct report_request *q, const char *run, const struct step_traces *traces,
                const struct plan_subject *subject, const struct plan *plan, struct arena *arena,
                struct str *out, struct err *err)
{
    struct replica_programs replicas;
    struct timeline_list list = { .replicas = &replicas, .arena = arena };
    int status = 0;

    replica_programs_init(&replicas, plan);

    for (int i = 0; i < traces->n && !status; i++)
        status = add_measured(&list, plan, &traces->items[i], err);
    if (!status && subject->has_cluster)
        status = add_predicted(&list, plan, &subject->cluster, traces, err);
    if (!status && q->trace)
        status = write_trace(q, run, &list, traces, plan, out, err);
    if (!status && (!q->trace || q->json))
        summarize(q, &list, plan, out);
    if (!status && traces->n_left_out)
        log_warn("these are the first %d ranks that were traced of %d (hint: --ranks, such as "
                 "0-31,64-95)",
                 TIMELINE_RANKS_MAX, TIMELINE_RANKS_MAX + traces->n_left_out);
    replica_programs_release(&replicas);
    return status;
}

static int read_traces(struct step_traces *traces, const struct report_request *q, const char *run,
                       struct arena *arena, struct err *err)
{
    struct step_traces_choice choice = { .n_ranks_max = TIMELINE_RANKS_MAX };
    int64_t *steps = NULL, *ranks = NULL;

    choice.n_steps =
        q->steps ? step_traces_parse("--step", q->steps, TIMELINE_STEPS_MAX, &steps, arena, err)
                 : 0;
    choice.n_ranks =
        q->ranks ? step_traces_parse("--ranks", q->ranks, TIMELINE_RANKS_MAX, &ranks, arena, err)
                 : 0;
    if (choice.n_steps < 0 || choice.n_ranks < 0)
        return -1;
    choice.steps = steps;
    choice.ranks = ranks;
    return step_traces_read(traces, run, &choice, arena, err);
}

static int answer(const struct report_request *q, const char *run, struct arena *arena,
                  struct str *out)
{
    struct plan_reading reading = { .device = q->device, .cluster = q->cluster, .n_top = 1 };
    struct step_traces traces;
    struct plan_subject *subject = arena_array(arena, struct plan_subject, 1);
    struct pool *pool = NULL;
    struct kernels *kernels = NULL;
    struct plan plan = { .job = &subject->job };
    struct err err;

    int status = read_traces(&traces, q, run, arena, &err);
    if (!status)
        status = plan_read_subject(subject, &reading, arena_printf(arena, "%s/job.yaml", run),
                                   traces.world_size, arena, &err);
    if (!status)
        status = pool_create(&pool, 1, NULL, &err);
    if (!status)
        status = kernels_cpu_create(&kernels, pool, NULL, &err);
    if (!status)
        status = plan_open_with(&plan, &subject->job, kernels, &err);
    if (!status)
        status = make(q, run, &traces, subject, &plan, arena, out, &err);
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
                    "write a timeline of steps that the run traced (trace.steps of its job), for "
                    "Perfetto: each rank's ops, transfers and waiting; with a cluster the "
                    "predicted steps beside them"),
        option_flag("json", &q.json, "print the tables as JSON, also beside --trace"),
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
        .arguments = "RUN",
        .summary = "Say where the time of steps went that a run traced, or make a timeline of them",
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
