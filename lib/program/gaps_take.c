/*
 * gaps_take.c - gaps are taken off the highest op until all ops are within a capacity
 */
#include <stdlib.h>
#include <string.h>

#include "program/gaps_impl.h"

enum { NONE = -1 };

/* One range of ops where a gap may be away. */
struct gap_candidate {
    int gap, begin, end;
    int64_t next_use, since; /* ops, counted on from period to period */
    int64_t n_bytes;
    bool clean;
};

static int compare_i64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_farthest(const void *a, const void *b)
{
    const struct gap_candidate *x = a, *y = b;
    int order = compare_i64(y->next_use, x->next_use);

    order = order ? order : compare_i64(y->n_bytes, x->n_bytes);
    return order ? order : x->gap - y->gap;
}

static int by_clean(const void *a, const void *b)
{
    const struct gap_candidate *x = a, *y = b;

    return x->clean != y->clean ? y->clean - x->clean : by_farthest(a, b);
}

static int by_age(const void *a, const void *b)
{
    const struct gap_candidate *x = a, *y = b;
    int order = compare_i64(x->since, y->since);

    return order ? order : by_farthest(a, b);
}

static void list_candidates(struct gap_taking *t, struct arena *arena)
{
    static int (*const compare[N_ORDERS])(const void *, const void *) = {
        [ORDER_FARTHEST] = by_farthest, [ORDER_CLEAN_FARTHEST] = by_clean, [ORDER_OLDEST] = by_age,
        [ORDER_FITTING] = by_farthest,  [ORDER_CLEAN_FITTING] = by_clean,
    };
    const struct gap_problem *problem = t->problem;
    struct gap_candidate *list = arena_array(arena, struct gap_candidate, 2 * problem->n_gaps);

    for (int g = 0; g < problem->n_gaps; g++) {
        const struct gap *gap = &problem->gaps[g];
        struct gap_range ranges[2];
        int n_ranges = gap_ranges(gap, problem->n_ops, ranges);
        bool wraps = n_ranges == 2;

        t->any_clean |= gap->clean;
        for (int i = 0; i < n_ranges; i++)
            if (ranges[i].begin < ranges[i].end && gap->n_bytes > 0)
                list[t->n_candidates++] = (struct gap_candidate){
                    .gap = g,
                    .begin = ranges[i].begin,
                    .end = ranges[i].end,
                    .next_use = (int64_t)gap->to + (wraps && i == 1 ? problem->n_ops : 0),
                    .since = (int64_t)gap->from - (wraps && i == 0 ? problem->n_ops : 0),
                    .n_bytes = gap->n_bytes,
                    .clean = gap->clean,
                };
    }
    for (int k = 0; k < N_ORDERS; k++) {
        t->orders[k] = arena_array(arena, struct gap_candidate, t->n_candidates);
        if (t->n_candidates)
            memcpy(t->orders[k], list, (size_t)t->n_candidates * sizeof(*list));
        qsort(t->orders[k], (size_t)t->n_candidates, sizeof(*list), compare[k]);
    }
}

struct gap_member {
    int group, gap;
};

static int compare_members(const void *a, const void *b)
{
    const struct gap_member *x = a, *y = b;
    int order = compare_i64(x->group, y->group);

    return order ? order : compare_i64(x->gap, y->gap);
}

static void link_groups(struct gap_taking *t, struct arena *arena)
{
    int n = t->problem->n_gaps;
    struct gap_member *sorted = arena_array(arena, struct gap_member, n);

    t->next_of_group = arena_array(arena, int, n);
    for (int g = 0; g < n; g++) {
        sorted[g] = (struct gap_member){ t->problem->gaps[g].group, g };
        t->next_of_group[g] = g;
    }
    qsort(sorted, (size_t)n, sizeof(*sorted), compare_members);
    for (int i = 0, begin = 0; i < n; i++) {
        bool last = i + 1 == n || sorted[i + 1].group != sorted[i].group;

        if (sorted[i].group)
            t->next_of_group[sorted[i].gap] = sorted[last ? begin : i + 1].gap;
        if (last)
            begin = i + 1;
    }
}

/* All gaps of a gap's group go, or come back. */
static void move_group(struct gap_taking *t, int gap, bool goes, bool *away)
{
    int g = gap;

    do {
        struct gap_range ranges[2];
        int n_ranges = gap_ranges(&t->problem->gaps[g], t->problem->n_ops, ranges);
        int64_t n_bytes = t->problem->gaps[g].n_bytes;

        for (int i = 0; i < n_ranges; i++)
            gap_curve_add(&t->curve, ranges[i].begin, ranges[i].end, goes ? -n_bytes : n_bytes);
        away[g] = goes;
        g = t->next_of_group[g];
    } while (g != gap);
}

