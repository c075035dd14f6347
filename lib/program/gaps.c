/*
 * gaps.c - which gaps go
 *
 * For a capacity, gaps are taken off the highest op until all are within it, then those that are
 * not needed any more are given back, last taken first. Several orders are tried (enum gap_order),
 * and the best of them is changed a gap or two at a time as long as that helps. The result for a
 * capacity is the best over a ladder of levels up to it; a level's own result depends on nothing
 * but the level, so that a higher capacity has all choices of a lower one.
 *
 * Levels are walked down from the capacity, and no further than to where even the bytes that must
 * cross the link take as long as what was found: at op i, resident[i] - level bytes have left
 * before it and come back behind it.
 */
#include "program/gaps.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "program/gaps_impl.h"

enum {
    NONE = -1,
    N_LEVELS_LEAST = 64, /* of equal steps from the floor to the peak */
    N_LEVELS_MOST = 512,
    N_ROOMS = 5,         /* halves, quarters ... of what is above the floor, left for ins */
    N_STEP_LEVELS = 128, /* at peaks that taking gap by gap leads to */
    /* Of problems with few ops and gaps more is looked at: levels times ops and gaps, and these
     * times changes. A change takes about 30 ns an op or gap. */
    LEVELS_EFFORT = 200000,
    TRIALS_EFFORT = 4000000,
    SCATTER = 1000003, /* a prime: steps of it meet all pairs of up to as many gaps less one */
};

/* What goes first of the gaps over the highest op. */
enum gap_order {
    ORDER_FARTHEST,       /* next use */
    ORDER_CLEAN_FARTHEST, /* clean ones first: they need no out */
    ORDER_OLDEST,         /* rests for longest: its out has had most time */
    ORDER_FITTING,        /* as the first two, but before all others what its functions have time */
    ORDER_CLEAN_FITTING,  /* to copy */
    N_ORDERS,
};

/* One range of ops where a gap may be away. */
struct gap_candidate {
    int gap, begin, end;
    int64_t next_use, since; /* ops, counted on from period to period */
    int64_t n_bytes;
    bool clean;
};

