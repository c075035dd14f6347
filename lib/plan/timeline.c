/*
 * timeline.c - slices, flows and counters as events
 */
#include "plan/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/num.h"
#include "ops/op_info.h"
#include "program/order.h"
#include "program/passes.h"

/* An end of a flow: the k-th transfer of a rank on a channel. */
struct flow_end {
    int is_measured;
    int from, to; /* of the channel: ranks of a transfer; of a collective its first rank, and -1 */
    int stream;   /* its group of streams */
    int number;   /* on the channel */
    int member;   /* order among the ends of one flow */
    int pid, tid;
    int64_t begin, end;
};

struct printing {
    const struct timeline *timeline;
    struct str *out;
    struct arena arena;
    struct flow_end *ends;
    int n_ends, ends_capacity, n_events;
    int64_t first; /* ns at which the file begins, of the kind at hand */
};

static int pid_of(const struct timeline_rank *r)
{
    return 2 * r->rank + r->is_measured;
}

static void begin_event(struct printing *p)
{
    str_add(p->out, p->n_events++ ? ",\n" : "\n");
}

static double in_us(int64_t ns)
{
    return (double)ns / 1e3;
}

/* ---- names of tracks ---- */

static void print_tracks(struct printing *p, const struct timeline_rank *r)
{
    struct mesh_place place = mesh_place(p->timeline->mesh, r->rank);
    bool has[N_STREAMS] = { false };

    begin_event(p);
    str_printf(
        p->out,
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d stage "
        "%d %s\"}}",
        pid_of(r), r->rank, place.of[AXIS_PP], r->is_measured ? "measured" : "predicted");
    begin_event(p);
    str_printf(
        p->out,
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        pid_of(r), pid_of(r));
    for (int i = 0; i < r->n; i++)
        has[r->spans[i].stream] = true;
    for (int s = 0; s < N_STREAMS; s++)
        if (has[s]) {
            begin_event(p);
            str_printf(p->out,
                       "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{"
                       "\"name\":\"%s\"}}",
                       pid_of(r), s, stream_name((enum stream)s));
        }
}

/* ---- slices ---- */

/* The span of the same op of the same action of the rank's other kind, or NULL. Spans of a kind are
 * in order of time, and so mostly of actions: looked for around the same place. */
static const struct timeline_span *find_match(const struct timeline_rank *other,
                                              const struct timeline_span *s, int *near)
{
    for (int i = 0; other && i < other->n; i++) {
        int at = (*near + i) % other->n;

        if (other->spans[at].action == s->action && other->spans[at].op == s->op) {
            *near = at + 1;
            return &other->spans[at];
        }
    }
    return NULL;
}

static void print_args(struct printing *p, const struct timeline_rank *r,
                       const struct timeline_span *s, const struct op *op,
                       const struct timeline_span *match)
{
    const struct action *a = &r->program->entries[ENTRY_STEP].actions[s->action];
    const struct function *f = &r->program->functions[a->function];
    struct op_shape shape = program_op_shape(r->program, op);
    const struct tensor *first = &shape.in[OPS_FIRST];

    str_printf(
        p->out,
        ",\"args\":{\"function\":\"%s\",\"action\":%d,\"op\":%d,\"micro_batch\":%d,\"chunk\":%d,"
        "\"layer\":%d,\"shape\":\"%lld x %lld\",\"bytes\":%.0f,\"flops\":%.0f",
        f->name, s->action, s->op, a->micro_batch, f->chunk, op->layer, (long long)first->rows,
        (long long)first->cols, op_bytes(&shape), op_flops(&shape));
    if (match) {
        const struct timeline_span *predicted = r->is_measured ? match : s;
        const struct timeline_span *measured = r->is_measured ? s : match;

        str_printf(p->out, ",\"predicted_us\":%.3f,\"measured_us\":%.3f",
                   in_us(predicted->end - predicted->begin),
                   in_us(measured->end - measured->begin));
        if (predicted->end > predicted->begin)
            str_printf(p->out, ",\"ratio\":%.4f",
                       (double)(measured->end - measured->begin) /
                           (double)(predicted->end - predicted->begin));
    }
    str_add(p->out, "}");
}

