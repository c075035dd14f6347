/*
 * timeline.c - names and slices as events, and the file
 */
#include <stdlib.h>

#include "base/json_reader.h"
#include "base/num.h"
#include "plan/timeline_impl.h"
#include "program/passes.h"

void timeline_begin_event(struct printing *p)
{
    str_add(p->out, p->n_events++ ? ",\n" : "\n");
}

const struct op *timeline_op(const struct timeline_rank *r, const struct timeline_span *span)
{
    return span->op < 0 ? NULL : &timeline_function(r, span)->ops[span->op];
}

const struct action *timeline_action(const struct timeline_rank *r,
                                     const struct timeline_span *span)
{
    return &r->program->entries[ENTRY_STEP].actions[span->action];
}

const struct function *timeline_function(const struct timeline_rank *r,
                                         const struct timeline_span *span)
{
    return &r->program->functions[timeline_action(r, span)->function];
}

/* ---- names of tracks ---- */

/* Those of the rank's steps together; false: an earlier step has printed them. */
static bool find_streams(const struct timeline *t, const struct timeline_rank *r,
                         bool has[N_STREAMS])
{
    for (int i = 0; i < t->n; i++) {
        const struct timeline_rank *other = &t->ranks[i];

        if (timeline_pid(other) != timeline_pid(r))
            continue;
        if (other < r)
            return false;
        for (int k = 0; k < other->n; k++)
            has[other->spans[k].stream] = true;
    }
    return true;
}

static void print_tracks(struct printing *p, const struct timeline_rank *r)
{
    struct mesh_place place = mesh_place(p->timeline->mesh, r->rank);
    bool has[N_STREAMS] = { false };

    if (!find_streams(p->timeline, r, has))
        return;
    timeline_begin_event(p);
    str_printf(
        p->out,
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d stage "
        "%d %s\"}}",
        timeline_pid(r), r->rank, place.of[AXIS_PP], r->is_measured ? "measured" : "predicted");
    timeline_begin_event(p);
    str_printf(
        p->out,
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        timeline_pid(r), timeline_pid(r));
    for (int s = 0; s < N_STREAMS; s++)
        if (has[s]) {
            timeline_begin_event(p);
            str_printf(p->out,
                       "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{"
                       "\"name\":\"%s\"}}",
                       timeline_pid(r), s, stream_name((enum stream)s));
        }
}

/* ---- slices ---- */

/* Spans by their place in the program. */
struct by_place {
    const struct timeline_span **spans;
    int n;
};

static int compare_places(const void *pa, const void *pb)
{
    const struct timeline_span *a = *(const struct timeline_span *const *)pa;
    const struct timeline_span *b = *(const struct timeline_span *const *)pb;

    if (a->action != b->action)
        return a->action < b->action ? -1 : 1;
    return (a->op > b->op) - (a->op < b->op);
}

/* Those of ops; of no rank (NULL) none. */
static struct by_place sort_by_place(const struct timeline_rank *r, struct arena *arena)
{
    struct by_place list = { .n = 0 };

    if (!r || !r->n)
        return list;
    list.spans = arena_array(arena, const struct timeline_span *, r->n);
    for (int i = 0; i < r->n; i++)
        if (r->spans[i].op >= 0)
            list.spans[list.n++] = &r->spans[i];
    if (list.n)
        qsort(list.spans, (size_t)list.n, sizeof *list.spans, compare_places);
    return list;
}

/* The span of the same op of the same action, or NULL. */
static const struct timeline_span *find_match(const struct by_place *other,
                                              const struct timeline_span *s)
{
    const struct timeline_span **found =
        other->n ? bsearch(&s, other->spans, (size_t)other->n, sizeof *other->spans, compare_places)
                 : NULL;

    return found ? *found : NULL;
}

/* Either may be NULL. */
static void print_times(struct printing *p, const struct timeline_span *predicted,
                        const struct timeline_span *measured)
{
    int64_t predicted_ns = predicted ? predicted->end - predicted->begin + predicted->slowed : 0;
    int64_t measured_ns = measured ? measured->end - measured->begin : 0;

    if (predicted)
        str_printf(p->out, ",\"bound\":\"%s\",\"source\":\"%s\",\"predicted_us\":%.3f",
                   predicted->bound, predicted->source, timeline_us(predicted_ns));
    if (measured)
        str_printf(p->out, ",\"measured_us\":%.3f", timeline_us(measured_ns));
    if (measured && predicted_ns)
        str_printf(p->out, ",\"ratio\":%.4f", (double)measured_ns / (double)predicted_ns);
}

