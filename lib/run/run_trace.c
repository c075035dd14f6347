/*
 * run_trace.c - records, and the events that they come from
 */
#include "run/run_trace.h"

#include "base/clock.h"
#include "base/num.h"
#include "run/run_impl.h"

/* The anchor's time is known to lie between two readings of the clock: of several the closest. */
enum { N_ANCHORS = 4 };

/* What two events with nothing between them take: no wait. */
#define WAIT_NS_MIN 5000

#define BASE_SECONDS_MAX 0.5

/* ---- room ---- */

struct event_room {
    int64_t n_records, n_posted, n_marks;
};

/* What the runs of a function can add: each op, waits before it and for its last run. */
static void add_function(struct event_room *room, const struct resolved_function *f)
{
    for (int i = 0; i < f->n_ops; i++) {
        const struct resolved_op *op = &f->ops[i];

        room->n_records += 2 + op->n_users;
        room->n_posted += op->is_async;
        room->n_marks += op->n_users && !op->is_async ? 4 : 2;
    }
}

static struct event_room find_room(const struct run *run, enum entry_kind entry)
{
    const struct entry *e = &run->program->entries[entry];
    struct event_room room = { .n_marks = N_ANCHORS };

    for (int i = 0; i < e->n_actions; i++) {
        const struct action *a = &e->actions[i];
        const struct resolved_function *most = NULL;

        room.n_records += N_STREAMS + run->order.n_inputs;
        room.n_marks += 2 * (N_STREAMS + run->order.n_inputs);
        /* Of its programs, by length, the longest. */
        for (int p = 0; p <= run->options.n_shorter && a->kind == ACTION_RUN; p++) {
            const struct resolved_function *f = resolved(run, p, a->function, a->micro_batch);

            if (!most || f->n_ops > most->n_ops)
                most = f;
        }
        if (most)
            add_function(&room, most);
    }
    return room;
}

static int create_events(struct run_trace *t, int n, struct err *err)
{
    t->events = arena_array(&t->arena, struct device_event *, n);
    for (; t->n_events < n; t->n_events++)
        if (t->device->ops->event_create(t->device, 1, &t->events[t->n_events], err) < 0)
            return -1;
    return 0;
}

int run_trace_open(struct run_trace *trace, struct run *run, enum entry_kind entry, struct err *err)
{
    struct event_room room = find_room(run, entry);

    *trace = (struct run_trace){ .capacity = (int)min_i64(room.n_records, INT32_MAX) };
    trace->records =
        arena_alloc_array(&trace->arena, sizeof *trace->records, (size_t)trace->capacity);
    trace->posted_capacity = (int)min_i64(room.n_posted + 1, INT32_MAX);
    trace->posted = arena_alloc_array(&trace->arena, sizeof(struct resolved_op *),
                                      (size_t)trace->posted_capacity);
    if (device_is_host(run->device))
        return 0;
    trace->device = run->device;
    trace->marks = arena_alloc_array(&trace->arena, sizeof *trace->marks, (size_t)trace->capacity);
    return create_events(trace, (int)min_i64(room.n_marks, INT32_MAX), err);
}

void run_trace_close(struct run_trace *trace)
{
    for (int i = 0; i < trace->n_events; i++)
        trace->device->ops->event_destroy(trace->device, trace->events[i]);
    arena_release(&trace->arena);
    *trace = (struct run_trace){ .n = 0 };
}

void run_set_trace(struct run *run, struct run_trace *trace)
{
    run->trace = trace;
}

/* ---- by the clock ---- */

static int64_t in_ns(double seconds)
{
    return (int64_t)(seconds * 1e9);
}

/* Returns it, or NULL if there is no room. */
static struct run_record *add_record(struct run_trace *t, int op, enum stream stream)
{
    if (t->n == t->capacity)
        return NULL;
    if (t->marks)
        t->marks[t->n][0] = t->marks[t->n][1] = 0;
    t->records[t->n] =
        (struct run_record){ .action = t->action, .op = op, .stream = (int32_t)stream };
    return &t->records[t->n++];
}

static void set_times(struct run_record *record, double begin, double end)
{
    record->begin_ns = in_ns(begin);
    record->end_ns = in_ns(end);
}

void run_trace_wait(struct run *run, const struct resolved_op *op, double begin, double end)
{
    struct run_record *record =
        run->trace ? add_record(run->trace, RUN_RECORD_WAIT, STREAM_COMPUTE) : NULL;

    if (!record)
        return;
    set_times(record, begin, end);
    record->waited = (int32_t)op->stream;
}

void run_trace_host(struct run *run, int op, double begin, double end)
{
    struct run_record *record = run->trace ? add_record(run->trace, op, STREAM_COMPUTE) : NULL;

    if (record)
        set_times(record, begin, end);
}

/* Of an op that was posted and is done. */
static void take(struct run_trace *t, struct resolved_op *op)
{
    struct run_record *record = op->traced ? add_record(t, op->traced_index, op->stream) : NULL;

    if (record) {
        record->action = op->traced - 1;
        set_times(record, op->stream_op.began_at, op->stream_op.ended_at);
    }
    op->traced = 0;
}

