/*
 * trainer_step.c - a step: its batches into the program, its scalars, its results out
 */
#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/num.h"
#include "train/lr.h"
#include "train/recheck.h"
#include "train/replicas.h"
#include "train/trainer_impl.h"
#include "weights/inputs.h"

/* The program of this length. */
static int program_of(const struct trainer *t, int length)
{
    int i = 0;

    while (i < t->n_shorter && t->lengths[i] != length)
        i++;
    return i < t->n_shorter ? i + 1 : 0;
}

int trainer_choose(void *context, int micro_batch)
{
    struct trainer *t = context;

    return t->n_shorter ? program_of(t, loader_length(t->train, t->data_step, micro_batch)) : 0;
}

int trainer_choose_held_out(void *context, int micro_batch)
{
    struct trainer *t = context;

    return t->n_shorter ? program_of(t, loader_length(t->held_out, t->held_out_batch, micro_batch))
                        : 0;
}

#define SPIKE_FACTOR 1000 /* for faults */

static float loss_scale_of(const struct trainer *t, int64_t tokens)
{
    return (float)t->loss_scale * (1.0f / (float)tokens);
}

static int load_train(void *context, int micro_batch, struct err *err)
{
    struct trainer *t = context;
    struct micro_batch batch;

    if (!micro_batch && fault_at("load", t->step + 1) == FAULT_SLOW)
        trainer_slow(t, TRAINER_SLOW_INPUT);
    if (trainer_time_input(t, &batch, err) < 0)
        return -1;
    int chosen = trainer_choose(t, micro_batch);
    inputs_of_batch(t->run, chosen ? &t->shorter[chosen - 1] : &t->program, &batch, micro_batch);
    if (micro_batch + 1 < t->job->n_micro_batches)
        return 0;
    enum fault fault = fault_at("gradients", t->step + 1);
    const float nan = NAN;
    /* The factor of each gradient: the loss stays as it is, as when a kernel goes wrong. */
    if (fault == FAULT_NAN)
        run_put(t->run, t->program.ports.loss_scale, 0, 0, &nan, sizeof nan);
    if (fault == FAULT_SPIKE) {
        float large = SPIKE_FACTOR * loss_scale_of(t, loader_step_tokens(t->train, t->data_step));

        run_put(t->run, t->program.ports.loss_scale, 0, 0, &large, sizeof large);
    }
    if (fault == FAULT_FLIP)
        replicas_flip(t);
    return 0;
}

/* The time that the gate takes is neither the rank's own nor a part of useful work. */
static int pass_gate(void *context, struct err *err)
{
    struct trainer *t = context;
    double begin = clock_seconds();
    int status = trainer_save_gate(t, err);

    t->timing.gate += clock_seconds() - begin;
    return status;
}

static void write_scalars(struct trainer *t, double lr, int64_t tokens)
{
    const struct ports *ports = &t->program.ports;
    float scalars[OPS_N_SCALARS], scale = (float)t->loss_scale;
    float loss_scale = loss_scale_of(t, tokens);
    double update = (double)(t->updates + 1);

    scalars[SCALAR_LR] = (float)lr;
    scalars[SCALAR_BIAS1] = (float)(1.0 - pow(fmax(0, t->job->optimizer.beta1), update));
    scalars[SCALAR_BIAS2] = (float)(1.0 - pow(fmax(0, t->job->optimizer.beta2), update));
    scalars[SCALAR_UPDATE] = (float)update;
    if (ports->gradient_scale)
        run_put(t->run, ports->gradient_scale, 0, 0, &scale, sizeof scale);
    run_put(t->run, ports->loss_scale, 0, 0, &loss_scale, sizeof loss_scale);
    run_put(t->run, ports->scalars, 0, 0, scalars, sizeof scalars);
    for (int i = 0; i < t->job->optimizer.groups.n; i++) {
        scalars[SCALAR_LR] = (float)(lr * t->job->optimizer.groups.list[i].lr_scale);
        if (ports->group_scalars[i])
            run_put(t->run, ports->group_scalars[i], 0, 0, scalars, sizeof scalars);
    }
}

/*
 * Micikevicius et al. 2018, section 3.2, and how torch's GradScaler goes about it. All ranks have
 * the same `skipped`, hence the same scale. Powers of two: no bit of what is not lost depends on
 * it.
 */
