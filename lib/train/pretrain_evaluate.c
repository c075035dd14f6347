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

static void show_evaluation(void *context, int64_t done, int64_t total)
{
    struct pretrain *p = context;

    if (p->terminal)
        terminal_evaluating(p->terminal, done, total);
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

static void take_result(struct pretrain *p, double loss, int64_t tokens)
{
    int64_t step = trainer_step_number(p->trainer);

    p->n_worse = loss < p->best_eval ? 0 : p->n_worse + 1;
    p->best_eval = fmin(p->best_eval, loss);
    p->stopped = p->job->eval.patience && p->n_worse >= p->job->eval.patience;
    log_info("step %" PRId64 "  held-out loss %.4f nats/token  perplexity %.2f  (%" PRId64
             " tokens)",
             step, loss, exp(loss), tokens);
    pretrain_report_eval(p, loss, tokens);
    if (p->stopped)
        log_info("step %" PRId64
                 ": held-out loss did not improve in %d evaluation%s: stopping early",
                 step, p->n_worse, str_s(p->n_worse));
}

int pretrain_evaluate(struct pretrain *p, struct err *err)
{
    const struct trainer_evaluation hooks = { show_evaluation, must_leave, p };
    int64_t tokens;
    double loss;

    signals_answer(!p->is_first                                       ? NULL
                   : p->saved_step == trainer_step_number(p->trainer) ? PRETRAIN_ANSWER_SAVED
                                                                      : PRETRAIN_ANSWER_EVALUATING);
    show_evaluation(p, 0, trainer_n_held_out_batches(p->trainer, p->job->eval.batches));
    int status = trainer_evaluate(p->trainer, p->job->eval.batches, &hooks, &loss, &tokens, err);
    signals_answer(p->is_first ? PRETRAIN_ANSWER_STEP : NULL);
    if (p->terminal)
        terminal_evaluating(p->terminal, 0, 0);
    if (status)
        return status;
    p->evaluated_step = trainer_step_number(p->trainer);
    if (tokens)
        take_result(p, loss, tokens);
    keep_result(p);
    return 0;
}
