/*
 * judge.c - see the header
 *
 * Synchronous decisions about a rung are made when no trial waits or runs any more: first all of
 * them, by values that none of them changes, then they take effect, in the order of trials.
 */
#include "sweep/judge.h"

#include <math.h>
#include <stdlib.h>

#include "base/num.h"

void judge_init(struct judge *j, const struct judge_rules *rules, struct arena *arena)
{
    int n_values = rules->n_rungs * rules->n_trials;

    *j = (struct judge){ .rules = *rules, .arena = arena };
    j->trials = arena_array(arena, struct judge_trial, rules->n_trials);
    j->values = arena_array(arena, double, n_values);
    j->has_left = arena_array(arena, bool, n_values);
    for (int i = 0; i < n_values; i++)
        j->values[i] = NAN;
    for (int i = 0; i < rules->n_trials; i++)
        j->trials[i] = (struct judge_trial){ JUDGE_WAITING, 0, INFINITY, INFINITY };
}

static double *values_at(const struct judge *j, int rung)
{
    return &j->values[(size_t)rung * (size_t)j->rules.n_trials];
}

static bool *left_at(const struct judge *j, int rung)
{
    return &j->has_left[(size_t)rung * (size_t)j->rules.n_trials];
}

static int count(const struct judge *j, enum judge_state state)
{
    int n = 0;

    for (int i = 0; i < j->rules.n_trials; i++)
        n += j->trials[i].state == state;
    return n;
}

static void decide(struct judge *j, int trial, bool goes_on)
{
    struct judge_trial *t = &j->trials[trial];

    j->decisions =
        arena_grow(j->arena, j->decisions, sizeof *j->decisions, &j->capacity, j->n_decisions + 1);
    j->decisions[j->n_decisions++] = (struct judge_decision){ trial, t->rung, goes_on };
    t->state = goes_on ? JUDGE_WAITING : JUDGE_STOPPED;
    if (goes_on)
        left_at(j, t->rung++)[trial] = true;
}

/* ---- the rules ---- */

static int compare_values(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;

    return (a > b) - (a < b);
}

/* Sorts them. Half of INFINITY and a number is INFINITY: a failed trial is worst. */
static double median_of(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_values);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Whether the trial is better than another one of the same rung; ties by number. */
static bool is_before(const double *values, int a, int b)
{
    return values[a] < values[b] || (values[a] == values[b] && a < b);
}

/* How many of those at a rung are better than this one; how many there are in *n. */
static int place_at(const struct judge *j, int rung, int trial, int *n)
{
    const double *values = values_at(j, rung);
    int n_better = 0;

    *n = 0;
    for (int i = 0; i < j->rules.n_trials; i++) {
        *n += !isnan(values[i]);
        n_better += !isnan(values[i]) && is_before(values, i, trial);
    }
    return n_better;
}

/* By the values that are there now, the trial's own among them. */
static bool passes_median(const struct judge *j, int trial)
{
    const struct judge_trial *t = &j->trials[trial];
    const double *values = values_at(j, t->rung);
    double *others = malloc((size_t)j->rules.n_trials * sizeof *others);
    int n = 0;

    CHECK(others);
    for (int i = 0; i < j->rules.n_trials; i++)
        if (i != trial && !isnan(values[i]))
            others[n++] = values[i];
    bool passes =
        isfinite(t->value) && (n < j->rules.min_trials || t->best <= median_of(others, n));
    free(others);
    return passes;
}

/* ---- synchronous ---- */

/* All that are left are at one rung: trials of it go on or end. */
static void close_rung(struct judge *j)
{
    int n_trials = j->rules.n_trials, n;
    bool *goes_on = calloc((size_t)n_trials, sizeof *goes_on);

    CHECK(goes_on);
    for (int i = 0; i < n_trials; i++) {
        const struct judge_trial *t = &j->trials[i];

        if (t->state != JUDGE_PAUSED)
            continue;
        if (j->rules.stop == SWEEP_STOP_MEDIAN) {
            goes_on[i] = passes_median(j, i);
        } else {
            int place = place_at(j, t->rung, i, &n);

            goes_on[i] = isfinite(t->value) && place < max_int(1, n / j->rules.eta);
        }
    }
    for (int i = 0; i < n_trials; i++)
        if (j->trials[i].state == JUDGE_PAUSED)
            decide(j, i, goes_on[i]);
    free(goes_on);
}

/* ---- asynchronous ---- */

/* A paused trial that may go on from a rung by now, the best of them; -1: none. */
static int promotable(const struct judge *j, int rung)
{
    const double *values = values_at(j, rung);
    int best = -1, n;

    for (int i = 0; i < j->rules.n_trials; i++) {
        const struct judge_trial *t = &j->trials[i];

        if (t->state == JUDGE_PAUSED && t->rung == rung && isfinite(t->value) &&
            place_at(j, rung, i, &n) < n / j->rules.eta && (best < 0 || is_before(values, i, best)))
            best = i;
    }
    return best;
}

