/*
 * gaps_time.c - the times of copies, for gaps that go
 *
 * The ops are walked once, in order, with a clock. Outs need no decision: they are queued where
 * their op ends, and their ends are known at once. Where an op does not fit, it waits for outs, in
 * their order. Ins are issued in the order of their deadlines, each from its target on as soon as
 * it fits until its deadline; the targets come from a walk backwards over the deadlines.
 */
#include <string.h>

#include "base/num.h"
#include "program/gaps_impl.h"

enum { NONE = -1 };

void gap_curve_open(struct gap_curve *curve, int n, struct arena *arena)
{
    int n_leaves = 4;

    while (n_leaves < n + 2) /* one at each side stays empty */
        n_leaves *= 2;
    *curve = (struct gap_curve){ .n = n, .first_leaf = n_leaves + 1 };
    curve->max = arena_array(arena, int64_t, 2 * n_leaves);
    curve->added = arena_array(arena, int64_t, n_leaves);
}

void gap_curve_set(struct gap_curve *curve, const int64_t *bytes)
{
    int n_leaves = curve->first_leaf - 1;

    memset(curve->added, 0, (size_t)n_leaves * sizeof(*curve->added));
    for (int i = 0; i < n_leaves; i++)
        curve->max[n_leaves + i] = i > 0 && i <= curve->n ? bytes[i - 1] : INT64_MIN / 2;
    for (int p = n_leaves - 1; p > 0; p--)
        curve->max[p] = max_i64(curve->max[2 * p], curve->max[2 * p + 1]);
}

void gap_curve_add(struct gap_curve *curve, int begin, int end, int64_t n_bytes)
{
    int n_leaves = curve->first_leaf - 1;
    int l = curve->first_leaf + begin - 1, r = curve->first_leaf + end;

    if (begin >= end)
        return;
    for (; l > 1; l >>= 1, r >>= 1) {
        if ((l ^ r) > 1) {
            for (int side = 0; side < 2; side++) {
                int p = side ? r ^ 1 : l ^ 1;

                if (side ? !(r & 1) : (l & 1))
                    continue;
                curve->max[p] += n_bytes;
                if (p < n_leaves)
                    curve->added[p] += n_bytes;
            }
        }
        for (int side = 0; side < 2; side++) {
            int p = (side ? r : l) >> 1;

            curve->max[p] = max_i64(curve->max[2 * p], curve->max[2 * p + 1]) + curve->added[p];
        }
    }
}

int64_t gap_curve_max(const struct gap_curve *curve, int begin, int end)
{
    int l = curve->first_leaf + begin - 1, r = curve->first_leaf + end;
    int64_t left = INT64_MIN / 2, right = INT64_MIN / 2;

    if (begin >= end)
        return INT64_MIN;
    for (; (l ^ r) > 1; l >>= 1, r >>= 1) {
        if (!(l & 1))
            left = max_i64(left, curve->max[l ^ 1]);
        if (r & 1)
            right = max_i64(right, curve->max[r ^ 1]);
        left += curve->added[l >> 1];
        right += curve->added[r >> 1];
    }
    left = max_i64(left, right);
    for (l >>= 1; l > 0; l >>= 1)
        left += curve->added[l];
    return left;
}

int64_t gap_curve_peak(const struct gap_curve *curve, int *op)
{
    int n_leaves = curve->first_leaf - 1, p = 1;

    while (p < n_leaves)
        p = 2 * p + (curve->max[2 * p] < curve->max[2 * p + 1]);
    *op = p - curve->first_leaf;
    return curve->max[1];
}

int gap_ranges(const struct gap *gap, int n_ops, struct gap_range ranges[2])
{
    if (gap->from < gap->to) {
        ranges[0] = (struct gap_range){ gap->from + 1, gap->to };
        return 1;
    }
    ranges[0] = (struct gap_range){ 0, gap->to };
    ranges[1] = (struct gap_range){ gap->from + 1, n_ops };
    return 2;
}

enum gap_key { KEY_OUT, KEY_FROM, KEY_TO };

