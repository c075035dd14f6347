/*
 * timeline_flows.c - which transfers and collectives of several ranks are one, as flows
 */
#include <stdlib.h>

#include "base/num.h"
#include "plan/timeline_impl.h"
#include "program/order.h"

static bool is_transfer(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECEIVE;
}

static void name_channel(const struct timeline *t, const struct timeline_rank *r,
                         const struct op *op, struct flow_end *end)
{
    enum mesh_axis axis = op->attributes.axis;
    struct mesh_place own = mesh_place(t->mesh, r->rank);
    int size = mesh_size(t->mesh, axis), at = mesh_place_on(t->mesh, &own, axis);
    struct mesh_place first = mesh_place_at(t->mesh, &own, axis, 0);

    end->stream = (int)order_group_of(op->stream);
    end->from = mesh_rank_at(t->mesh, &first);
    end->to = -1;
    end->member = at;
    if (!is_transfer(op))
        return;
    struct mesh_place other =
        mesh_place_at(t->mesh, &own, axis, ((at + op->attributes.peer) % size + size) % size);
    int peer = mesh_rank_at(t->mesh, &other);
    end->from = op->kind == OP_SEND ? r->rank : peer;
    end->to = op->kind == OP_SEND ? peer : r->rank;
    end->member = op->kind == OP_RECEIVE;
}

static int compare_ends(const void *pa, const void *pb)
{
    const struct flow_end *a = pa, *b = pb;
    const int64_t of_a[] = { a->is_measured, a->step,   a->from,  a->to,
                             a->stream,      a->number, a->member };
    const int64_t of_b[] = { b->is_measured, b->step,   b->from,  b->to,
                             b->stream,      b->number, b->member };

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
        const struct op *op = timeline_op(r, s);

        if (!op || !op_is_collective(op->kind))
            continue;
        struct flow_end end = { .is_measured = r->is_measured,
                                .pid = timeline_pid(r),
                                .tid = (int)s->stream,
                                .step = r->step,
                                .begin = timeline_begin(r, s),
                                .end = timeline_begin(r, s) + s->end - s->begin,
                                .error = r->clock_error_ns };
        name_channel(p->timeline, r, op, &end);
        end.number = number_of(p, &end, since);
        p->ends = arena_grow(&p->arena, p->ends, sizeof *p->ends, &p->ends_capacity, p->n_ends + 1);
        p->ends[p->n_ends++] = end;
    }
}

void timeline_find_flows(struct printing *p)
{
    for (int i = 0; i < p->timeline->n; i++)
        add_ends(p, &p->timeline->ranks[i]);
    if (p->n_ends)
        qsort(p->ends, (size_t)p->n_ends, sizeof *p->ends, compare_ends);
}

bool timeline_is_same_flow(const struct flow_end *a, const struct flow_end *b)
{
    return a->is_measured == b->is_measured && a->from == b->from && a->to == b->to &&
           a->stream == b->stream && a->number == b->number && a->step == b->step;
}

/* ---- what cannot be ---- */

/* How much before the other began this one ended, if it cannot have: what is sent is received
 * later, and no member of a collective has ended when another begins. */
static int64_t too_early(const struct flow_end *end, const struct flow_end *begun)
{
    if (end->to >= 0 && end->member < begun->member)
        return 0;
    return max_i64(0, begun->begin - end->end);
}

static void add_to_order(struct timeline_order *order, const struct flow_end *end,
                         const struct flow_end *begun)
{
    int64_t early = too_early(end, begun), error = end->error + begun->error;

    order->n += early > 0;
    order->n_beyond += early > error;
    order->most_ns = max_i64(order->most_ns, early);
}

struct timeline_order timeline_find_order(const struct printing *p)
{
    struct timeline_order order = { 0 };

    for (int i = 0; i < p->timeline->n; i++)
        order.error_ns = max_i64(order.error_ns, p->timeline->ranks[i].clock_error_ns);
    for (int i = 0, end = 0; i < p->n_ends; i = end) {
        while (end < p->n_ends && timeline_is_same_flow(&p->ends[i], &p->ends[end]))
            end++;
        for (int k = i; k < end; k++)
            for (int j = i; j < end; j++)
                if (p->ends[k].member != p->ends[j].member)
                    add_to_order(&order, &p->ends[k], &p->ends[j]);
    }
    return order;
}

/* ---- events ---- */

static void print_end(struct printing *p, int id, const struct flow_end *end, bool is_start)
{
    timeline_begin_event(p);
    str_printf(p->out,
               "{\"ph\":\"%s\",%s\"name\":\"%s\",\"cat\":\"flow\",\"id\":%d,\"pid\":%d,"
               "\"tid\":%d,\"ts\":%.3f}",
               is_start ? "s" : "f", is_start ? "" : "\"bp\":\"e\",",
               end->to < 0 ? "collective" : "transfer", id, end->pid, end->tid,
               timeline_us((is_start ? end->begin : end->end) - p->first[end->is_measured]));
}

/* From each member to the next; of a transfer there are two. */
void timeline_print_flows(struct printing *p)
{
    int id = 1;

    for (int i = 0; i + 1 < p->n_ends; i++)
        if (timeline_is_same_flow(&p->ends[i], &p->ends[i + 1]) &&
            p->ends[i].member != p->ends[i + 1].member) {
            print_end(p, id, &p->ends[i], true);
            print_end(p, id++, &p->ends[i + 1], false);
        }
}
