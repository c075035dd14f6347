/*
 * report_trace.c - steps that a run traced, and what was predicted of them
 */
#include "report_trace.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "layout/axes.h"

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

/* ---- opening ---- */

static bool has_traces(const char *run, struct arena *arena)
{
    const char *folder = arena_printf(arena, "%s/trace", run);

    return file_is_folder(folder) && !file_is_empty_folder(folder);
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

/* Of the ranks that were traced; without traces of the first of each stage. */
static int add_timelines(struct report_timelines *t, struct err *err)
{
    const struct cluster *cluster = &t->subject->cluster;

    for (int i = 0; i < t->traces.n; i++)
        if (add_measured(&t->list, &t->plan, &t->traces.items[i], err))
            return -1;
    if (!t->subject->has_cluster)
        return 0;
    return t->traces.n ? add_predicted(&t->list, &t->plan, cluster, &t->traces, err)
                       : timelines_add_predicted(&t->list, &t->plan, cluster, NULL, 0, err);
}

static int open_plan(struct report_timelines *t, const struct report_request *q, const char *run,
                     const struct report_rank *rank, const struct option_list *sets,
                     struct arena *arena, struct err *err)
{
    struct plan_reading reading = {
        .sets = *sets, .device = q->device, .cluster = q->cluster, .n_top = 1
    };
    const struct job *job = &t->subject->job;
    int n_ranks = t->traces.n ? t->traces.world_size : rank->n_ranks;

    if (plan_read_subject(t->subject, &reading, arena_printf(arena, "%s/job.yaml", run), n_ranks,
                          arena, err) ||
        pool_create(&t->pool, max_int(1, job->threads), NULL, err))
        return -1;
    if (rank->is_gpu ? kernels_gpu_sizes_create(&t->kernels, err)
                     : kernels_cpu_create(&t->kernels, t->pool, NULL, err))
        return -1;
    return plan_open_with(&t->plan, job, t->kernels, err);
}

int report_timelines_open(struct report_timelines *t, const struct report_request *q,
                          const char *run, const struct report_rank *rank, bool must_have,
                          struct arena *arena, struct err *err)
{
    struct option_list none = { .n = 0 };
    const char *without = "cluster=null";

    *t = (struct report_timelines){ .subject = arena_array(arena, struct plan_subject, 1) };
    t->list = (struct timeline_list){ .replicas = &t->replicas, .arena = arena };
    if ((must_have || has_traces(run, arena)) && read_traces(&t->traces, q, run, arena, err))
        return -1;
    int status = open_plan(t, q, run, rank, &none, arena, err);
    if (status && !must_have && !q->device && !q->cluster) {
        struct option_list sets = { .items = &without, .n = 1 };
        struct err ignored, first = *err;

        report_timelines_close(t);
        status = open_plan(t, q, run, rank, &sets, arena, &ignored);
        *err = status ? first : *err;
    }
    if (status)
        return -1;
    replica_programs_init(&t->replicas, &t->plan);
    t->has_replicas = true;
    if (add_timelines(t, err))
        return -1;
    if (t->traces.n_left_out)
        log_warn("these are the first %d ranks that were traced of %d (hint: --ranks, such as "
                 "0-31,64-95)",
                 TIMELINE_RANKS_MAX, TIMELINE_RANKS_MAX + t->traces.n_left_out);
    return 0;
}

void report_timelines_close(struct report_timelines *t)
{
    if (t->has_replicas)
        replica_programs_release(&t->replicas);
    plan_close(&t->plan);
    kernels_destroy(t->kernels);
    pool_destroy(t->pool);
    t->has_replicas = false;
    t->plan = (struct plan){ .job = NULL };
    t->kernels = NULL;
    t->pool = NULL;
}

/* ---- the file for Perfetto ---- */

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

int report_timelines_write(const struct report_timelines *t, const struct report_request *q,
                           const char *run, struct str *out, struct err *err)
{
    struct timeline_order order;

    if (timelines_write(&t->list, &t->plan, run, q->trace, &order, err))
        return -1;
    if (!q->json)
        print_made(q, &t->list, &t->traces, out);
    if (order.n_beyond)
        log_warn("%d times something ends before it can, up to %.3f ms by the ranks' clocks, whose "
                 "errors are up to %.3f ms: was a clock set during the step?",
                 order.n_beyond, (double)order.most_ns / 1e6, (double)order.error_ns / 1e6);
    return 0;
}
