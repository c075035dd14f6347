/*
 * timeline_summary.c - sums over spans
 */
#include "plan/timeline_summary.h"

#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "layout/axes.h"
#include "plan/timeline_impl.h"

/* ---- where time goes ---- */

static int64_t *kind_of(struct timeline_total *total, enum time_class class)
{
    switch (class) {
    case TIME_TENSOR:
    case TIME_CONTEXT:
    case TIME_EXPERTS:
    case TIME_GRADIENTS:
    case TIME_GATHERS:
    case TIME_COPIES:
        return &total->exposed;
    case TIME_STAGES:
    case TIME_TRANSFERS:
    case TIME_ISSUE:
        return &total->waits;
    default:
        return &total->compute;
    }
}

static void add_spans(struct timeline_total *total, const struct timeline_rank *r)
{
    for (int i = 0; i < r->n; i++) {
        const struct timeline_span *s = &r->spans[i];
        int64_t ns = s->end - s->begin;

        if (s->stream != STREAM_COMPUTE) {
            total->beside[s->class] += ns;
            continue;
        }
        total->of[s->class] += ns;
        *kind_of(total, s->class) += ns;
    }
}

/* Of all ranks of the same step and kind. */
static int64_t extent_of(const struct timeline *t, const struct timeline_rank *r)
{
    int64_t first = INT64_MAX, last = INT64_MIN;

    for (int i = 0; i < t->n; i++) {
        const struct timeline_rank *other = &t->ranks[i];

        if (other->step != r->step || other->is_measured != r->is_measured)
            continue;
        for (int k = 0; k < other->n; k++) {
            first = min_i64(first, other->spans[k].begin);
            last = max_i64(last, other->spans[k].end);
        }
    }
    return last > first ? last - first : 0;
}

static struct timeline_total total_of(const struct timeline *t, const struct timeline_rank *r)
{
    struct timeline_total total = { .rank = r->rank,
                                    .stage = mesh_coordinate(t->mesh, r->rank, axes_stages()),
                                    .step = r->step,
                                    .is_measured = r->is_measured,
                                    .ns = extent_of(t, r) };

    add_spans(&total, r);
    total.idle = max_i64(0, total.ns - total.compute - total.exposed - total.waits);
    return total;
}

/* ---- ops that differ ---- */

/* Sums of a function's op over the ranks of a stage. */
struct sums {
    double predicted_ns, measured_ns;
    int n_predicted, n_measured;
};

struct summing {
    const struct program *program; /* of the stage; NULL: no rank is predicted */
    struct sums **of;              /* [function][op] */
};

static struct sums **allocate_sums(const struct program *p, struct arena *arena)
{
    struct sums **of = arena_array(arena, struct sums *, p->n_functions);

    for (int f = 0; f < p->n_functions; f++)
        of[f] = arena_array(arena, struct sums, p->functions[f].n_ops);
    return of;
}

static void add_ops(struct summing *s, const struct timeline_rank *r)
{
    for (int i = 0; i < r->n; i++) {
        const struct timeline_span *span = &r->spans[i];

        if (span->op < 0 || span->stream != STREAM_COMPUTE)
            continue;
        struct sums *sums = &s->of[timeline_action(r, span)->function][span->op];
        double ns = (double)(span->end - span->begin + span->slowed);
        *(r->is_measured ? &sums->measured_ns : &sums->predicted_ns) += ns;
        *(r->is_measured ? &sums->n_measured : &sums->n_predicted) += 1;
    }
}

static bool has_both(const struct timeline *t, const struct timeline_rank *r)
{
    for (int i = 0; i < t->n; i++)
        if (t->ranks[i].rank == r->rank && t->ranks[i].step == r->step &&
            t->ranks[i].is_measured != r->is_measured)
            return true;
    return false;
}

static int by_difference(const void *pa, const void *pb)
{
    const struct timeline_difference *a = pa, *b = pb;
    double of_a = fabs(a->measured_ns - a->predicted_ns);
    double of_b = fabs(b->measured_ns - b->predicted_ns);

    if (of_a != of_b)
        return of_a > of_b ? -1 : 1;
    if (a->stage != b->stage)
        return a->stage - b->stage;
    return a->function != b->function ? a->function - b->function : a->op - b->op;
}

/* n_steps: of ranks, of the stage. */
static void list_stage(struct timeline_summary *summary, int stage, const struct summing *s,
                       int n_steps)
{
    for (int f = 0; f < s->program->n_functions; f++)
        for (int i = 0; i < s->program->functions[f].n_ops; i++) {
            const struct sums *sums = &s->of[f][i];

            if (!sums->n_measured || !sums->n_predicted)
                continue;
            summary->differences[summary->n_differences++] =
                (struct timeline_difference){ .stage = stage,
                                              .function = f,
                                              .op = i,
                                              .program = s->program,
                                              .n_runs = sums->n_measured / n_steps,
                                              .predicted_ns = sums->predicted_ns / n_steps,
                                              .measured_ns = sums->measured_ns / n_steps };
        }
}