static void list_times(struct gap_taking *t, struct arena *arena)
{
    int n = t->problem->n_ops;
    const int64_t *begins = t->timing->begins;

    t->out_time = arena_array(arena, int64_t, n);
    t->in_time = arena_array(arena, int64_t, n);
    t->too_late = arena_array(arena, bool, t->problem->n_gaps);
    for (int i = 0; i < n; i++) {
        t->out_time[i] = begins[i + 1] - begins[t->timing->end[i]];
        t->in_time[i] = begins[t->timing->first[i]] - begins[i];
    }
    gap_curve_open(&t->outs, n, arena);
    gap_curve_open(&t->ins, n, arena);
}

/* The ops whose times a gap's copies take, and how much: none for a copy that there is not. */
static void find_loads(const struct gap_taking *t, const struct gap *gap, struct gap_range *outs,
                       struct gap_range *ins, int64_t *out_ns, int64_t *in_ns)
{
    const struct gap_problem *problem = t->problem;

    *outs = *ins = (struct gap_range){ 0, 0 };
    *out_ns = gap_copy_ns(problem, gap, problem->out_rate);
    *in_ns = gap_copy_ns(problem, gap, problem->in_rate);
    if (gap_has_out(gap))
        *outs = (struct gap_range){ t->timing->first[gap->from], gap->from - gap->n_early + 1 };
    if (gap->to < problem->n_ops)
        *ins = (struct gap_range){ gap->to, t->timing->end[gap->to] };
}

/* Whether there is time for the copies of each gap of a group. */
static bool fits(const struct gap_taking *t, int gap)
{
    int g = gap;

    do {
        struct gap_range outs, ins;
        int64_t out_ns, in_ns;

        find_loads(t, &t->problem->gaps[g], &outs, &ins, &out_ns, &in_ns);
        if ((outs.end && gap_curve_max(&t->outs, outs.begin, outs.end) + out_ns > 0) ||
            (ins.end && gap_curve_max(&t->ins, ins.begin, ins.end) + in_ns > 0))
            return false;
        g = t->next_of_group[g];
    } while (g != gap);
    return true;
}

static void load_group(struct gap_taking *t, int gap)
{
    int g = gap;

    do {
        struct gap_range outs, ins;
        int64_t out_ns, in_ns;

        find_loads(t, &t->problem->gaps[g], &outs, &ins, &out_ns, &in_ns);
        gap_curve_add(&t->outs, outs.begin, outs.end, out_ns);
        gap_curve_add(&t->ins, ins.begin, ins.end, in_ns);
        g = t->next_of_group[g];
    } while (g != gap);
}

/* The first in the order that may be away at the op; from ORDER_FITTING on the first that
 * fits, if one does. */
static int find_candidate(struct gap_taking *t, enum gap_order order, const bool *away, int *first,
                          int op)
{
    const struct gap_candidate *list = t->orders[order];
    bool fitting = order >= ORDER_FITTING;
    int found = NONE;

    while (*first < t->n_candidates && away[list[*first].gap])
        ++*first;
    for (int i = *first; i < t->n_candidates; i++) {
        int gap = list[i].gap;

        if (list[i].begin > op || op >= list[i].end || away[gap])
            continue;
        if (!fitting)
            return gap;
        found = found == NONE ? gap : found;
        if (t->too_late[gap])
            continue;
        if (fits(t, gap))
            return gap;
        t->too_late[gap] = true;
    }
    return found;
}

int gap_taking_take(struct gap_taking *t, enum gap_order order, int64_t capacity, bool *away,
                    int64_t *peaks, int *op)
{
    int64_t peak;
    int n_taken = 0, first = 0;

    memset(away, 0, (size_t)t->problem->n_gaps * sizeof(bool));
    gap_curve_set(&t->curve, t->problem->resident);
    if (order >= ORDER_FITTING) {
        memset(t->too_late, 0, (size_t)t->problem->n_gaps * sizeof(bool));
        gap_curve_set(&t->outs, t->out_time);
        gap_curve_set(&t->ins, t->in_time);
    }
    while ((peak = gap_curve_peak(&t->curve, op)) > capacity) {
        int gap = find_candidate(t, order, away, &first, *op);

        if (gap == NONE)
            return -1;
        move_group(t, gap, true, away);
        if (order >= ORDER_FITTING)
            load_group(t, gap);
        if (peaks)
            peaks[n_taken] = peak;
        t->taken[n_taken++] = gap;
    }
    return n_taken;
}

void gap_taking_give_back(struct gap_taking *t, int64_t capacity, bool *away, int n_taken)
{
    int op;

    for (int i = n_taken - 2; i >= 0; i--) {
        move_group(t, t->taken[i], false, away);
        if (gap_curve_peak(&t->curve, &op) > capacity)
            move_group(t, t->taken[i], true, away);
    }
}

void gap_taking_open(struct gap_taking *taking, const struct gap_problem *problem,
                     const struct gap_timing *timing, struct arena *arena)
{
    *taking = (struct gap_taking){ .problem = problem, .timing = timing };
    gap_curve_open(&taking->curve, problem->n_ops, arena);
    taking->taken = arena_array(arena, int, problem->n_gaps);
    list_candidates(taking, arena);
    list_times(taking, arena);
    link_groups(taking, arena);
}