static int gap_key_of(const struct gap *gap, enum gap_key key)
{
    return key == KEY_TO ? gap->to : gap->from - (key == KEY_OUT ? gap->n_early : 0);
}

/* The gaps by that op, in the order in which they are given where it is the same. */
static int *sort_gaps(const struct gap_problem *problem, enum gap_key key, struct arena *arena)
{
    int *sorted = arena_array(arena, int, problem->n_gaps);
    int *starts = arena_array(arena, int, problem->n_ops + 3);

    for (int g = 0; g < problem->n_gaps; g++)
        starts[2 + gap_key_of(&problem->gaps[g], key)]++;
    for (int i = 1; i < problem->n_ops + 3; i++)
        starts[i] += starts[i - 1];
    for (int g = 0; g < problem->n_gaps; g++)
        sorted[starts[1 + gap_key_of(&problem->gaps[g], key)]++] = g;
    return sorted;
}

void gap_timing_open(struct gap_timing *timing, const struct gap_problem *problem,
                     struct arena *arena)
{
    int n = problem->n_ops, n_gaps = problem->n_gaps;

    CHECK(n > 0);
    CHECK(problem->out_rate > 0);
    CHECK(problem->in_rate > 0);
    for (int g = 0; g < n_gaps; g++) {
        CHECK(problem->gaps[g].from >= -1 && problem->gaps[g].from < n);
        CHECK(problem->gaps[g].to >= 0 && problem->gaps[g].to <= n);
        CHECK(problem->gaps[g].n_early >= 0);
        CHECK(problem->gaps[g].n_early <= max_int(problem->gaps[g].from, 0));
    }
    *timing = (struct gap_timing){ .problem = problem,
                                   .begins = arena_array(arena, int64_t, n + 1),
                                   .first = arena_array(arena, int, n + 1),
                                   .end = arena_array(arena, int, n),
                                   .by_out = sort_gaps(problem, KEY_OUT, arena),
                                   .by_from = sort_gaps(problem, KEY_FROM, arena),
                                   .by_to = sort_gaps(problem, KEY_TO, arena),
                                   .floor = arena_array(arena, int64_t, n),
                                   .out_ends = arena_array(arena, int64_t, n_gaps),
                                   .in_ends = arena_array(arena, int64_t, n_gaps),
                                   .in_targets = arena_array(arena, int, n_gaps),
                                   .ins = arena_array(arena, int, n_gaps) };
    for (int i = 0; i < n; i++) {
        timing->begins[i + 1] = timing->begins[i] + problem->ns[i];
        timing->first[i + 1] = problem->drains && problem->drains[i] ? i + 1 : timing->first[i];
    }
    for (int g = 0; g < n_gaps; g++)
        CHECK(problem->gaps[g].from - problem->gaps[g].n_early >=
              timing->first[max_int(problem->gaps[g].from, 0)] - (problem->gaps[g].from < 0));
    for (int i = n - 1; i >= 0; i--)
        timing->end[i] =
            i == n - 1 || (problem->drains && problem->drains[i]) ? i + 1 : timing->end[i + 1];
    gap_curve_open(&timing->curve, n, arena);
}

void gap_schedule_open(struct gap_schedule *schedule, int n_gaps, struct arena *arena)
{
    *schedule = (struct gap_schedule){ .away = arena_array(arena, bool, n_gaps),
                                       .out_await = arena_array(arena, int, n_gaps),
                                       .in_issue = arena_array(arena, int, n_gaps) };
}