static void print_slice(struct printing *p, const struct timeline_rank *r,
                        const struct timeline_rank *other, const struct timeline_span *s, int *near)
{
    const struct program *program = r->program;
    const struct action *a = &program->entries[ENTRY_STEP].actions[s->action];
    const struct op *op = s->op < 0 ? NULL : &program->functions[a->function].ops[s->op];

    begin_event(p);
    str_add(p->out, "{\"ph\":\"X\",\"name\":\"");
    if (op)
        str_printf(p->out, op->layer >= 0 ? "%s L%d" : "%s", op_name(op->kind), op->layer);
    else
        str_add(p->out, "wait");
    str_printf(p->out, "\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
               s->category ? s->category
               : op        ? phase_name(op->phase)
                           : "wait",
               pid_of(r), (int)s->stream, in_us(s->begin - p->first), in_us(s->end - s->begin));
    if (op)
        print_args(p, r, s, op, find_match(other, s, near));
    str_add(p->out, "}");
}

/* ---- flows ---- */

static bool is_transfer(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECEIVE;
}

/* World ranks from one on the axis to the next. */
static int stride_on(const struct mesh *mesh, enum mesh_axis axis)
{
    int stride = 1;

    for (int i = 0; mesh_nth_axis(i) != axis; i++)
        stride *= mesh->size[mesh_nth_axis(i)];
    return stride;
}

static void name_channel(const struct timeline *t, const struct timeline_rank *r,
                         const struct op *op, struct flow_end *end)
{
    enum mesh_axis axis = op->attributes.axis;
    int size = t->mesh->size[axis], stride = stride_on(t->mesh, axis);
    int at = mesh_coordinate(t->mesh, r->rank, axis), first = r->rank - at * stride;

    end->stream = (int)order_group_of(op->stream);
    end->from = first;
    end->to = -1;
    end->member = at;
    if (!is_transfer(op))
        return;
    int peer = first + ((at + op->attributes.peer) % size + size) % size * stride;
    end->from = op->kind == OP_SEND ? r->rank : peer;
    end->to = op->kind == OP_SEND ? peer : r->rank;
    end->member = op->kind == OP_RECEIVE;
}

static int compare_ends(const void *pa, const void *pb)
{
    const struct flow_end *a = pa, *b = pb;
    const int of_a[] = { a->is_measured, a->from, a->to, a->stream, a->number, a->member };
    const int of_b[] = { b->is_measured, b->from, b->to, b->stream, b->number, b->member };

    for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++)
        if (of_a[i] != of_b[i])
            return of_a[i] < of_b[i] ? -1 : 1;
    return 0;
}

static bool is_same_channel(const struct flow_end *a, const struct flow_end *b)
{
    return a->from == b->from && a->to == b->to && a->stream == b->stream && a->member == b->member;
}

/* One more than the rank's last on the channel; the rank's are from `since` on. */
static int number_of(const struct printing *p, const struct flow_end *end, int since)
{
    for (int i = p->n_ends - 1; i >= since; i--)
        if (is_same_channel(&p->ends[i], end))
            return p->ends[i].number + 1;
    return 0;
}

/* Ends of a rank are added in order of time, on each channel. */
static void add_ends(struct printing *p, const struct timeline_rank *r)
{
    int since = p->n_ends;

    for (int i = 0; i < r->n; i++) {
        const struct timeline_span *s = &r->spans[i];
        const struct action *a = &r->program->entries[ENTRY_STEP].actions[s->action];
        const struct op *op = s->op < 0 ? NULL : &r->program->functions[a->function].ops[s->op];

        if (!op || !op_is_collective(op->kind))
            continue;
        struct flow_end end = { .is_measured = r->is_measured,
                                .pid = pid_of(r),
                                .tid = (int)s->stream,
                                .begin = s->begin - p->first,
                                .end = s->end - p->first };
        name_channel(p->timeline, r, op, &end);
        end.number = number_of(p, &end, since);
        p->ends = arena_grow(&p->arena, p->ends, sizeof *p->ends, &p->ends_capacity, p->n_ends + 1);
        p->ends[p->n_ends++] = end;
    }
}

static bool is_same_flow(const struct flow_end *a, const struct flow_end *b)
{
    return a->is_measured == b->is_measured && a->from == b->from && a->to == b->to &&
           a->stream == b->stream && a->number == b->number;
}

