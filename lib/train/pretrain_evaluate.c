/*
 * pretrain_evaluate.c - evaluations of a run: when one is owed, what a signal does to it
 *
 * A checkpoint comes before the evaluation of its step: an evaluation may take long, be left on a
 * signal or die, and must then cost no training. So that none is lost or repeated, a checkpoint
 * says whether its step's evaluation is owed. It is saved as owed; when the evaluation has ended,
 * its result takes the place of that, in a save under way as well as in a committed checkpoint. A
 * run that is resumed where one is owed begins with it, and then has the state of a run that was
 * never stopped.
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "train/pretrain_impl.h"
#include "train/signals.h"

int pretrain_owes_evaluation(const struct pretrain *p)
{
    int64_t step = trainer_step_number(p->trainer);

    return trainer_has_held_out(p->trainer) && p->evaluated_step != step &&
           (step == p->job->train.steps || is_due(p->job->eval.every_steps, step));
}

/* Of all sets: those before the one under way are done. */
struct evaluation_progress {
    struct pretrain *pretrain;
    int64_t before, total;
};

static void show_evaluation(void *context, int64_t done, int64_t total)
{
    const struct evaluation_progress *progress = context;

    (void)total;
    if (progress->pretrain->terminal)
        terminal_evaluating(progress->pretrain->terminal, progress->before + done, progress->total);
}

static bool must_leave(void *context)
{
    (void)context;
    return signals_pending() != 0;
}

/* The result takes its place in the checkpoint of this step, if there is one. */
static void keep_result(struct pretrain *p)
{
    int64_t step = trainer_step_number(p->trainer);
    char folder[PATH_BYTES];
    struct str extra = { 0 };
    struct err err;

    pretrain_describe(p, &extra);
    trainer_save_describe(p->trainer, str_text(&extra));
    if (p->is_first && p->whole_step == step &&
        (pretrain_checkpoint_path(p, folder, step, &err) < 0 ||
         trainer_redescribe(p->trainer, folder, str_text(&extra), &err) < 0))
        log_warn("%s: a resumed run will evaluate step %" PRId64 " again", err.text, step);
    str_release(&extra);
    pretrain_upload_owed(p);
}

/* ---- results ---- */

/* Of a set; named: those of eval.sets. */
struct set_result {
    const char *name;
    double loss;
    int64_t tokens; /* 0: it has none */
};

static void tell_result(struct pretrain *p, const struct set_result *r)
{
    log_info("step %" PRId64 "  held-out%s%s loss %.4f nats/token  perplexity %.2f  (%" PRId64
             " tokens)",
             trainer_step_number(p->trainer), *r->name ? " " : "", r->name, r->loss, exp(r->loss),
             r->tokens);
    pretrain_report_eval(p, r->name, r->loss, r->tokens);
}

/* eval.loss: of the set without a name, which is the first; else the mean of all. NAN: no tokens
 * were evaluated. */
static double main_loss(const struct set_result *results, int n)
{
    double sum = 0;
    int n_found = 0;

    if (!*results[0].name)
        return results[0].tokens ? results[0].loss : NAN;
    for (int i = 0; i < n; i++)
        if (results[i].tokens) {
            sum += results[i].loss;
            n_found++;
        }
    return n_found ? sum / n_found : NAN;
}

/* What checkpoint.metric names: eval.loss or eval.NAME.loss. */
static double metric_of(const struct pretrain *p, const struct set_result *results, int n)
{
    const char *metric = p->job->checkpoint.metric;

    for (int i = 0; i < n; i++) {
        size_t length = strlen(results[i].name);

        if (length && !strncmp(metric, "eval.", 5) &&
            !strncmp(metric + 5, results[i].name, length) && !strcmp(metric + 5 + length, ".loss"))
            return results[i].tokens ? results[i].loss : NAN;
    }
    return main_loss(results, n);
}

static void take_results(struct pretrain *p, const struct set_result *results, int n)
{
    int64_t step = trainer_step_number(p->trainer);
    double loss = main_loss(results, n);

    for (int i = 0; i < n; i++)
        if (results[i].tokens)
            tell_result(p, &results[i]);
    if (p->saved_step == step)
        best_note(&p->best, p->job->checkpoint.keep_best, step, metric_of(p, results, n));
    if (isnan(loss))
        return;
    if (*results[0].name && n > 1)
        log_info("step %" PRId64 "  held-out loss %.4f nats/token, the mean of %d sets", step, loss,
                 n);
    p->n_worse = loss < p->best_eval ? 0 : p->n_worse + 1;
    p->best_eval = fmin(p->best_eval, loss);
    p->stopped = p->job->eval.patience && p->n_worse >= p->job->eval.patience;
    if (p->stopped)
        log_info("step %" PRId64
                 ": held-out loss did not improve in %d evaluation%s: stopping early",
                 step, p->n_worse, str_s(p->n_worse));
}

/* ---- the evaluation ---- */

int64_t pretrain_n_held_out_batches(const struct pretrain *p)
{
    int64_t n = 0;

    for (int i = 0; i < trainer_n_held_out_sets(p->trainer); i++) {
        trainer_choose_held_out_set(p->trainer, i);
        n += trainer_n_held_out_batches(p->trainer, p->job->eval.batches);
    }
    return n;
}

/* 1 if it was left: then there are no results, not even of the sets that were done. */
static int evaluate_sets(struct pretrain *p, struct set_result *results, struct err *err)
{
    struct evaluation_progress progress = { p, 0, pretrain_n_held_out_batches(p) };
    const struct trainer_evaluation hooks = { show_evaluation, must_leave, &progress };
    int64_t batches = p->job->eval.batches;
    int status = 0;

    show_evaluation(&progress, 0, 0);
    for (int i = 0; i < trainer_n_held_out_sets(p->trainer) && !status; i++) {
        results[i].name = trainer_choose_held_out_set(p->trainer, i);
        status = trainer_evaluate(p->trainer, batches, &hooks, &results[i].loss, &results[i].tokens,
                                  err);
        progress.before += trainer_n_held_out_batches(p->trainer, batches);
    }
    return status;
}

int pretrain_evaluate(struct pretrain *p, struct err *err)
{
    struct arena scratch = { 0 };
    int n = trainer_n_held_out_sets(p->trainer);
    struct set_result *results = arena_array(&scratch, struct set_result, n);

    signals_answer(!p->is_first                                       ? NULL
                   : p->saved_step == trainer_step_number(p->trainer) ? PRETRAIN_ANSWER_SAVED
                                                                      : PRETRAIN_ANSWER_EVALUATING);
    int status = evaluate_sets(p, results, err);
    signals_answer(p->is_first ? PRETRAIN_ANSWER_STEP : NULL);
    if (p->terminal)
        terminal_evaluating(p->terminal, 0, 0);
    if (!status) {
        p->evaluated_step = trainer_step_number(p->trainer);
        take_results(p, results, n);
        keep_result(p);
    }
    arena_release(&scratch);
    return status;
}