int64_t gap_timing_floor(struct gap_timing *t, const bool *away, int *op)
{
    const struct gap_problem *problem = t->problem;
    int64_t *floor = t->floor;

    memset(floor, 0, (size_t)problem->n_ops * sizeof(*floor));
    for (int g = 0; g < problem->n_gaps; g++) {
        struct gap_range ranges[2];
        int n_ranges = away[g] ? gap_ranges(&problem->gaps[g], problem->n_ops, ranges) : 0;

        for (int i = 0; i < n_ranges; i++) {
            if (ranges[i].begin < problem->n_ops)
                floor[ranges[i].begin] -= problem->gaps[g].n_bytes;
            if (ranges[i].end < problem->n_ops)
                floor[ranges[i].end] += problem->gaps[g].n_bytes;
        }
    }
    for (int i = 1; i < problem->n_ops; i++)
        floor[i] += floor[i - 1];
    for (int i = 0; i < problem->n_ops; i++)
        floor[i] += problem->resident[i];
    gap_curve_set(&t->curve, floor);
    return gap_curve_peak(&t->curve, op);
}

/* The last op that begins at `ns` or before without stall; 0 if none does. */
static int op_at(const struct gap_timing *t, int64_t ns)
{
    int low = 0, high = t->problem->n_ops;

    while (high - low > 1) {
        int middle = low + (high - low) / 2;

        if (t->begins[middle] <= ns)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* What comes in, by deadline, and its targets. Returns how many. */
static int set_targets(struct gap_timing *t, const bool *away)
{
    const struct gap_problem *problem = t->problem;
    int64_t latest = INT64_MAX;
    int n_ins = 0;

    for (int i = 0; i < problem->n_gaps; i++) {
        int g = t->by_to[i];

        if (away[g] && problem->gaps[g].to < problem->n_ops)
            t->ins[n_ins++] = g;
    }
    for (int i = n_ins - 1; i >= 0; i--) {
        const struct gap *gap = &problem->gaps[t->ins[i]];
        int64_t ns = gap_copy_ns(problem, gap, problem->in_rate);
        int earliest = t->first[gap->to];

        latest = min_i64(latest, t->begins[gap->to]) - ns;
        if (gap->from < gap->to)
            earliest = max_int(earliest, gap->from + 1);
        t->in_targets[t->ins[i]] = min_int(gap->to, max_int(earliest, op_at(t, latest - ns)));
    }
    return n_ins;
}

/* The walk over the ops. */
struct gap_walk {
    struct gap_timing *t;
    struct gap_schedule *schedule;
    int64_t capacity;
    int64_t now, out_free, in_free; /* when compute and the queues have ended what they have */
    int64_t leaving;     /* bytes of outs behind their last op that are not awaited yet */
    int awaited, queued; /* positions in by_out: all outs before, and no out behind */
    int left;            /* position in by_from */
    int n_ins, issued;   /* positions in t->ins */
    int arrived;
};

static bool goes_out(const struct gap_walk *w, int g)
{
    return w->schedule->away[g] && gap_has_out(&w->t->problem->gaps[g]);
}

/* Whether its memory can be waited for. */
static bool can_await(const struct gap_walk *w, int g, int op)
{
    return goes_out(w, g) && w->schedule->out_await[g] == NONE && w->t->problem->gaps[g].from < op;
}

static void await_out(struct gap_walk *w, int g, int op)
{
    w->now = max_i64(w->now, w->t->out_ends[g]);
    w->leaving -= w->t->problem->gaps[g].n_bytes;
    w->schedule->out_await[g] = op;
}

/* Whether a value that comes back in this period has not left yet. */
static bool is_leaving(const struct gap_walk *w, int g)
{
    const struct gap *gap = &w->t->problem->gaps[g];

    return gap_has_out(gap) && gap->from < gap->to && w->schedule->out_await[g] == NONE;
}

/* Wait for all outs that the op needs: ended ones, all behind the end of a function, as many as
 * there must be for it to fit, and those of its own operands. */
static void await_outs(struct gap_walk *w, int op)
{
    const struct gap_timing *t = w->t;
    bool drain = op == t->problem->n_ops || (op > 0 && t->first[op] == op);
    int64_t n_bytes = op < t->problem->n_ops ? gap_curve_max(&t->curve, op, op + 1) : 0;

    for (int i = w->issued; i < w->n_ins && t->problem->gaps[t->ins[i]].to == op; i++)
        if (is_leaving(w, t->ins[i]))
            await_out(w, t->ins[i], op);
    for (int i = w->awaited; i < w->queued; i++) {
        int g = t->by_out[i];

        if (!can_await(w, g, op))
            continue;
        if (!drain && t->out_ends[g] > w->now && n_bytes + w->leaving <= w->capacity)
            break;
        await_out(w, g, op);
    }
    while (w->awaited < w->queued && (!goes_out(w, t->by_out[w->awaited]) ||
                                      w->schedule->out_await[t->by_out[w->awaited]] != NONE))
        w->awaited++;
}

/* Issue ins before the op: due ones while they fit, and those that the op reads anyway. */
static void issue_ins(struct gap_walk *w, int op)
{
    struct gap_timing *t = w->t;
    const struct gap_problem *problem = t->problem;

    for (; w->issued < w->n_ins; w->issued++) {
        int g = t->ins[w->issued];
        const struct gap *gap = &problem->gaps[g];

        if (op < gap->to) {
            if (op < t->in_targets[g] || is_leaving(w, g))
                return;
            if (gap_curve_max(&t->curve, op, op + 1) + w->leaving + gap->n_bytes > w->capacity ||
                gap_curve_max(&t->curve, op, gap->to) + gap->n_bytes > w->capacity)
                return;
        }
        gap_curve_add(&t->curve, op, gap->to, gap->n_bytes);
        w->schedule->in_issue[g] = op;
        w->in_free = max_i64(w->in_free, w->now) + gap_copy_ns(problem, gap, problem->in_rate);
        t->in_ends[g] = w->in_free;
        w->schedule->in_bytes += gap->n_bytes;
    }
}

static void await_ins(struct gap_walk *w, int op)
{
    for (; w->arrived < w->issued; w->arrived++) {
        int g = w->t->ins[w->arrived];

        if (w->t->problem->gaps[g].to > op)
            return;
        w->now = max_i64(w->now, w->t->in_ends[g]);
    }
}

static void queue_outs(struct gap_walk *w, int op)
{
    struct gap_timing *t = w->t;
    const struct gap_problem *problem = t->problem;

    for (; w->queued < problem->n_gaps; w->queued++) {
        int g = t->by_out[w->queued];
        const struct gap *gap = &problem->gaps[g];

        if (gap_key_of(gap, KEY_OUT) > op)
            break;
        if (!goes_out(w, g))
            continue;
        w->out_free = max_i64(w->out_free, w->now) + gap_copy_ns(problem, gap, problem->out_rate);
        t->out_ends[g] = w->out_free;
        w->schedule->out_bytes += gap->n_bytes;
    }
    for (; w->left < problem->n_gaps && problem->gaps[t->by_from[w->left]].from <= op; w->left++)
        if (goes_out(w, t->by_from[w->left]))
            w->leaving += problem->gaps[t->by_from[w->left]].n_bytes;
}

int gap_timing_run(struct gap_timing *timing, int64_t capacity, struct gap_schedule *schedule,
                   int *op)
{
    const struct gap_problem *problem = timing->problem;
    struct gap_walk w = { .t = timing, .schedule = schedule, .capacity = capacity };

    if (gap_timing_floor(timing, schedule->away, op) > capacity)
        return -1;
    schedule->n_away = 0;
    schedule->out_bytes = schedule->in_bytes = 0;
    schedule->peak = 0;
    for (int g = 0; g < problem->n_gaps; g++) {
        schedule->out_await[g] = schedule->in_issue[g] = NONE;
        schedule->n_away += schedule->away[g];
    }
    w.n_ins = set_targets(timing, schedule->away);
    for (int i = 0; i < problem->n_ops; i++) {
        await_outs(&w, i);
        issue_ins(&w, i);
        schedule->peak =
            max_i64(schedule->peak, gap_curve_max(&timing->curve, i, i + 1) + w.leaving);
        await_ins(&w, i);
        w.now += problem->ns[i];
        queue_outs(&w, i);
    }
    await_outs(&w, problem->n_ops);
    schedule->stall_ns = w.now - timing->begins[problem->n_ops];
    CHECK(schedule->peak <= capacity);
    return 0;
}