static void print_flow(struct printing *p, int id, const struct flow_end *from,
                       const struct flow_end *to)
{
    begin_event(p);
    str_printf(p->out,
               "{\"ph\":\"s\",\"name\":\"%s\",\"cat\":\"flow\",\"id\":%d,\"pid\":%d,\"tid\":%d,"
               "\"ts\":%.3f}",
               from->to < 0 ? "collective" : "transfer", id, from->pid, from->tid,
               in_us(from->begin));
    begin_event(p);
    str_printf(p->out,
               "{\"ph\":\"f\",\"bp\":\"e\",\"name\":\"%s\",\"cat\":\"flow\",\"id\":%d,\"pid\":%d,"
               "\"tid\":%d,"
               "\"ts\":%.3f}",
               from->to < 0 ? "collective" : "transfer", id, to->pid, to->tid, in_us(to->end));
}

/* From each member to the next; of a transfer there are two. */
static void print_flows(struct printing *p)
{
    int id = 1;

    if (p->n_ends)
        qsort(p->ends, (size_t)p->n_ends, sizeof *p->ends, compare_ends);
    for (int i = 0; i + 1 < p->n_ends; i++)
        if (is_same_flow(&p->ends[i], &p->ends[i + 1]) &&
            p->ends[i].member != p->ends[i + 1].member)
            print_flow(p, id++, &p->ends[i], &p->ends[i + 1]);
}

/* ---- counters ---- */

/* Bytes that a micro-batch of a chunk keeps from its forward to its backward: all chunks' share
 * alike. */
static int64_t slot_bytes(const struct program *program)
{
    int64_t n = 0;
    int n_chunks = 1;

    for (int i = 0; i < program->n_stashes; i++)
        n += (int64_t)program->stashes[i].slot_bytes;
    for (int f = 0; f < program->n_functions; f++)
        n_chunks = max_int(n_chunks, program->functions[f].chunk + 1);
    return n / n_chunks;
}

/* +1: the function is a forward, whose values are kept from now on; -1: the last that reads
 * them. */
static int change_of(const struct program *program, const struct function *f)
{
    bool has_weight = false;

    for (int i = 0; i < program->n_functions; i++)
        has_weight |= str_starts_with(program->functions[i].name, "weight");
    if (str_starts_with(f->name, "forward"))
        return 1;
    return str_starts_with(f->name, has_weight ? "weight" : "backward") ? -1 : 0;
}

static void print_counter(struct printing *p, const struct timeline_rank *r)
{
    int64_t each = slot_bytes(r->program), alive = 0;
    int last = -1;

    for (int i = 0; i < r->n; i++) {
        const struct timeline_span *s = &r->spans[i];
        const struct action *a = &r->program->entries[ENTRY_STEP].actions[s->action];

        if (s->action == last || s->stream != STREAM_COMPUTE || a->kind != ACTION_RUN || s->op < 0)
            continue;
        last = s->action;
        int change = change_of(r->program, &r->program->functions[a->function]);
        if (!change)
            continue;
        alive += change;
        begin_event(p);
        str_printf(p->out,
                   "{\"ph\":\"C\",\"name\":\"stash "
                   "bytes\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"bytes\":%lld}}",
                   pid_of(r), in_us(s->begin - p->first), (long long)(alive * each));
    }
}

/* ---- the file ---- */

static const struct timeline_rank *find_other(const struct timeline *t,
                                              const struct timeline_rank *r)
{
    for (int i = 0; i < t->n; i++)
        if (t->ranks[i].rank == r->rank && t->ranks[i].is_measured != r->is_measured)
            return &t->ranks[i];
    return NULL;
}

/* Predicted and measured steps begin together. */
static int64_t find_first(const struct timeline *t, bool is_measured)
{
    int64_t first = INT64_MAX;

    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->ranks[i].n && t->ranks[i].is_measured == is_measured; k++)
            first = min_i64(first, t->ranks[i].spans[k].begin);
    return first;
}

void timeline_print(const struct timeline *timeline, struct str *out)
{
    struct printing p = { .timeline = timeline, .out = out };

    str_add(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":");
    json_add_string(out, timeline->title);
    str_add(out, "},\"traceEvents\":[");
    for (int i = 0; i < timeline->n; i++) {
        const struct timeline_rank *r = &timeline->ranks[i];
        const struct timeline_rank *other = find_other(timeline, r);
        int near = 0;

        p.first = find_first(timeline, r->is_measured);
        print_tracks(&p, r);
        for (int k = 0; k < r->n; k++)
            print_slice(&p, r, other, &r->spans[k], &near);
        add_ends(&p, r);
        print_counter(&p, r);
    }
    print_flows(&p);
    str_add(out, "\n]}\n");
    arena_release(&p.arena);
}