static int count_ops(const struct program *p)
{
    int n = 0;

    for (int f = 0; f < p->n_functions; f++)
        n += p->functions[f].n_ops;
    return n;
}

static void find_differences(struct timeline_summary *summary, const struct timeline *t, int n_max,
                             struct arena *arena)
{
    int n_stages = t->mesh->size[axes_stages()], n = 0;
    struct summing *of = arena_array(arena, struct summing, n_stages);
    int *n_steps = arena_array(arena, int, n_stages);

    for (int i = 0; i < t->n; i++) {
        const struct timeline_rank *r = &t->ranks[i];
        int stage = mesh_coordinate(t->mesh, r->rank, axes_stages());

        if (!has_both(t, r))
            continue;
        if (!of[stage].program) {
            of[stage] = (struct summing){ r->program, allocate_sums(r->program, arena) };
            n += count_ops(r->program);
        }
        add_ops(&of[stage], r);
        n_steps[stage] += r->is_measured;
    }
    summary->differences = arena_array(arena, struct timeline_difference, n);
    for (int stage = 0; stage < n_stages; stage++)
        if (of[stage].program)
            list_stage(summary, stage, &of[stage], n_steps[stage]);
    if (summary->n_differences)
        qsort(summary->differences, (size_t)summary->n_differences, sizeof *summary->differences,
              by_difference);
    summary->n_differences = min_int(summary->n_differences, n_max);
}

/* ---- slow ranks ---- */

static int compare_ns(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;

    return (a > b) - (a < b);
}

/* The lower one of two in the middle. */
static int64_t median_of(int64_t *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_ns);
    return values[(n - 1) / 2];
}

static bool are_peers(const struct timeline_total *a, const struct timeline_total *b)
{
    return a->is_measured && b->is_measured && a->stage == b->stage && a->step == b->step;
}

/* Of the rank's peers; class N_TIME_CLASSES: of all compute. */
static int64_t median_of_peers(const struct timeline_summary *s, const struct timeline_total *own,
                               int class, int64_t *values, int *n_peers)
{
    *n_peers = 0;
    for (int i = 0; i < s->n_totals; i++)
        if (&s->totals[i] != own && are_peers(&s->totals[i], own))
            values[(*n_peers)++] =
                class == N_TIME_CLASSES ? s->totals[i].compute : s->totals[i].of[class];
    return *n_peers ? median_of(values, *n_peers) : 0;
}

static bool is_slowest(const struct timeline_summary *s, const struct timeline_total *own)
{
    for (int i = 0; i < s->n_totals; i++) {
        const struct timeline_total *other = &s->totals[i];

        if (are_peers(other, own) &&
            (other->compute > own->compute || (other->compute == own->compute && other < own)))
            return false;
    }
    return own->is_measured;
}

static void find_slowest(struct timeline_summary *s, struct arena *arena)
{
    int64_t *values = arena_array(arena, int64_t, s->n_totals);

    s->slowest = arena_array(arena, struct timeline_slowest, s->n_totals);
    for (int i = 0; i < s->n_totals; i++) {
        struct timeline_total *own = &s->totals[i];
        struct timeline_slowest slowest = {
            .stage = own->stage, .rank = own->rank, .step = own->step, .compute = own->compute
        };

        if (!is_slowest(s, own))
            continue;
        slowest.peers = median_of_peers(s, own, N_TIME_CLASSES, values, &slowest.n_peers);
        if (!slowest.n_peers)
            continue;
        for (int class = 0; class < N_TIME_CLASSES; class ++) {
            int n_peers;
            int64_t more = own->of[class] - median_of_peers(s, own, class, values, &n_peers);

            if (kind_of(own, (enum time_class) class) != &own->compute || more <= slowest.more)
                continue;
            slowest.class = (enum time_class) class;
            slowest.more = more;
        }
        s->slowest[s->n_slowest++] = slowest;
    }
}

/* ---- critical paths ---- */

static void find_paths(struct timeline_summary *s, const struct timeline *t, struct arena *arena)
{
    s->paths = arena_array(arena, struct critical_path, t->n);
    for (int i = 0; i < t->n; i++) {
        bool is_new = true;

        for (int k = 0; k < i; k++)
            is_new &= t->ranks[k].step != t->ranks[i].step ||
                      t->ranks[k].is_measured != t->ranks[i].is_measured;
        if (is_new)
            critical_path_find(&s->paths[s->n_paths++], t, t->ranks[i].step,
                               t->ranks[i].is_measured, arena);
    }
}

void timeline_summarize(struct timeline_summary *summary, const struct timeline *timeline,
                        int n_differences_max, struct arena *arena)
{
    *summary =
        (struct timeline_summary){ .totals = arena_array(arena, struct timeline_total, timeline->n),
                                   .n_totals = timeline->n };
    for (int i = 0; i < timeline->n; i++)
        summary->totals[i] = total_of(timeline, &timeline->ranks[i]);
    find_differences(summary, timeline, n_differences_max, arena);
    find_slowest(summary, arena);
    find_paths(summary, timeline, arena);
}