/* The best trial of the lowest rung that no trial went on from, when nothing else is left. */
static int forced(const struct judge *j)
{
    for (int rung = 0; rung < j->rules.n_rungs - 1; rung++) {
        const double *values = values_at(j, rung);
        const bool *left = left_at(j, rung);
        bool any_left = false;
        int best = -1;

        for (int i = 0; i < j->rules.n_trials; i++) {
            const struct judge_trial *t = &j->trials[i];

            any_left |= left[i];
            if (t->state == JUDGE_PAUSED && t->rung == rung && isfinite(t->value) &&
                (best < 0 || is_before(values, i, best)))
                best = i;
        }
        if (!any_left && best >= 0)
            return best;
    }
    return -1;
}

/* Let one trial go on that may by the rule, since the next task is one. */
static void promote(struct judge *j)
{
    for (int rung = j->rules.n_rungs - 2; rung >= 0; rung--) {
        int trial = promotable(j, rung);

        if (trial >= 0) {
            decide(j, trial, true);
            return;
        }
    }
}

/* Nothing runs or waits: one more goes on, or all that are paused end. */
static void settle(struct judge *j)
{
    int trial = forced(j);

    if (trial >= 0) {
        decide(j, trial, true);
        return;
    }
    for (int i = 0; i < j->rules.n_trials; i++)
        if (j->trials[i].state == JUDGE_PAUSED)
            decide(j, i, false);
}

/* ---- tasks ---- */

/* Synchronous: all have one rung, and the order is that of numbers. Else the furthest ones. */
static int first_waiting(const struct judge *j)
{
    int first = -1;

    for (int i = 0; i < j->rules.n_trials; i++)
        if (j->trials[i].state == JUDGE_WAITING &&
            (first < 0 || j->trials[i].rung > j->trials[first].rung))
            first = i;
    return first;
}

int judge_next(struct judge *j)
{
    bool is_free = j->rules.is_asynchronous && j->rules.stop == SWEEP_STOP_ASHA;

    if (is_free && (first_waiting(j) < 0 || j->trials[first_waiting(j)].rung == 0))
        promote(j);
    int trial = first_waiting(j);
    if (trial >= 0)
        j->trials[trial].state = JUDGE_RUNNING;
    return trial;
}

/* After a trial is no longer running. */
static void conclude(struct judge *j, int trial)
{
    if (j->rules.is_asynchronous && j->rules.stop == SWEEP_STOP_MEDIAN &&
        j->trials[trial].state == JUDGE_PAUSED)
        decide(j, trial, passes_median(j, trial));
    if (count(j, JUDGE_RUNNING) || count(j, JUDGE_WAITING) || !count(j, JUDGE_PAUSED))
        return;
    if (!j->rules.is_asynchronous) {
        close_rung(j);
        return;
    }
    promote(j);
    if (!count(j, JUDGE_WAITING))
        settle(j);
}

void judge_report(struct judge *j, int trial, double value)
{
    struct judge_trial *t = &j->trials[trial];

    CHECK(t->state == JUDGE_RUNNING);
    t->value = isfinite(value) ? value : INFINITY;
    t->best = fmin(t->best, t->value);
    values_at(j, t->rung)[trial] = t->value;
    t->state = t->rung == j->rules.n_rungs - 1 ? JUDGE_FINISHED : JUDGE_PAUSED;
    conclude(j, trial);
}

void judge_fail(struct judge *j, int trial)
{
    struct judge_trial *t = &j->trials[trial];

    CHECK(t->state == JUDGE_RUNNING);
    t->value = INFINITY;
    values_at(j, t->rung)[trial] = INFINITY;
    t->state = JUDGE_FAILED;
    conclude(j, trial);
}

void judge_interrupt(struct judge *j)
{
    for (int i = 0; i < j->rules.n_trials; i++)
        if (j->trials[i].state == JUDGE_RUNNING)
            j->trials[i].state = JUDGE_WAITING;
}

bool judge_is_over(const struct judge *j)
{
    return !count(j, JUDGE_WAITING) && !count(j, JUDGE_RUNNING) && !count(j, JUDGE_PAUSED);
}

/* ---- the result ---- */

struct ranked {
    int trial, class; /* 0: finished, 1: not, 2: failed */
    int rung;
    double value;
};

static int compare_ranked(const void *pa, const void *pb)
{
    const struct ranked *a = pa, *b = pb;

    if (a->class != b->class)
        return a->class < b->class ? -1 : 1;
    if (a->rung != b->rung)
        return a->rung > b->rung ? -1 : 1;
    if (a->value < b->value || a->value > b->value)
        return a->value < b->value ? -1 : 1;
    return a->trial < b->trial ? -1 : 1;
}

void judge_rank(const struct judge *j, int *order)
{
    struct ranked *list = calloc((size_t)j->rules.n_trials, sizeof *list);

    CHECK(list);
    for (int i = 0; i < j->rules.n_trials; i++) {
        const struct judge_trial *t = &j->trials[i];
        int class = t->state == JUDGE_FAILED ? 2 : t->state != JUDGE_FINISHED;
        bool is_there = !isnan(values_at(j, t->rung)[i]);

        list[i] = (struct ranked){ i, class, t->rung - !is_there, t->value };
    }
    qsort(list, (size_t)j->rules.n_trials, sizeof *list, compare_ranked);
    for (int i = 0; i < j->rules.n_trials; i++)
        order[i] = list[i].trial;
    free(list);
}
