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

struct gap_choice {
    const struct gap_problem *problem;
    struct gap_timing timing;
    struct gap_taking taking;
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
    int op, n_steps = gap_taking_take(&c->taking, ORDER_FARTHEST, floor, c->trial.away, steps, &op),
            n = 0;
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
        g = c->taking.next_of_group[g];
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
    int op, n_taken = gap_taking_take(&c->taking, order, within, c->trial.away, NULL, &op), status;

    CHECK(n_taken >= 0);
    gap_taking_give_back(&c->taking, within, c->trial.away, n_taken);
    status = gap_timing_run(&c->timing, level, &c->trial, &op);
    CHECK(status == 0);
    return keep_trial(c, &c->found, found);
}

static bool is_tried(const struct gap_choice *c, int order)
{
    return c->taking.any_clean || (order != ORDER_CLEAN_FARTHEST && order != ORDER_CLEAN_FITTING);
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
    gap_schedule_open(&c.best, n, arena);
    gap_schedule_open(&c.found, n, arena);
    gap_schedule_open(&c.trial, n, arena);
    c.floor = floor;
    gap_taking_open(&c.taking, problem, &c.timing, &scratch);
    set_musts(&c, &scratch);
    gap_curve_set(&c.timing.curve, problem->resident);
    peak = gap_curve_peak(&c.timing.curve, &op);
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
