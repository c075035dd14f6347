/*
 * judge_test.c - which trials go on: synchronous decisions depend on values alone, the rules
 * against their definitions, failures count as worst, algorithm 2 of ASHA by hand
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/str.h"
#include "sweep/judge.h"

enum { N_TRIALS = 12, N_RUNGS = 3 };

/* Of a trial at a rung: they cross, so that the best of a rung is not that of the next. */
static double value_of(int trial, int rung)
{
    struct rng_block block = rng_at(5, RNG_TEST, (uint64_t)trial, (uint64_t)rung);

    return 3 - 0.5 * rung + rng_uniform(block.word[0]);
}

/* Trials 4 and 9 fail on the way to rung 0 and 1; 7 has no finite value at rung 0. */
static void report(struct judge *j, int trial)
{
    int rung = j->trials[trial].rung;

    if ((trial == 4 && rung == 0) || (trial == 9 && rung == 1))
        judge_fail(j, trial);
    else
        judge_report(j, trial, trial == 7 && rung == 0 ? NAN : value_of(trial, rung));
}

/*
 * Run to the end with so many tasks under way, of which those end first that a random number says.
 * every > 0: after so many results all that is under way is interrupted.
 */
static void play(struct judge *j, int parallel, uint64_t order, int every)
{
    int running[N_TRIALS], n = 0, n_results = 0;

    for (;;) {
        for (int trial; n < parallel && (trial = judge_next(j)) >= 0;)
            running[n++] = trial;
        if (!n)
            break;
        int i = (int)(rng_at(order, RNG_TEST, 99, (uint64_t)n_results).word[0] % (uint32_t)n);
        int trial = running[i];

        running[i] = running[--n];
        report(j, trial);
        if (every && ++n_results % every == 0) {
            judge_interrupt(j);
            n = 0;
        }
    }
    assert_true(judge_is_over(j));
}

static struct judge judge_of(enum sweep_stop stop, bool is_asynchronous, struct arena *arena)
{
    struct judge_rules rules = { .stop = stop,
                                 .eta = 3,
                                 .min_trials = 3,
                                 .n_rungs = N_RUNGS,
                                 .n_trials = N_TRIALS,
                                 .is_asynchronous = is_asynchronous };
    struct judge judge;

    judge_init(&judge, &rules, arena);
    return judge;
}

static const char *describe(const struct judge *j, struct arena *arena)
{
    struct str text = { 0 };
    int order[N_TRIALS];

    for (int i = 0; i < j->n_decisions; i++)
        str_printf(&text, "%d@%d%c ", j->decisions[i].trial, j->decisions[i].rung,
                   j->decisions[i].goes_on ? '+' : '-');
    judge_rank(j, order);
    for (int i = 0; i < N_TRIALS; i++)
        str_printf(&text, "%d ", order[i]);
    const char *out = arena_strdup(arena, str_text(&text));
    str_release(&text);
    return out;
}