void run_trace_post(struct run *run, struct resolved_op *op, int index)
{
    struct run_trace *t = run->trace;

    if (!t || run->enqueues || t->n_posted == t->posted_capacity)
        return;
    op->traced = t->action + 1;
    op->traced_index = index;
    t->posted[t->n_posted++] = op;
}

void run_trace_done(struct run *run, struct resolved_op *op)
{
    if (run->trace)
        take(run->trace, op);
}

/* ---- by the clock, or on a queue ---- */

/* An event that stands where the queue is now; 0: there is none. */
static int mark(struct run_trace *t, int queue)
{
    if (!t->device || t->n_used == t->n_events)
        return 0;
    t->device->ops->event_record(t->device, queue, t->events[t->n_used]);
    return t->n_used++;
}

void run_trace_begin(struct run *run, int queue)
{
    struct run_trace *t = run->trace;

    if (!t)
        return;
    t->begun = mark(t, queue);
    t->begun_at = clock_seconds();
}

static struct run_record *finish(struct run_trace *t, int op, enum stream stream, int queue)
{
    int end = mark(t, queue);
    struct run_record *record = !t->device || end ? add_record(t, op, stream) : NULL;

    if (!record)
        return NULL;
    if (t->device) {
        t->marks[t->n - 1][0] = t->begun;
        t->marks[t->n - 1][1] = end;
    } else {
        set_times(record, t->begun_at, clock_seconds());
    }
    return record;
}

void run_trace_finish(struct run *run, int op, enum stream stream, int queue)
{
    if (run->trace)
        finish(run->trace, op, stream, queue);
}

void run_trace_finish_wait(struct run *run, const struct resolved_op *op, int queue)
{
    struct run_record *record =
        run->trace && op ? finish(run->trace, RUN_RECORD_WAIT, STREAM_COMPUTE, queue) : NULL;

    if (record)
        record->waited = (int32_t)op->stream;
}

/* ---- an entry ---- */

/* The closest of a few: events[0], and when it was. */
static int set_anchor(struct run_trace *t, struct err *err)
{
    double closest = 0;

    for (int i = 0; i < N_ANCHORS; i++) {
        if (t->device->ops->wait(t->device, DEVICE_COMPUTE, err) < 0)
            return -1;
        double begin = clock_seconds();
        t->device->ops->event_record(t->device, DEVICE_COMPUTE, t->events[i]);
        if (t->device->ops->wait(t->device, DEVICE_COMPUTE, err) < 0)
            return -1;
        double took = clock_seconds() - begin;
        if (i && took >= closest)
            continue;
        struct device_event *event = t->events[0];
        t->events[0] = t->events[i];
        t->events[i] = event;
        t->anchor = begin + took / 2;
        closest = took;
    }
    t->error_ns = in_ns(closest / 2) + 1;
    return 0;
}

int run_trace_start(struct run *run, struct err *err)
{
    struct run_trace *t = run->trace;

    if (!t)
        return 0;
    t->n = t->n_posted = 0;
    t->n_used = N_ANCHORS;
    return t->device ? set_anchor(t, err) : 0;
}

/* An event that has a time, from which others' are. Elapsed time is a float: not too long ago. */
struct base {
    int event;
    double seconds;
};

static double seconds_of(const struct run_trace *t, struct base *base, int event)
{
    double since = t->device->ops->seconds(t->device, t->events[base->event], t->events[event]);
    double seconds = base->seconds + since;

    if (since > BASE_SECONDS_MAX)
        *base = (struct base){ event, seconds };
    return seconds;
}

/* Nothing begins before what came before it on its stream has ended: of waiting, by the clock or by
 * events, that much is left. Returns whether the record is one. */
static bool come_after_last(struct run_record *r, int64_t last_end[N_STREAMS])
{
    int64_t *last = &last_end[r->stream];

    r->begin_ns = max_i64(r->begin_ns, *last);
    r->end_ns = max_i64(r->end_ns, r->begin_ns);
    if (r->op == RUN_RECORD_WAIT && r->end_ns - r->begin_ns < WAIT_NS_MIN)
        return false;
    *last = r->end_ns;
    return true;
}

/* Marks become times. */
static void read_events(struct run_trace *t)
{
    struct base base = { 0, t->anchor };
    int64_t last_end[N_STREAMS] = { 0 };
    int n = 0;

    for (int i = 0; i < t->n; i++) {
        struct run_record *r = &t->records[i];

        if (t->marks[i][0]) {
            double begin = seconds_of(t, &base, t->marks[i][0]);

            set_times(r, begin, seconds_of(t, &base, t->marks[i][1]));
        }
        if (come_after_last(r, last_end))
            t->records[n++] = *r;
    }
    t->n = n;
}

int run_trace_end(struct run *run, struct err *err)
{
    struct run_trace *t = run->trace;

    if (!t)
        return 0;
    for (int i = 0; i < t->n_posted; i++)
        take(t, t->posted[i]);
    t->n_posted = 0;
    if (!t->device)
        return 0;
    if (t->device->ops->wait(t->device, DEVICE_COMPUTE, err) < 0)
        return -1;
    read_events(t);
    return 0;
}