struct gap_choice {
    const struct gap_problem *problem;
    struct gap_timing timing;
    struct gap_curve curve;
    struct gap_candidate *orders[N_ORDERS];
    int n_candidates;
    bool any_clean;
    /* By op, of its function, ns: copies that begin behind the op, or those that end before it,
     * less the time for them. None is above 0 if what goes does not wait for the function's end, or
     * in its beginning. */
    struct gap_curve outs, ins;
    int64_t *out_time, *in_time; /* the same if nothing goes */
    bool *too_late;              /* by gap: does not fit any more */
    int *next_of_group;          /* by gap: another one of its group, in a ring */
    int *taken;      /* a gap of each group that goes, in the order in which they were taken */
    int64_t *levels; /* from the floor up */
    int n_levels;
    int64_t floor;                     /* the least capacity */
    int64_t *must_leave, *must_return; /* by op: resident less what may be gone without a copy */
    int n_trials;                      /* of changes, a level */
    struct gap_schedule best;          /* of all levels */
    struct gap_schedule found;         /* of one level */
    struct gap_schedule trial;
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

static void list_candidates(struct gap_choice *c, struct arena *arena)
{
    static int (*const compare[N_ORDERS])(const void *, const void *) = {
        [ORDER_FARTHEST] = by_farthest, [ORDER_CLEAN_FARTHEST] = by_clean, [ORDER_OLDEST] = by_age,
        [ORDER_FITTING] = by_farthest,  [ORDER_CLEAN_FITTING] = by_clean,
    };
    const struct gap_problem *problem = c->problem;
    struct gap_candidate *list = arena_array(arena, struct gap_candidate, 2 * problem->n_gaps);

    for (int g = 0; g < problem->n_gaps; g++) {
        const struct gap *gap = &problem->gaps[g];
        struct gap_range ranges[2];
        int n_ranges = gap_ranges(gap, problem->n_ops, ranges);
        bool wraps = n_ranges == 2;

        c->any_clean |= gap->clean;
        for (int i = 0; i < n_ranges; i++)
            if (ranges[i].begin < ranges[i].end && gap->n_bytes > 0)
                list[c->n_candidates++] = (struct gap_candidate){
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
        c->orders[k] = arena_array(arena, struct gap_candidate, c->n_candidates);
        if (c->n_candidates)
            memcpy(c->orders[k], list, (size_t)c->n_candidates * sizeof(*list));
        qsort(c->orders[k], (size_t)c->n_candidates, sizeof(*list), compare[k]);
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

static void link_groups(struct gap_choice *c, struct arena *arena)
{
    int n = c->problem->n_gaps;
    struct gap_member *sorted = arena_array(arena, struct gap_member, n);

    c->next_of_group = arena_array(arena, int, n);
    for (int g = 0; g < n; g++) {
        sorted[g] = (struct gap_member){ c->problem->gaps[g].group, g };
        c->next_of_group[g] = g;
    }
    qsort(sorted, (size_t)n, sizeof(*sorted), compare_members);
    for (int i = 0, begin = 0; i < n; i++) {
        bool last = i + 1 == n || sorted[i + 1].group != sorted[i].group;

        if (sorted[i].group)
            c->next_of_group[sorted[i].gap] = sorted[last ? begin : i + 1].gap;
        if (last)
            begin = i + 1;
    }
}

/* All gaps of a gap's group go, or come back. */
static void move_group(struct gap_choice *c, int gap, bool away)
{
    int g = gap;

    do {
        struct gap_range ranges[2];
        int n_ranges = gap_ranges(&c->problem->gaps[g], c->problem->n_ops, ranges);
        int64_t n_bytes = c->problem->gaps[g].n_bytes;

        for (int i = 0; i < n_ranges; i++)
            gap_curve_add(&c->curve, ranges[i].begin, ranges[i].end, away ? -n_bytes : n_bytes);
        c->trial.away[g] = away;
        g = c->next_of_group[g];
    } while (g != gap);
}

static void list_times(struct gap_choice *c, struct arena *arena)
{
    int n = c->problem->n_ops;
    const int64_t *begins = c->timing.begins;

    c->out_time = arena_array(arena, int64_t, n);
    c->in_time = arena_array(arena, int64_t, n);
    c->too_late = arena_array(arena, bool, c->problem->n_gaps);
    for (int i = 0; i < n; i++) {
        c->out_time[i] = begins[i + 1] - begins[c->timing.end[i]];
        c->in_time[i] = begins[c->timing.first[i]] - begins[i];
    }
    gap_curve_open(&c->outs, n, arena);
    gap_curve_open(&c->ins, n, arena);
}

/* The ops whose times a gap's copies take, and how much: none for a copy that there is not. */
static void find_loads(const struct gap_choice *c, const struct gap *gap, struct gap_range *outs,
                       struct gap_range *ins, int64_t *out_ns, int64_t *in_ns)
{
    const struct gap_problem *problem = c->problem;

    *outs = *ins = (struct gap_range){ 0, 0 };
    *out_ns = gap_copy_ns(problem, gap, problem->out_rate);
    *in_ns = gap_copy_ns(problem, gap, problem->in_rate);
    if (gap_has_out(gap))
        *outs = (struct gap_range){ c->timing.first[gap->from], gap->from + 1 };
    if (gap->to < problem->n_ops)
        *ins = (struct gap_range){ gap->to, c->timing.end[gap->to] };
}

/* Whether there is time for the copies of each gap of a group. */
static bool fits(const struct gap_choice *c, int gap)
{
    int g = gap;

    do {
        struct gap_range outs, ins;
        int64_t out_ns, in_ns;

        find_loads(c, &c->problem->gaps[g], &outs, &ins, &out_ns, &in_ns);
        if ((outs.end && gap_curve_max(&c->outs, outs.begin, outs.end) + out_ns > 0) ||
            (ins.end && gap_curve_max(&c->ins, ins.begin, ins.end) + in_ns > 0))
            return false;
        g = c->next_of_group[g];
    } while (g != gap);
    return true;
}

static void load_group(struct gap_choice *c, int gap)
{
    int g = gap;

    do {
        struct gap_range outs, ins;
        int64_t out_ns, in_ns;

        find_loads(c, &c->problem->gaps[g], &outs, &ins, &out_ns, &in_ns);
        gap_curve_add(&c->outs, outs.begin, outs.end, out_ns);
        gap_curve_add(&c->ins, ins.begin, ins.end, in_ns);
        g = c->next_of_group[g];
    } while (g != gap);
}

/* The first in the order that may be away at the op; from ORDER_FITTING on the first that
 * fits, if one does. */
static int find_candidate(struct gap_choice *c, enum gap_order order, int *first, int op)
{
    const struct gap_candidate *list = c->orders[order];
    bool fitting = order >= ORDER_FITTING;
    int found = NONE;

    while (*first < c->n_candidates && c->trial.away[list[*first].gap])
        ++*first;
    for (int i = *first; i < c->n_candidates; i++) {
        int gap = list[i].gap;

        if (list[i].begin > op || op >= list[i].end || c->trial.away[gap])
            continue;
        if (!fitting)
            return gap;
        found = found == NONE ? gap : found;
        if (c->too_late[gap])
            continue;
        if (fits(c, gap))
            return gap;
        c->too_late[gap] = true;
    }
    return found;
}

/* Into trial.away. The peaks on the way are stored in `peaks` if it is not NULL. Returns how many
 * were taken, or -1 and the op that does not fit if all are. */
static int take_gaps(struct gap_choice *c, enum gap_order order, int64_t capacity, int64_t *peaks,
                     int *op)
{
    int64_t peak;
    int n_taken = 0, first = 0;

    memset(c->trial.away, 0, (size_t)c->problem->n_gaps * sizeof(bool));
    gap_curve_set(&c->curve, c->problem->resident);
    if (order >= ORDER_FITTING) {
        memset(c->too_late, 0, (size_t)c->problem->n_gaps * sizeof(bool));
        gap_curve_set(&c->outs, c->out_time);
        gap_curve_set(&c->ins, c->in_time);
    }
    while ((peak = gap_curve_peak(&c->curve, op)) > capacity) {
        int gap = find_candidate(c, order, &first, *op);

        if (gap == NONE)
            return -1;
        move_group(c, gap, true);
        if (order >= ORDER_FITTING)
            load_group(c, gap);
        if (peaks)
            peaks[n_taken] = peak;
        c->taken[n_taken++] = gap;
    }
    return n_taken;
}

static void give_back(struct gap_choice *c, int64_t capacity, int n_taken)
{
    int op;

    for (int i = n_taken - 2; i >= 0; i--) {
        move_group(c, c->taken[i], false);
        if (gap_curve_peak(&c->curve, &op) > capacity)
            move_group(c, c->taken[i], true);
    }
}

int64_t gaps_floor(const struct gap_problem *problem, int *op)
{
    struct arena arena = { 0 };
    struct gap_timing timing;
    struct gap_schedule all;
    int64_t n_bytes;

    gap_timing_open(&timing, problem, &arena);
    gap_schedule_open(&all, problem->n_gaps, &arena);
    memset(all.away, 1, (size_t)problem->n_gaps * sizeof(bool));
    n_bytes = gap_timing_floor(&timing, all.away, op);
    arena_release(&arena);
    return n_bytes;
}

static int compare_levels(const void *a, const void *b)
{
    return compare_i64(*(const int64_t *)a, *(const int64_t *)b);
}

static void list_levels(struct gap_choice *c, int64_t floor, int64_t peak, struct arena *arena)
{
    int size = c->problem->n_ops + c->problem->n_gaps;
    int n_even = min_int(max_int(LEVELS_EFFORT / size, N_LEVELS_LEAST), N_LEVELS_MOST);
    int64_t *steps = arena_array(arena, int64_t, c->problem->n_gaps + 1);
    int op, n_steps = take_gaps(c, ORDER_FARTHEST, floor, steps, &op), n = 0;
    int stride = max_int(1, (int)ceil_div(n_steps, N_STEP_LEVELS));

    c->levels = arena_array(arena, int64_t, n_even + N_STEP_LEVELS + 1);
    for (int i = 0; i < n_even; i++)
        c->levels[n++] = floor + (int64_t)((double)(peak - floor) * i / n_even);
    for (int i = 0; i < n_steps; i += stride)
        c->levels[n++] = steps[i];
    c->levels[n++] = peak;
    qsort(c->levels, (size_t)n, sizeof(*c->levels), compare_levels);
    for (int i = 0; i < n; i++)
        if (!c->n_levels || c->levels[i] != c->levels[c->n_levels - 1])
            c->levels[c->n_levels++] = c->levels[i];
    c->n_trials = (int)(TRIALS_EFFORT / size / c->n_levels);
}

/* By op, bytes that need no out to be gone then, or no in, do not count. */
static void set_musts(struct gap_choice *c, struct arena *arena)
{
    const struct gap_problem *problem = c->problem;
    int n = problem->n_ops;

    c->must_leave = arena_array(arena, int64_t, n + 1);
    c->must_return = arena_array(arena, int64_t, n + 1);
    for (int g = 0; g < problem->n_gaps; g++) {
        const struct gap *gap = &problem->gaps[g];
        struct gap_range ranges[2];
        int n_ranges = gap_ranges(gap, n, ranges);

        for (int i = 0; i < n_ranges; i++) {
            bool wraps = n_ranges == 2;

            if (gap->clean || gap->from < 0 || (wraps && i == 0)) {
                c->must_leave[ranges[i].begin] -= gap->n_bytes;
                c->must_leave[ranges[i].end] += gap->n_bytes;
            }
            if (gap->to == n || (wraps && i == 1)) {
                c->must_return[ranges[i].begin] -= gap->n_bytes;
                c->must_return[ranges[i].end] += gap->n_bytes;
            }
        }
    }
    for (int i = 1; i < n; i++) {
        c->must_leave[i] += c->must_leave[i - 1];
        c->must_return[i] += c->must_return[i - 1];
    }
    for (int i = 0; i < n; i++) {
        c->must_leave[i] += problem->resident[i];
        c->must_return[i] += problem->resident[i];
    }
}

/* No schedule within this capacity stalls less. */
static int64_t least_stall(const struct gap_choice *c, int64_t capacity)
{
    const struct gap_problem *problem = c->problem;
    const int64_t *begins = c->timing.begins;
    double out_ns = 1e9 / problem->out_rate, in_ns = 1e9 / problem->in_rate, least = 0;

    for (int i = 0; i < problem->n_ops; i++) {
        double out = (double)(c->must_leave[i] - capacity) * out_ns - (double)begins[i];
        double in = (double)(c->must_return[i] - capacity) * in_ns -
                    (double)(begins[problem->n_ops] - begins[i]);
        double stall = (out > 0 ? out : 0) + (in > 0 ? in : 0);

        least = stall > least ? stall : least;
    }
    return (int64_t)least;
}

/* Of two that stall equally, the one that copies less. */
static bool is_better(const struct gap_schedule *a, const struct gap_schedule *b)
{
    if (a->stall_ns != b->stall_ns)
        return a->stall_ns < b->stall_ns;
    return a->out_bytes + a->in_bytes < b->out_bytes + b->in_bytes;
}

static void flip_group(const struct gap_choice *c, bool *away, int gap)
{
    int g = gap;

    do {
        away[g] = !away[g];
        g = c->next_of_group[g];
    } while (g != gap);
}

/* The trial becomes `to` if it is better, or *found is false. */
static bool keep_trial(struct gap_choice *c, struct gap_schedule *to, bool *found)
{
    struct gap_schedule other = *to;

    if (*found && !is_better(&c->trial, to))
        return false;
    *to = c->trial;
    c->trial = other;
    *found = true;
    return true;
}

/*
 * Change what was found for a level gap by gap: a group more or less, or one for another, as long
 * as it gets better and there are trials left. The pairs come in scattered order, so that few
 * trials do not look at the first gaps only.
 */
static void improve(struct gap_choice *c, int64_t level, int64_t least)
{
    int64_t n = c->problem->n_gaps, n_pairs = n * n, at = 0, n_failed = 0;
    int n_trials = 0, op;
    bool found = true;

    for (; n_failed < n_pairs && n_trials < c->n_trials && c->found.stall_ns > least; n_failed++) {
        int a = (int)(at / n), b = (int)(at % n);

        at = (at + SCATTER) % n_pairs;
        if (a < b || (a != b && c->found.away[a] == c->found.away[b]))
            continue;
        memcpy(c->trial.away, c->found.away, (size_t)n * sizeof(bool));
        flip_group(c, c->trial.away, a);
        if (a != b)
            flip_group(c, c->trial.away, b);
        n_trials++;
        if (gap_timing_run(&c->timing, level, &c->trial, &op) == 0 &&
            keep_trial(c, &c->found, &found))
            n_failed = -1;
    }
}

/* What goes in an order so that no op has more than `within`, timed for the level. */
static bool try_order(struct gap_choice *c, enum gap_order order, int64_t within, int64_t level,
                      bool *found)
{
    int op, n_taken = take_gaps(c, order, within, NULL, &op), status;

    CHECK(n_taken >= 0);
    give_back(c, within, n_taken);
    status = gap_timing_run(&c->timing, level, &c->trial, &op);
    CHECK(status == 0);
    return keep_trial(c, &c->found, found);
}

static bool is_tried(const struct gap_choice *c, int order)
{
    return c->any_clean || (order != ORDER_CLEAN_FARTHEST && order != ORDER_CLEAN_FITTING);
}

/*
 * What is best for a level, into found. Where all that may stay stays, ins have no room but that of
 * what leaves just then: so more than must goes too, in the best order.
 */
static void try_level(struct gap_choice *c, int64_t level, int64_t least)
{
    enum gap_order best = ORDER_FARTHEST;
    bool found = false;

    for (int k = 0; k < N_ORDERS && !(found && c->found.stall_ns <= least); k++)
        if (is_tried(c, k) && try_order(c, (enum gap_order)k, level, level, &found))
            best = (enum gap_order)k;
    for (int k = 1; k <= N_ROOMS && c->found.stall_ns > least; k++)
        for (int order = 0; order < N_ORDERS; order++)
            if (is_tried(c, order) && (order == (int)best || order == ORDER_CLEAN_FITTING))
                try_order(c, (enum gap_order)order, level - ((level - c->floor) >> k), level,
                          &found);
    improve(c, level, least);
}

static int refuse(struct err *err, int op, int64_t n_bytes, int64_t capacity)
{
    return err_set(err, ERR_DEVICE,
                   "op %d needs %lld bytes of device memory with all that may leave away, %lld are "
                   "allowed",
                   op, (long long)n_bytes, (long long)capacity);
}

int gaps_choose(struct gap_schedule *schedule, const struct gap_problem *problem,
                struct arena *arena, struct err *err)
{
    struct gap_choice c = { .problem = problem };
    int op, n = problem->n_gaps;
    int64_t floor = gaps_floor(problem, &op), peak;
    struct arena scratch = { 0 };
    bool found = false;

    if (floor > problem->capacity)
        return refuse(err, op, floor, problem->capacity);
    gap_timing_open(&c.timing, problem, &scratch);
    gap_curve_open(&c.curve, problem->n_ops, &scratch);
    gap_schedule_open(&c.best, n, arena);
    gap_schedule_open(&c.found, n, arena);
    gap_schedule_open(&c.trial, n, arena);
    c.taken = arena_array(&scratch, int, n);
    c.floor = floor;
    list_candidates(&c, &scratch);
    list_times(&c, &scratch);
    link_groups(&c, &scratch);
    set_musts(&c, &scratch);
    gap_curve_set(&c.curve, problem->resident);
    peak = gap_curve_peak(&c.curve, &op);
    list_levels(&c, floor, peak, &scratch);
    for (int i = c.n_levels - 1; i >= 0; i--) {
        int64_t least = least_stall(&c, c.levels[i]);

        if (c.levels[i] > problem->capacity)
            continue;
        if (found && least >= c.best.stall_ns)
            break;
        try_level(&c, c.levels[i], least);
        if (!found || is_better(&c.found, &c.best)) {
            struct gap_schedule other = c.best;

            c.best = c.found;
            c.found = other;
            found = true;
        }
    }
    *schedule = c.best;
    arena_release(&scratch);
    return 0;
}

int gaps_time(struct gap_schedule *schedule, const struct gap_problem *problem, const bool *away,
              struct arena *arena, struct err *err)
{
    struct gap_timing timing;
    struct gap_schedule timed;
    struct arena scratch = { 0 };
    int op, status;

    gap_timing_open(&timing, problem, &scratch);
    gap_schedule_open(&timed, problem->n_gaps, arena);
    if (problem->n_gaps)
        memcpy(timed.away, away, (size_t)problem->n_gaps * sizeof(*away));
    status = gap_timing_run(&timing, problem->capacity, &timed, &op);
    if (status < 0)
        refuse(err, op, timing.floor[op], problem->capacity);
    else
        *schedule = timed;
    arena_release(&scratch);
    return status;
}
