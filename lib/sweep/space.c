/*
 * space.c - see the header
 */
#include "sweep/space.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/rng.h"

#define DIGITS 6
#define MEDIAN_RUNGS 10

int space_n_trials(const struct job *job)
{
    int all = job->sweep.search == SWEEP_GRID ? sweep_space_grid(&job->sweep.space)
                                              : job->sweep.space.n_rows;

    return job->sweep.trials ? job->sweep.trials : all;
}

/* ---- values ---- */

static const char *number_text(const struct sweep_parameter *p, double value, struct arena *arena)
{
    char text[40];

    if (p->is_whole)
        return arena_printf(arena, "%.0f", value);
    snprintf(text, sizeof text, "%.*g", DIGITS, value);
    value = fmin(fmax(strtod(text, NULL), p->low), p->high);
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return arena_strdup(arena, text);
}

/* The number at a share in [0, 1] of the range, by its scale. */
static double at_share(const struct sweep_parameter *p, double share)
{
    if (p->range == SWEEP_LOG)
        return exp(log(p->low) + share * (log(p->high) - log(p->low)));
    return p->low + share * (p->high - p->low);
}

/* Of whole numbers from low to high each has its part of [low, high + 1), by the scale. */
static double whole_at_share(const struct sweep_parameter *p, double share)
{
    struct sweep_parameter wider = *p;

    wider.high += 1;
    return fmin(floor(at_share(&wider, share)), p->high);
}

static const char *random_value(const struct sweep_parameter *p, uint64_t seed, int trial,
                                struct arena *arena)
{
    struct rng_block block = rng_at(seed, RNG_SWEEP, rng_hash_name(p->key), (uint64_t)trial);
    uint64_t bits = (uint64_t)block.word[0] << 32 | block.word[1];
    double share = (double)(bits >> 11) * 0x1p-53;

    if (p->range == SWEEP_VALUES)
        return p->values[min_int((int)(share * p->n_values), p->n_values - 1)];
    return number_text(p, p->is_whole ? whole_at_share(p, share) : at_share(p, share), arena);
}

static const char *grid_value(const struct sweep_parameter *p, int point, struct arena *arena)
{
    int n = sweep_parameter_points(p);

    if (p->range == SWEEP_VALUES)
        return p->values[point];
    double value = at_share(p, n > 1 ? (double)point / (n - 1) : 0);
    return number_text(p, p->is_whole ? round(value) : value, arena);
}

void space_settings(const struct job *job, int trial, struct sweep_row *out, struct arena *arena)
{
    const struct sweep_space *space = &job->sweep.space;
    int n = space->n_parameters, rest = trial;

    CHECK(trial >= 0 && trial < space_n_trials(job));
    if (space->n_rows) {
        *out = space->rows[trial];
        return;
    }
    struct sweep_setting *settings = arena_array(arena, struct sweep_setting, n);
    /* The last parameter changes fastest. */
    for (int i = n - 1; i >= 0; i--) {
        const struct sweep_parameter *p = &space->parameters[i];

        settings[i].key = p->key;
        if (job->sweep.search == SWEEP_RANDOM) {
            settings[i].value = random_value(p, job->sweep.seed, trial, arena);
            continue;
        }
        settings[i].value = grid_value(p, rest % sweep_parameter_points(p), arena);
        rest /= sweep_parameter_points(p);
    }
    *out = (struct sweep_row){ settings, n };
}

/* ---- rungs ---- */

/* The steps between two values of the metric: rungs are multiples of it. */
static int64_t metric_every(const struct job *job)
{
    if (str_starts_with(job->sweep.metric, "eval"))
        return max_i64(1, job->eval.every_steps);
    return job->train.log_every;
}

static int64_t first_rung(const struct job *job)
{
    int64_t every = metric_every(job), share = (int64_t)job->sweep.eta * job->sweep.eta;

    if (job->sweep.min_steps)
        return job->sweep.min_steps;
    if (job->sweep.stop == SWEEP_STOP_MEDIAN)
        share = MEDIAN_RUNGS;
    return round_up(max_i64(1, job->train.steps / share), every);
}

int space_rungs(const struct job *job, const int64_t **steps, struct arena *arena)
{
    int64_t *list = NULL, step = first_rung(job);
    int n = 0, capacity = 0;

    while (job->sweep.stop != SWEEP_STOP_NONE && step < job->train.steps) {
        list = arena_grow(arena, list, sizeof *list, &capacity, n + 1);
        list[n++] = step;
        step = job->sweep.stop == SWEEP_STOP_ASHA ? step * job->sweep.eta : step + list[0];
    }
    list = arena_grow(arena, list, sizeof *list, &capacity, n + 1);
    list[n++] = job->train.steps;
    *steps = list;
    return n;
}