static void print_args(struct printing *p, const struct timeline_rank *r,
                       const struct timeline_span *s, const struct op *op,
                       const struct timeline_span *match)
{
    const struct action *a = timeline_action(r, s);
    const struct function *f = timeline_function(r, s);
    struct op_shape given = program_op_shape(r->program, op), shape = op_in_rows(&given);
    const struct tensor *first = &shape.in[OPS_FIRST];

    str_printf(
        p->out,
        ",\"args\":{\"function\":\"%s\",\"action\":%d,\"op\":%d,\"micro_batch\":%d,\"chunk\":%d,"
        "\"phase\":\"%s\",\"layer\":%d,\"shape\":\"%lld x %lld\",\"bytes\":%.0f,\"flops\":%.0f",
        f->name, s->action, s->op, a->micro_batch, f->chunk, phase_name(op->phase), op->layer,
        (long long)first->rows, (long long)first->cols, op_bytes(&shape), op_flops(&shape));
    if (op_is_collective(op->kind))
        str_printf(p->out, ",\"link_bytes\":%lld",
                   (long long)timeline_link_bytes(p->timeline, r, op));
    if (r->step)
        str_printf(p->out, ",\"step\":%lld", (long long)r->step);
    print_times(p, r->is_measured ? match : s, r->is_measured ? s : match);
    str_add(p->out, "}");
}

static void print_slice(struct printing *p, const struct timeline_rank *r,
                        const struct by_place *other, const struct timeline_span *s)
{
    const struct op *op = timeline_op(r, s);

    timeline_begin_event(p);
    str_add(p->out, "{\"ph\":\"X\",\"name\":\"");
    if (op)
        str_printf(p->out, op->layer >= 0 ? "%s L%d" : "%s", op_name(op->kind), op->layer);
    else
        str_printf(p->out, "wait: %s", time_class_name(s->class));
    str_printf(p->out, "\",\"cat\":\"%s%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
               time_class_name(s->class), s->stream == STREAM_COMPUTE ? "" : " under way",
               timeline_pid(r), (int)s->stream,
               timeline_us(timeline_begin(r, s) - p->first[r->is_measured]),
               timeline_us(s->end - s->begin));
    if (op)
        print_args(p, r, s, op, find_match(other, s));
    str_add(p->out, "}");
}

/* ---- the file ---- */

static const struct timeline_rank *find_other(const struct timeline *t,
                                              const struct timeline_rank *r)
{
    for (int i = 0; i < t->n; i++)
        if (t->ranks[i].rank == r->rank && t->ranks[i].step == r->step &&
            t->ranks[i].is_measured != r->is_measured)
            return &t->ranks[i];
    return NULL;
}

/* Predicted and measured steps begin together. */
static int64_t find_first(const struct timeline *t, bool is_measured)
{
    int64_t first = INT64_MAX;

    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->ranks[i].n && t->ranks[i].is_measured == is_measured; k++)
            first = min_i64(first, timeline_begin(&t->ranks[i], &t->ranks[i].spans[k]));
    return first;
}

static void print_rank(struct printing *p, const struct timeline_rank *r)
{
    struct arena arena = { 0 };
    struct by_place other = sort_by_place(find_other(p->timeline, r), &arena);

    print_tracks(p, r);
    for (int i = 0; i < r->n; i++)
        print_slice(p, r, &other, &r->spans[i]);
    timeline_print_counters(p, r);
    arena_release(&arena);
}

/* Of measured steps: how well clocks are known. */
static void print_order(const struct timeline_order *order, struct str *out)
{
    str_printf(out,
               ",\"clock_error_us\":%.3f,\"out_of_order\":{\"count\":%d,\"beyond_error\":%d,"
               "\"most_us\":%.3f}",
               timeline_us(order->error_ns), order->n, order->n_beyond,
               timeline_us(order->most_ns));
}

void timeline_print(const struct timeline *timeline, struct timeline_order *order, struct str *out)
{
    struct printing p = { .timeline = timeline, .out = out };
    bool is_measured = false;

    for (int i = 0; i < timeline->n; i++)
        is_measured |= timeline->ranks[i].is_measured;
    p.first[false] = find_first(timeline, false);
    p.first[true] = find_first(timeline, true);
    timeline_find_flows(&p);
    *order = timeline_find_order(&p);
    str_add(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":");
    json_add_string(out, timeline->title);
    if (is_measured)
        print_order(order, out);
    str_add(out, "},\"traceEvents\":[");
    for (int i = 0; i < timeline->n; i++)
        print_rank(&p, &timeline->ranks[i]);
    timeline_print_flows(&p);
    str_add(out, "\n]}\n");
    arena_release(&p.arena);
}
