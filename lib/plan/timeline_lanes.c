/*
 * timeline_lanes.c - joining spans, and sums by kind
 */
#include "plan/timeline_lanes.h"

#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "layout/axes.h"
#include "plan/timeline_impl.h"

/* ---- lanes ---- */

/* When the ranks of the same step and kind begin. */
static int64_t first_begin(const struct timeline *t, const struct timeline_rank *r)
{
    int64_t first = INT64_MAX;

    for (int i = 0; i < t->n; i++) {
        const struct timeline_rank *other = &t->ranks[i];

        for (int k = 0; k < other->n; k++)
            if (other->step == r->step && other->is_measured == r->is_measured)
                first = min_i64(first, timeline_begin(other, &other->spans[k]));
    }
    return first;
}

static struct lane_slice slice_of(const struct timeline_rank *r, const struct timeline_span *span,
                                  int64_t first)
{
    const struct op *op = timeline_op(r, span);
    int64_t begin = timeline_begin(r, span) - first;

    return (struct lane_slice){ .begin = begin,
                                .end = begin + span->end - span->begin,
                                .class = span->class,
                                .kind = op ? (int)op->kind : -1,
                                .layer = op ? op->layer : -1,
                                .n_spans = 1 };
}

static void add_lane(struct timeline_lanes *lanes, const struct timeline *t,
                     const struct timeline_rank *r, enum stream stream, int64_t first,
                     struct arena *arena)
{
    struct timeline_lane *lane = &lanes->items[lanes->n];
    int n = 0;

    for (int i = 0; i < r->n; i++)
        n += r->spans[i].stream == stream;
    if (!n)
        return;
    *lane = (struct timeline_lane){ .rank = r->rank,
                                    .stage = mesh_coordinate(t->mesh, r->rank, axes_stages()),
                                    .step = r->step,
                                    .is_measured = r->is_measured,
                                    .stream = stream,
                                    .slices = arena_array(arena, struct lane_slice, n) };
    for (int i = 0; i < r->n; i++)
        if (r->spans[i].stream == stream)
            lane->slices[lane->n++] = slice_of(r, &r->spans[i], first);
    lanes->n++;
}

static int64_t length_of(const struct lane_slice *s)
{
    return s->end - s->begin;
}

/* Whether b, the next after a, becomes a part of it. */
static bool are_joined(const struct lane_slice *a, const struct lane_slice *b, int64_t ns)
{
    if (b->begin - a->end >= ns)
        return false;
    return a->class == b->class ? min_i64(length_of(a), length_of(b)) < ns
                                : max_i64(length_of(a), length_of(b)) < ns ||
                                      min_i64(length_of(a), length_of(b)) < ns / 4;
}

static void join(struct lane_slice *a, const struct lane_slice *b)
{
    int64_t begin = a->begin, end = max_i64(a->end, b->end);
    int n_spans = a->n_spans + b->n_spans;

    if (length_of(b) > length_of(a))
        *a = *b;
    a->begin = begin;
    a->end = end;
    a->n_spans = n_spans;
}

static int join_lane(struct timeline_lane *lane, int64_t ns)
{
    int n = 0;

    for (int i = 0; i < lane->n; i++) {
        if (n && are_joined(&lane->slices[n - 1], &lane->slices[i], ns))
            join(&lane->slices[n - 1], &lane->slices[i]);
        else
            lane->slices[n++] = lane->slices[i];
    }
    return lane->n = n;
}

static int count_slices(const struct timeline_lanes *lanes)
{
    int n = 0;

    for (int i = 0; i < lanes->n; i++)
        n += lanes->items[i].n;
    return n;
}

void timeline_lanes_find(struct timeline_lanes *lanes, const struct timeline *timeline, int n_most,
                         struct arena *arena)
{
    int n_slices;
    int64_t longest = 0;

    *lanes = (struct timeline_lanes){ .items = arena_array(arena, struct timeline_lane,
                                                           timeline->n * N_STREAMS) };
    for (int i = 0; i < timeline->n; i++) {
        const struct timeline_rank *r = &timeline->ranks[i];
        int64_t first = first_begin(timeline, r);

        for (int stream = 0; stream < N_STREAMS; stream++)
            add_lane(lanes, timeline, r, (enum stream)stream, first, arena);
    }
    for (int i = 0; i < lanes->n; i++)
        longest = max_i64(longest, lanes->items[i].slices[lanes->items[i].n - 1].end);
    n_slices = count_slices(lanes);
    for (int64_t ns = 1 + longest / 4096; n_slices > max_int(n_most, lanes->n) && ns < 8 * longest;
         ns *= 2) {
        lanes->joined_ns = ns;
        n_slices = 0;
        for (int i = 0; i < lanes->n; i++)
            n_slices += join_lane(&lanes->items[i], ns);
    }
}

/* ---- kinds ---- */

static int longest_first(const void *pa, const void *pb)
{
    const struct timeline_kind *a = pa, *b = pb;
    double of_a = fmax(a->measured_ns, a->predicted_ns);
    double of_b = fmax(b->measured_ns, b->predicted_ns);

    return of_a != of_b ? (of_a > of_b ? -1 : 1) : a->kind - b->kind;
}

static void add_kinds(double *ns, const struct timeline_rank *r)
{
    for (int i = 0; i < r->n; i++) {
        const struct op *op = timeline_op(r, &r->spans[i]);

        if (op && r->spans[i].stream == STREAM_COMPUTE)
            ns[op->kind] += (double)(r->spans[i].end - r->spans[i].begin + r->spans[i].slowed);
    }
}

int timeline_kinds_find(struct timeline_kind **kinds, const struct timeline *timeline,
                        struct arena *arena)
{
    double *ns[2] = { arena_array(arena, double, N_OP_KINDS),
                      arena_array(arena, double, N_OP_KINDS) };
    int n_ranks[2] = { 0 }, n = 0;

    for (int i = 0; i < timeline->n; i++) {
        add_kinds(ns[timeline->ranks[i].is_measured], &timeline->ranks[i]);
        n_ranks[timeline->ranks[i].is_measured]++;
    }
    *kinds = arena_array(arena, struct timeline_kind, N_OP_KINDS);
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (ns[0][kind] > 0 || ns[1][kind] > 0)
            (*kinds)[n++] = (struct timeline_kind){
                .kind = kind,
                .predicted_ns = n_ranks[0] ? ns[0][kind] / n_ranks[0] : -1,
                .measured_ns = n_ranks[1] ? ns[1][kind] / n_ranks[1] : -1,
            };
    if (n)
        qsort(*kinds, (size_t)n, sizeof **kinds, longest_first);
    return n;
}
