/*
 * report_plan.c - see the header
 */
#include "report_plan.h"

#include <string.h>

#include "ops/op_info.h"
#include "plan/step_time.h"
#include "plan/timeline_lanes.h"
#include "program/passes.h"
#include "run/run.h"

#define N_ROWS_MAX (N_SEGMENTS + 1)

/* ---- memory ---- */

static void add_segment(cJSON *list, const char *name, const char *space, const char *what,
                        size_t n_bytes)
{
    cJSON *item = cJSON_CreateObject();

    cJSON_AddStringToObject(item, "segment", name);
    cJSON_AddStringToObject(item, "space", space);
    cJSON_AddStringToObject(item, "what", what);
    cJSON_AddNumberToObject(item, "bytes", (double)n_bytes);
    cJSON_AddItemToArray(list, item);
}

static void add_memory(const struct plan *plan, cJSON *json)
{
    cJSON *stages = cJSON_AddArrayToObject(json, "memory");

    for (int stage = 0; stage < plan->job->parallel.pp; stage++) {
        const struct program *p = &plan->programs[stage];
        struct memory_row rows[N_ROWS_MAX];
        int n = program_memory_table(p, rows, N_ROWS_MAX);
        size_t buffers = run_file_buffer_bytes(p);
        cJSON *item = cJSON_CreateObject();

        cJSON_AddNumberToObject(item, "stage", stage);
        cJSON *segments = cJSON_AddArrayToObject(item, "segments");
        for (int i = 0; i < n; i++)
            add_segment(segments, rows[i].name, space_name(rows[i].space), rows[i].what,
                        rows[i].n_bytes);
        if (buffers)
            add_segment(segments, "file buffers", "host",
                        "through which copies to the file and from there go", buffers);
        cJSON_AddItemToArray(stages, item);
    }
}

/* ---- prediction ---- */

static void add_stages(const struct simulated_step *step, cJSON *json)
{
    cJSON *stages = cJSON_AddArrayToObject(json, "stages_ns");

    for (int i = 0; i < step->n_ranks; i++) {
        cJSON *stage = cJSON_CreateObject();

        for (int class = 0; class < N_TIME_CLASSES; class ++)
            cJSON_AddNumberToObject(stage, time_class_name((enum time_class) class),
                                    (double)step->ranks[i].of[class]);
        cJSON_AddItemToArray(stages, stage);
    }
}

static void add_predicted(const struct report_timelines *t, cJSON *json, struct arena *arena)
{
    struct step_time time;
    struct err ignored;

    if (!t->subject->has_cluster ||
        step_time_predict(&time, &t->plan, &t->subject->cluster, arena, &ignored))
        return;
    cJSON *made = cJSON_AddObjectToObject(json, "predicted");
    cJSON_AddNumberToObject(made, "step_ns", (double)time.ns);
    cJSON_AddNumberToObject(made, "tokens_per_second", time.tokens_per_second);
    cJSON_AddNumberToObject(made, "mfu", time.mfu);
    cJSON_AddNumberToObject(made, "constant_ns", (double)time.constant_ns);
    cJSON_AddNumberToObject(made, "jitter_ns", (double)time.jitter_ns);
    add_stages(&time.simulated, made);
}

/* ---- timelines ---- */

static void add_kind(cJSON *list, const char *name, double predicted_ns, double measured_ns)
{
    cJSON *item = cJSON_CreateObject();

    cJSON_AddStringToObject(item, "op", name);
    if (predicted_ns >= 0)
        cJSON_AddNumberToObject(item, "predicted_ns", predicted_ns);
    if (measured_ns >= 0)
        cJSON_AddNumberToObject(item, "measured_ns", measured_ns);
    cJSON_AddItemToArray(list, item);
}

static double logged_ns(const struct run_log *log, const char *kind)
{
    for (int i = 0; i < log->n_ops; i++)
        if (!strcmp(log->ops[i].kind, kind))
            return 1e9 * log->ops[i].seconds;
    return -1;
}

static const struct timeline_kind *find_kind(const struct timeline_kind *kinds, int n,
                                             const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(op_name((enum op_kind)kinds[i].kind), name))
            return &kinds[i];
    return NULL;
}