static void synchronous_decisions_depend_on_values_alone(void **state)
{
    struct arena arena = { 0 };

    (void)state;
    for (int stop = SWEEP_STOP_ASHA; stop <= SWEEP_STOP_MEDIAN; stop++) {
        struct judge first = judge_of((enum sweep_stop)stop, false, &arena);

        play(&first, 1, 0, 0);
        for (int parallel = 1; parallel <= N_TRIALS; parallel++)
            for (uint64_t order = 1; order <= 5; order++)
                for (int every = 0; every <= 2; every++) {
                    struct judge j = judge_of((enum sweep_stop)stop, false, &arena);

                    play(&j, parallel, order, every);
                    assert_string_equal(describe(&j, &arena), describe(&first, &arena));
                }
    }
    arena_release(&arena);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Of 12 trials 4 go on, then of 4 one: the best of those that have a value. */
static void halving_keeps_the_best(void **state)
{
    struct arena arena = { 0 };
    struct judge j = judge_of(SWEEP_STOP_ASHA, false, &arena);
    double values[N_TRIALS];
    int n = 0, n_on[N_RUNGS] = { 0 };

    (void)state;
    play(&j, 3, 1, 0);
    for (int i = 0; i < N_TRIALS; i++)
        if (i != 4 && i != 7)
            values[n++] = value_of(i, 0);
    qsort(values, (size_t)n, sizeof *values, compare);
    for (int i = 0; i < j.n_decisions; i++) {
        const struct judge_decision *d = &j.decisions[i];

        n_on[d->rung] += d->goes_on;
        if (d->rung == 0 && d->trial != 7)
            assert_int_equal(d->goes_on, value_of(d->trial, 0) <= values[3]);
        if (d->trial == 7)
            assert_false(d->goes_on);
    }
    assert_int_equal(n_on[0], 4);
    assert_int_equal(n_on[1], 1);
    assert_int_equal(j.trials[4].state, JUDGE_FAILED);
    arena_release(&arena);
}

static void judge_values(struct judge *j, const double *values, int n, struct arena *arena)
{
    struct judge_rules rules = {
        .stop = SWEEP_STOP_MEDIAN, .eta = 3, .min_trials = 3, .n_rungs = 2, .n_trials = n
    };

    judge_init(j, &rules, arena);
    for (int i = 0; i < n; i++) {
        assert_int_equal(judge_next(j), i);
        judge_report(j, i, values[i]);
    }
}

static void the_median_is_that_of_the_others(void **state)
{
    const double values[] = { 1, 2, 3, 4, 5 };
    const bool goes_on[] = { 1, 1, 1, 0, 0 }; /* 3 of 1 2 4 5: 3; 4 of 1 2 3 5: 2.5 */
    struct arena arena = { 0 };
    struct judge j;

    (void)state;
    judge_values(&j, values, 5, &arena);
    for (int i = 0; i < 5; i++)
        assert_int_equal(j.decisions[i].goes_on, goes_on[i]);
    /* With two others none is stopped. */
    judge_values(&j, values, 3, &arena);
    for (int i = 0; i < 3; i++)
        assert_true(j.decisions[i].goes_on);
    arena_release(&arena);
}

/* Its best value counts, not the newest. */
static void the_median_takes_the_best_so_far(void **state)
{
    struct judge_rules rules = {
        .stop = SWEEP_STOP_MEDIAN, .eta = 3, .min_trials = 3, .n_rungs = 3, .n_trials = 4
    };
    static const double values[2][4] = { { 1, 2, 2, 2 }, { 9, 3, 3, 3 } };
    struct arena arena = { 0 };
    struct judge j;

    (void)state;
    judge_init(&j, &rules, &arena);
    for (int rung = 0; rung < 2; rung++)
        for (int i = 0; i < 4; i++)
            judge_report(&j, judge_next(&j), values[rung][i]);
    assert_int_equal(j.n_decisions, 8);
    assert_true(j.decisions[4].goes_on);
    arena_release(&arena);
}

/* eta 2, four trials, values by number: a trial goes on as soon as half are worse. */
static void asha_promotes_as_values_come(void **state)
{
    struct judge_rules rules = {
        .stop = SWEEP_STOP_ASHA, .eta = 2, .n_rungs = 2, .n_trials = 4, .is_asynchronous = true
    };
    struct arena arena = { 0 };
    struct judge j;

    (void)state;
    judge_init(&j, &rules, &arena);
    assert_int_equal(judge_next(&j), 0);
    judge_report(&j, 0, 2.0);
    assert_int_equal(judge_next(&j), 1); /* one is there: floor(1 / 2) go on */
    judge_report(&j, 1, 1.0);
    assert_int_equal(judge_next(&j), 1); /* of two the better one */
    assert_int_equal(j.trials[1].rung, 1);
    assert_int_equal(judge_next(&j), 2);
    judge_report(&j, 2, 3.0);
    assert_int_equal(judge_next(&j), 3);
    judge_report(&j, 3, 1.5);
    assert_int_equal(judge_next(&j), 3); /* of four the second one, too */
    assert_int_equal(judge_next(&j), -1);
    judge_report(&j, 1, 1.0);
    judge_report(&j, 3, 0.5);
    assert_true(judge_is_over(&j));
    assert_int_equal(j.trials[0].state, JUDGE_STOPPED);
    assert_int_equal(j.trials[2].state, JUDGE_STOPPED);
    int order[4];
    judge_rank(&j, order);
    assert_int_equal(order[0], 3);
    assert_int_equal(order[1], 1);
    assert_int_equal(order[2], 0);
    assert_int_equal(order[3], 2);
    arena_release(&arena);
}

/* However results come, and with fewer trials than eta: the sweep ends, and a trial finishes. */
static void asynchronous_sweeps_end(void **state)
{
    struct arena arena = { 0 };

    (void)state;
    for (int stop = SWEEP_STOP_ASHA; stop <= SWEEP_STOP_MEDIAN; stop++)
        for (int n = 1; n <= N_TRIALS; n++)
            for (int parallel = 1; parallel <= n; parallel++)
                for (uint64_t order = 0; order < 4; order++) {
                    struct judge j = judge_of((enum sweep_stop)stop, true, &arena);
                    int n_finished = 0;

                    j.rules.n_trials = n;
                    judge_init(&j, &(struct judge_rules){ j.rules.stop, 3, 3, N_RUNGS, n, true },
                               &arena);
                    play(&j, parallel, order, (int)order % 3);
                    for (int i = 0; i < n; i++)
                        n_finished += j.trials[i].state == JUDGE_FINISHED;
                    assert_true(n_finished > 0);
                }
    arena_release(&arena);
}

static void a_sweep_in_which_all_fail_ends(void **state)
{
    struct arena arena = { 0 };

    (void)state;
    for (int is_asynchronous = 0; is_asynchronous < 2; is_asynchronous++)
        for (int stop = SWEEP_STOP_NONE; stop <= SWEEP_STOP_MEDIAN; stop++) {
            struct judge j = judge_of((enum sweep_stop)stop, is_asynchronous, &arena);

            for (int trial; (trial = judge_next(&j)) >= 0;)
                judge_fail(&j, trial);
            assert_true(judge_is_over(&j));
            assert_int_equal(j.n_decisions, 0);
        }
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synchronous_decisions_depend_on_values_alone),
        cmocka_unit_test(halving_keeps_the_best),
        cmocka_unit_test(the_median_is_that_of_the_others),
        cmocka_unit_test(the_median_takes_the_best_so_far),
        cmocka_unit_test(asha_promotes_as_values_come),
        cmocka_unit_test(asynchronous_sweeps_end),
        cmocka_unit_test(a_sweep_in_which_all_fail_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
