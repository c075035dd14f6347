/*
 * timeline_counters.c - what varies over a step
 */
#include <stdlib.h>

#include "base/num.h"
#include "plan/price.h"
#include "plan/timeline_impl.h"

/* ---- the stash ---- */

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

static void print_stash(struct printing *p, const struct timeline_rank *r)
{
    int64_t each = slot_bytes(r->program), alive = 0;
    int last = -1;

    for (int i = 0; i < r->n; i++) {
        const struct timeline_span *s = &r->spans[i];

        if (s->action == last || s->stream != STREAM_COMPUTE || s->op < 0)
            continue;
        last = s->action;
        int change = change_of(r->program, timeline_function(r, s));
        if (!change)
            continue;
        alive += change;
        timeline_begin_event(p);
        str_printf(p->out,
                   "{\"ph\":\"C\",\"name\":\"stash "
                   "bytes\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"bytes\":%lld}}",
                   timeline_pid(r), timeline_us(timeline_begin(r, s) - p->first[r->is_measured]),
                   (long long)(alive * each));
    }
}

/* ---- links ---- */

int64_t timeline_link_bytes(const struct timeline *timeline, const struct timeline_rank *r,
                            const struct op *op)
{
    struct op_shape shape = program_op_shape(r->program, op);

    return price_link_bytes(&shape, mesh_size(timeline->mesh, op->attributes.axis));
}

/* From this time on, by so much more or less. */
struct level_change {
    int64_t time;
    double rate; /* bytes a second */
    int n_more;
};

static int compare_changes(const void *pa, const void *pb)
{
    const struct level_change *a = pa, *b = pb;

    return (a->time > b->time) - (a->time < b->time);
}

/* Of all collectives and transfers: each carries its bytes evenly from its begin to its end. */
static int list_changes(const struct printing *p, const struct timeline_rank *r,
                        struct level_change *changes)
{
    int n = 0;

    for (int i = 0; i < r->n; i++) {
        const struct timeline_span *s = &r->spans[i];
        const struct op *op = timeline_op(r, s);

        if (!op || !op_is_collective(op->kind) || s->end <= s->begin)
            continue;
        double bytes = (double)timeline_link_bytes(p->timeline, r, op);
        double rate = bytes * 1e9 / (double)(s->end - s->begin);
        changes[n++] = (struct level_change){ timeline_begin(r, s), rate, 1 };
        changes[n++] = (struct level_change){ timeline_begin(r, s) + s->end - s->begin, -rate, -1 };
    }
    if (n)
        qsort(changes, (size_t)n, sizeof *changes, compare_changes);
    return n;
}

static void print_links(struct printing *p, const struct timeline_rank *r)
{
    struct arena arena = { 0 };
    struct level_change *changes = arena_array(&arena, struct level_change, 2 * r->n + 1);
    int n = list_changes(p, r, changes), n_under_way = 0;
    double rate = 0;

    for (int i = 0; i < n; i++) {
        rate += changes[i].rate;
        n_under_way += changes[i].n_more;
        if (!n_under_way)
            rate = 0; /* and not what rounding left */
        if (i + 1 < n && changes[i + 1].time == changes[i].time)
            continue;
        timeline_begin_event(p);
        str_printf(p->out,
                   "{\"ph\":\"C\",\"name\":\"link bytes/s\",\"pid\":%d,\"ts\":%.3f,\"args\":{"
                   "\"bytes\":%.0f}}",
                   timeline_pid(r), timeline_us(changes[i].time - p->first[r->is_measured]), rate);
    }
    arena_release(&arena);
}

void timeline_print_counters(struct printing *p, const struct timeline_rank *r)
{
    print_stash(p, r);
    print_links(p, r);
}