static void adapt_loss_scale(struct trainer *t, struct trainer_result *result)
{
    const struct job *job = t->job;

    if (!t->program.ports.gradient_scale)
        return;
    result->loss_scale = t->loss_scale;
    if (result->refused)
        return;
    t->n_clean = result->skipped ? 0 : t->n_clean + 1;
    if (result->skipped && t->loss_scale > job->train.loss_scale.min) {
        t->loss_scale /= 2;
        /* A loss that is not finite itself has another cause. */
        result->scale_fell = isfinite(result->loss) != 0;
    } else if (job->train.loss_scale.growth_every &&
               t->n_clean >= job->train.loss_scale.growth_every) {
        t->loss_scale = fmin(2 * t->loss_scale, job->train.loss_scale.max);
        t->n_clean = 0;
    }
}

/* stats: sums of the step; then relative, as results have them. */
static void count_experts(const struct trainer *t, double *stats, struct trainer_result *result)
{
    const struct model_spec *s = &t->job->model;
    int n_layers = model_spec_n_expert_layers(s, s->n_layers);
    /* With several parts of each sequence the balance is the mean of the parts'. */
    double n_micro_batches = (double)job_all_micro_batches(t->job) * t->job->parallel.cp;
    double even = (double)t->job->train.global_batch * t->job->data.seq_len * s->n_active_experts /
                  max_int(1, s->n_experts);

    result->n_expert_layers = n_layers;
    result->expert_layers = stats;
    for (int layer = 0; layer < n_layers; layer++) {
        result->balance += *stats / n_micro_batches / n_layers;
        *stats++ /= n_micro_batches;
        for (int e = 0; e < s->n_experts; e++, stats++) {
            double used = *stats /= even;

            result->most_used = used > result->most_used ? used : result->most_used;
            result->least_used =
                (!layer && !e) || used < result->least_used ? used : result->least_used;
        }
    }
}

void trainer_set_refuse(struct trainer *t, trainer_refuse_fn refuse, void *context)
{
    t->refuse = refuse;
    t->refuse_context = context;
}

/* All ranks have the same numbers, and so the same answer. */
static int decide(void *context, struct err *err)
{
    struct trainer *t = context;
    const struct ports *ports = &t->program.ports;
    double loss = 0, norm = 0;
    int32_t skip = 0;
    const struct run_piece told[3] = { { ports->skip_update, &skip, sizeof skip },
                                       { ports->loss_total, &loss, sizeof loss },
                                       { ports->norm, &norm, sizeof norm } };

    t->is_refused = 0;
    if (!t->refuse)
        return 0;
    if (run_get_all(t->run, told, 3, err) < 0)
        return -1;
    loss /= (double)loader_step_tokens(t->train, t->data_step);
    if (skip || !t->refuse(t->refuse_context, loss, norm))
        return 0;
    t->is_refused = 1;
    skip = 1;
    run_put(t->run, ports->skip_update, 0, 0, &skip, sizeof skip);
    return 0;
}

/* What the host learns of a step. */
struct step_end {
    int32_t skipped;
    double loss, norm, squares;
    double codec[2];  /* squares of what was to be sent, and of what was lost of it */
    int32_t pages[2]; /* that are free; values of experts' rows that found none */
};

static bool has_rerun(const struct trainer *t)
{
    return t->program.entries[ENTRY_RERUN].n_actions;
}

/* Whether the next update's gradients are. */
static bool is_compressed(const struct trainer *t)
{
    return t->program.ports.codec_total && t->updates >= t->program.codec.start;
}

/* What is checked must not depend on how much memory there was for rows of experts. */
static enum entry_kind first_entry(const struct trainer *t)
{
    if (t->program.ports.codec_total && !is_compressed(t))
        return ENTRY_UNCOMPRESSED;
    return has_rerun(t) && recheck_is_due(t->recheck) ? ENTRY_RERUN : ENTRY_STEP;
}

