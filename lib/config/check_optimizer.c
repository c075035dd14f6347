/*
 * check_optimizer.c - what of optimizer.* does not go together
 */
#include <stdbool.h>

#include "config/read_impl.h"
#include "ops/ops.h"

/* What muon has no arithmetic for. */
static void check_muon(struct job_reader *r)
{
    const struct job *job = r->job;

    if (job->optimizer.name != RULE_MUON)
        return;
    if (job->optimizer.states != DTYPE_F32)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.states"),
                        "optimizer.states is %s and optimizer.name muon, whose momentum is fp32 "
                        "(hint: optimizer.states: fp32, or optimizer.name: adamw)",
                        choice_word(optimizer_states_choices, (int)job->optimizer.states));
    if (job->optimizer.masters == MASTERS_SPLIT)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.masters"),
                        "optimizer.masters is split and optimizer.name muon, which updates whole "
                        "masters (hint: optimizer.masters: whole, or optimizer.name: adamw)");
}

static void check_masters(struct job_reader *r)
{
    const struct job *job = r->job;
    bool is_split = job->optimizer.masters == MASTERS_SPLIT;
    bool is_away = job->optimizer.weight_rounding == WEIGHT_ROUNDING_HALF_AWAY;

    if (is_split && !is_away)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.masters"),
                        "optimizer.masters is split and optimizer.weight_rounding nearest_even, of "
                        "which 16 bits beside the weight don't tell the master (hint: "
                        "optimizer.weight_rounding: half_away, a part of the numerics)");
    if ((is_split || is_away) &&
        (job->train.dtype != DTYPE_BF16 || job->optimizer.states == DTYPE_BF16))
        diagnostics_add(
            &r->mistakes,
            reader_given(r, is_split ? "optimizer.masters" : "optimizer.weight_rounding"),
            "%s beside train.dtype %s and optimizer.states %s: there are no fp32 masters "
            "of bf16 weights (hint: train.dtype: bf16, optimizer.states: fp32)",
            is_split ? "optimizer.masters is split" : "optimizer.weight_rounding is half_away",
            dtype_name(job->train.dtype),
            choice_word(optimizer_states_choices, (int)job->optimizer.states));
}

/* States that the optimizer does not have. */
static void check_states(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct optimizer_row *row = optimizer_row(job->optimizer.name);
    const char *name = choice_word(optimizer_choices, (int)job->optimizer.name);

    if (!optimizer_allows(row, job->optimizer.states) && job->optimizer.name != RULE_MUON)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.states"),
                        "optimizer.states is %s, but %s has %s (hint: optimizer.states: fp32)",
                        choice_word(optimizer_states_choices, (int)job->optimizer.states), name,
                        row->is_fp16 ? "a state of fp16 with scales, which fp32 stands for"
                                     : "states of fp32 or bf16");
    if (job->optimizer.nesterov && job->optimizer.name != RULE_SGD)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.nesterov"),
                        "optimizer.nesterov is true, but %s has no momentum of that form (hint: "
                        "leave it out, or optimizer.name: sgd)",
                        name);
}

void reader_check_optimizer(struct job_reader *r)
{
    const struct job *job = r->job;
    long long steps = job->train.steps;

    if (job->optimizer.states == DTYPE_BF16 && job->train.dtype == DTYPE_F16)
        diagnostics_add(
            &r->mistakes, reader_given(r, "optimizer.states"),
            "optimizer.states is bf16 and train.dtype fp16, which has no fp32 masters then "
            "(hint: train.dtype bf16)");
    if (job->optimizer.states == DTYPE_BF16 && steps >= OPS_UPDATES_MAX)
        diagnostics_add(
            &r->mistakes, reader_given(r, "optimizer.states"),
            "optimizer.states is bf16 and train.steps %lld, more than %d, the most that "
            "bf16 states allow",
            steps, OPS_UPDATES_MAX - 1);
    if (job->optimizer.min_lr > job->optimizer.lr)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.min_lr"),
                        "optimizer.min_lr is %g, more than lr %g", job->optimizer.min_lr,
                        job->optimizer.lr);
    check_states(r);
    reader_check_schedule(r);
    if (job->train.ema > 0 && job->lora.rank)
        diagnostics_add(&r->mistakes, reader_given(r, "train.ema"),
                        "train.ema is %g, which averages weights that are trained in full, and "
                        "lora.rank is %d (hint: train.ema: 0)",
                        job->train.ema, job->lora.rank);
    check_masters(r);
    check_muon(r);
}