/* Measured where steps were traced; else, where ops are timed in all steps, by the run's log. */
void report_plan_add_kinds(const struct timeline *timeline, const struct run_log *log, cJSON *json,
                           struct arena *arena)
{
    struct timeline_kind *kinds = NULL;
    int n = timeline->n ? timeline_kinds_find(&kinds, timeline, arena) : 0;
    bool is_traced = false;

    for (int i = 0; i < timeline->n; i++)
        is_traced |= timeline->ranks[i].is_measured;
    if (!n && !log->n_ops)
        return;
    cJSON *list = cJSON_AddArrayToObject(json, "kinds");
    for (int i = 0; !is_traced && i < log->n_ops; i++) {
        const struct timeline_kind *kind = find_kind(kinds, n, log->ops[i].kind);

        add_kind(list, log->ops[i].kind, kind ? kind->predicted_ns : -1, 1e9 * log->ops[i].seconds);
    }
    for (int i = 0; i < n; i++) {
        const char *name = op_name((enum op_kind)kinds[i].kind);

        if (is_traced || logged_ns(log, name) < 0)
            add_kind(list, name, kinds[i].predicted_ns, kinds[i].measured_ns);
    }
}

/* [begin, ns, class, kind of op or -1, layer or -1, spans], all whole numbers. */
static void add_slices(const struct timeline_lane *lane, cJSON *json)
{
    struct str text = { 0 };

    str_add_char(&text, '[');
    for (int i = 0; i < lane->n; i++) {
        const struct lane_slice *s = &lane->slices[i];

        str_printf(&text, "%s[%lld,%lld,%d,%d,%d,%d]", i ? "," : "", (long long)s->begin,
                   (long long)(s->end - s->begin), (int)s->class, s->kind, s->layer, s->n_spans);
    }
    str_add_char(&text, ']');
    cJSON_AddRawToObject(json, "slices", str_text(&text));
    str_release(&text);
}

static void add_names(cJSON *json)
{
    cJSON *classes = cJSON_AddArrayToObject(json, "classes");
    cJSON *ops = cJSON_AddArrayToObject(json, "ops");

    for (int i = 0; i < N_TIME_CLASSES; i++)
        cJSON_AddItemToArray(classes, cJSON_CreateString(time_class_name((enum time_class)i)));
    for (int i = 0; i < N_OP_KINDS; i++)
        cJSON_AddItemToArray(ops, cJSON_CreateString(op_name((enum op_kind)i)));
}

static void add_lanes(const struct timeline *timeline, int n_slices, cJSON *json,
                      struct arena *arena)
{
    struct timeline_lanes lanes;

    timeline_lanes_find(&lanes, timeline, n_slices, arena);
    cJSON *made = cJSON_AddObjectToObject(json, "timeline");
    cJSON_AddNumberToObject(made, "joined_ns", (double)lanes.joined_ns);
    add_names(made);
    cJSON *list = cJSON_AddArrayToObject(made, "lanes");
    for (int i = 0; i < lanes.n; i++) {
        const struct timeline_lane *lane = &lanes.items[i];
        cJSON *item = cJSON_CreateObject();

        cJSON_AddNumberToObject(item, "rank", lane->rank);
        cJSON_AddNumberToObject(item, "stage", lane->stage);
        cJSON_AddNumberToObject(item, "step", (double)lane->step);
        cJSON_AddStringToObject(item, "kind", lane->is_measured ? "measured" : "predicted");
        cJSON_AddStringToObject(item, "stream", stream_name(lane->stream));
        add_slices(lane, item);
        cJSON_AddItemToArray(list, item);
    }
}

void report_plan_add(const struct report_timelines *timelines, const struct run_log *log,
                     int n_slices, cJSON *json, struct arena *arena)
{
    const struct plan *plan = &timelines->plan;
    struct mesh mesh = job_mesh(plan->job);
    const struct timeline timeline = { .mesh = &mesh,
                                       .ranks = timelines->list.ranks,
                                       .n = timelines->list.n };

    add_memory(plan, json);
    add_predicted(timelines, json, arena);
    report_plan_add_kinds(&timeline, log, json, arena);
    if (!timeline.n)
        return;
    add_lanes(&timeline, n_slices, json, arena);
}
