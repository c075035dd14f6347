/*
 * check_sweep.c - sweep.* of a job that has a sweep: how its keys fit together, and the rungs
 */
#include <string.h>

#include "base/num.h"
#include "config/read_impl.h"
#include "config/sweep_space.h"

static const struct yaml_node *given_or_parameters(const struct job_reader *r, const char *key)
{
    const struct yaml_node *node = reader_given(r, key);

    return node ? node : reader_given(r, "sweep.parameters");
}

static bool varies(const struct sweep_space *space, const char *key)
{
    for (int i = 0; i < space->n_parameters; i++)
        if (!strcmp(space->parameters[i].key, key))
            return true;
    for (int i = 0; i < space->n_rows; i++)
        for (int k = 0; k < space->rows[i].n; k++)
            if (!strcmp(space->rows[i].settings[k].key, key))
                return true;
    return false;
}

/* A grid's ranges have points, and not too many of them. */
static void check_grid(struct job_reader *r)
{
    const struct sweep_space *space = &r->job->sweep.space;
    const struct yaml_node *node = reader_given(r, "sweep.parameters");

    for (int i = 0; i < space->n_parameters; i++)
        if (!sweep_parameter_points(&space->parameters[i]))
            diagnostics_add(&r->mistakes, node,
                            "sweep.search is grid, but the range of %s does not say how many "
                            "values it has (hint: points: 5 beside it, or a list of values)",
                            space->parameters[i].key);
    if (sweep_space_grid(space) > SWEEP_TRIALS_MAX)
        diagnostics_add(&r->mistakes, node,
                        "the grid of sweep.parameters has more than %d trials (hint: fewer points, "
                        "or search: random)",
                        SWEEP_TRIALS_MAX);
}

static void check_trials(struct job_reader *r)
{
    struct job *job = r->job;
    int n = job->sweep.search == SWEEP_GRID ? sweep_space_grid(&job->sweep.space)
                                            : job->sweep.space.n_rows;

    if (job->sweep.search == SWEEP_RANDOM && !job->sweep.trials)
        diagnostics_add(&r->mistakes, given_or_parameters(r, "sweep.search"),
                        "sweep.trials is missing, which search random requires (hint: trials: 20)");
    if (job->sweep.search != SWEEP_RANDOM && job->sweep.trials > n)
        diagnostics_add(&r->mistakes, reader_given(r, "sweep.trials"),
                        "sweep.trials is %d, but the %s has %d (hint: leave it out)",
                        job->sweep.trials,
                        choice_word(sweep_search_choices, (int)job->sweep.search), n);
    n = job->sweep.trials ? job->sweep.trials : n;
    if (job->sweep.ensemble > n && n)
        diagnostics_add(&r->mistakes, reader_given(r, "sweep.ensemble"),
                        "sweep.ensemble is %d, but there are %d trial%s", job->sweep.ensemble, n,
                        str_s(n));
}

static bool has_held_out(const struct job_reader *r)
{
    return r->job->eval.data || r->job->eval.split > 0 || r->job->eval.sets.n ||
           varies(&r->job->sweep.space, "eval.split");
}

/* What keys rungs would be at other steps with. */
static void check_rungs(struct job_reader *r)
{
    static const char *const fixed[] = { "train.steps", "train.epochs", "eval.every_steps",
                                         "train.log_every" };
    struct job *job = r->job;
    int64_t every = job->eval.every_steps;
    bool is_eval = str_starts_with(job->sweep.metric, "eval");
    const char *stop = choice_word(sweep_stop_choices, (int)job->sweep.stop);

    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (varies(&job->sweep.space, fixed[i]))
            diagnostics_add(&r->mistakes, given_or_parameters(r, "sweep.stop"),
                            "sweep.stop is %s, which compares trials at the same steps, but "
                            "sweep.parameters has %s (hint: stop: none)",
                            stop, fixed[i]);
    if (!job->train.steps)
        diagnostics_add(&r->mistakes, given_or_parameters(r, "sweep.stop"),
                        "sweep.stop is %s, but train.steps is auto (hint: a number of steps, or "
                        "stop: none)",
                        stop);
    else if (job->sweep.min_steps >= job->train.steps)
        diagnostics_add(&r->mistakes, reader_given(r, "sweep.min_steps"),
                        "sweep.min_steps is %lld, not less than train.steps %lld",
                        (long long)job->sweep.min_steps, (long long)job->train.steps);
    else if (job->sweep.stop == SWEEP_STOP_MEDIAN && job->sweep.min_steps &&
             job->train.steps / job->sweep.min_steps >= SWEEP_RUNGS_MAX)
        diagnostics_add(&r->mistakes, reader_given(r, "sweep.min_steps"),
                        "sweep.min_steps is %lld: train.steps %lld has more than %d multiples of "
                        "it (hint: %lld)",
                        (long long)job->sweep.min_steps, (long long)job->train.steps,
                        SWEEP_RUNGS_MAX, (long long)(job->train.steps / 100));
    else if (is_eval && every && job->sweep.min_steps % every != 0)
        diagnostics_add(&r->mistakes, reader_given(r, "sweep.min_steps"),
                        "sweep.min_steps is %lld, not a multiple of eval.every_steps %lld (hint: "
                        "%lld)",
                        (long long)job->sweep.min_steps, (long long)every,
                        (long long)round_up(job->sweep.min_steps, every));
}

void reader_check_sweep(struct job_reader *r)
{
    struct job *job = r->job;
    const struct sweep_space *space = &job->sweep.space;

    if (sweep_space_is_empty(space))
        return;
    if ((job->sweep.search == SWEEP_LIST) != (space->n_rows > 0)) {
        diagnostics_add(&r->mistakes, reader_given(r, "sweep.parameters"),
                        job->sweep.search == SWEEP_LIST
                            ? "sweep.search is list, but sweep.parameters is a map (hint: "
                              "[{optimizer.lr: 1.0e-4}, {optimizer.lr: 3.0e-4}])"
                            : "sweep.parameters is a list of trials (hint: search: list)");
        return;
    }
    if (job->sweep.search == SWEEP_GRID)
        check_grid(r);
    check_trials(r);
    if ((!strcmp(job->sweep.metric, "eval.loss") || !strcmp(job->sweep.metric, "eval_loss")) &&
        !has_held_out(r))
        diagnostics_add(&r->mistakes, given_or_parameters(r, "sweep.metric"),
                        "sweep.metric is eval.loss, but the job has no held-out data (hint: "
                        "eval.split: 0.01, eval.data, or sweep.metric: loss)");
    if (job->sweep.stop != SWEEP_STOP_NONE)
        check_rungs(r);
}