/* Run the step, or its rerun. With one wait for all that it tells. */
static int run_step(struct trainer *t, enum entry_kind entry, struct step_end *end, struct err *err)
{
    const struct ports *ports = &t->program.ports;
    struct run_hooks hooks = { t, load_train, pass_gate, decide, trainer_choose };
    int experts = ports->router_stats_total, dropped = ports->dropped_total;
    const struct run_piece told[] = {
        { ports->skip_update, &end->skipped, sizeof end->skipped },
        { ports->loss_total, &end->loss, sizeof end->loss },
        { ports->norm, &end->norm, sizeof end->norm },
        { experts, t->expert_stats, experts ? program_value_bytes(&t->program, experts) : 0 },
        { dropped, t->dropped, dropped ? program_value_bytes(&t->program, dropped) : 0 },
        { ports->squares_total, &end->squares, sizeof end->squares },
        { ports->codec_total, end->codec, sizeof end->codec },
        { t->program.pages.free, end->pages, sizeof end->pages },
    };

    *end = (struct step_end){ 0 };
    if (run_entry(t->run, entry, 0, &hooks, err) < 0 ||
        run_get_all(t->run, told, (int)(sizeof told / sizeof *told), err) < 0)
        return -1;
    if (end->pages[1] && !end->skipped)
        return err_set(err, ERR_FAILED,
                       "step %" PRId64 ": rows of experts were lost, and the gradient norm is %g: "
                       "this is a bug of lmtrain (hint: moe.stash_factor 0 avoids it)",
                       t->step + 1, end->norm);
    return 0;
}

/*
 * Rows of experts that found no memory make gradients NaN, on whatever rank that was, so the norm
 * tells all ranks. Nothing is updated then, and sums start from zero: the rerun is the step as if
 * it had not been run. If it ends no better there was another cause.
 */
static int run_again(struct trainer *t, struct step_end *end, struct trainer_result *result,
                     struct err *err)
{
    if (!has_rerun(t) || !end->skipped || t->is_refused || recheck_is_due(t->recheck))
        return 0;
    fault_at("rerun", t->step + 1);
    if (trainer_open_data(t, err) < 0 || run_step(t, ENTRY_RERUN, end, err) < 0)
        return -1;
    result->rerun = !end->skipped;
    t->n_reruns += result->rerun;
    return 0;
}

/* Where a step begins with weights that the one before it has gathered: once masters were written
 * by something else. */
static int gather_at_first(struct trainer *t, struct err *err)
{
    bool is_ahead = false;

    for (int i = 0; i < t->program.n_buckets && !t->is_gathered; i++)
        is_ahead |= t->program.buckets[i].gathered_ahead;
    return is_ahead ? trainer_gather_weights(t, err) : 0;
}

int trainer_step(struct trainer *t, struct trainer_result *result, struct err *err)
{
    struct step_end end;

    *result = (struct trainer_result){ 0 };
    if (trainer_seek_data(t, err) < 0 || gather_at_first(t, err) < 0)
        return -1;
    int64_t tokens = loader_step_tokens(t->train, t->data_step);
    double lr = lr_at(t->job, t->step);

    if (t->options.progress)
        atomic_store_explicit(&t->options.progress->step, t->step + 1, memory_order_relaxed);
    write_scalars(t, lr, tokens);
    if (recheck_begin(t->recheck, t->step + 1, err) < 0 || trainer_begin_trace(t, err) < 0)
        return -1;
    trainer_time_step(t);
    if (run_step(t, first_entry(t), &end, err) < 0 || trainer_end_trace(t, err) < 0 ||
        run_again(t, &end, result, err) < 0)
        return -1;
    trainer_time_stepped(t);
    recheck_end(t->recheck);
    progress_phase(t->options.progress, "between steps");
    t->step++;
    t->data_step++;
    bool compressed = is_compressed(t);
    t->updates += !end.skipped;
    t->n_skipped += end.skipped != 0;
    t->tokens += tokens;
    *result = (struct trainer_result){
        .step = t->step,
        .loss = end.loss / (double)tokens,
        .z_loss = t->job->train.z_loss * end.squares / (double)tokens,
        .grad_norm = end.norm,
        .lr = lr,
        .tokens = tokens,
        .read = loader_step_read(t->train, t->data_step - 1),
        .skipped = end.skipped != 0,
        .refused = t->is_refused,
        .rerun = result->rerun,
    };
    result->is_compressed = compressed;
    result->compress_error =
        !compressed || end.codec[0] == 0 ? 0 : sqrt(end.codec[1] / end.codec[0]);
    adapt_loss_scale(t, result);
    if (t->program.ports.router_stats_total)
        count_experts(t, t->expert_stats, result);
    result->dropped = t->dropped;
    return 0;
}
