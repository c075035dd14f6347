/*
 * derive.c - fields that follow from others
 */
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "config/read_impl.h"
#include "ops/newton_schulz_choices.h"
#include "ops/op_info.h"

#define SEQ_LEN_AUTO_MAX 2048
#define WARMUP_AUTO_MAX 2000
#define MICRO_BATCH_AUTO_MAX 4
#define EPOCHS_AUTO 3
#define BUCKETS_AUTO 64
#define BUCKET_MB_AUTO_MAX 32

static void derive_model(struct job_reader *r)
{
    struct model_spec *s = &r->job->model;

    if (s->n_kv_heads == 0) {
        s->n_kv_heads = s->n_heads;
        if (s->position == POSITION_ROPE)
            job_note(r->job, r->arena, "model.n_kv_heads = %d (auto: n_heads)", s->n_kv_heads);
    }
    if (s->head_dim == 0 && s->hidden_size % s->n_heads != 0) {
        diagnostics_add(&r->mistakes, reader_given(r, "model.n_heads"),
                        "model.n_heads is %d, does not divide hidden_size %d (hint: give head_dim)",
                        s->n_heads, s->hidden_size);
    } else if (s->head_dim == 0) {
        s->head_dim = s->hidden_size / s->n_heads;
        job_note(r->job, r->arena, "model.head_dim = %d (auto: hidden_size %d / n_heads %d)",
                 s->head_dim, s->hidden_size, s->n_heads);
    }
    if (s->expert_ffn_size == 0) {
        s->expert_ffn_size = s->ffn_size;
        if (s->n_experts)
            job_note(r->job, r->arena, "model.expert_ffn_size = %d (auto: ffn_size)", s->ffn_size);
    }
    if (s->shared_ffn_size == 0 && s->n_shared_experts > 0) {
        s->shared_ffn_size = s->n_shared_experts * s->expert_ffn_size;
        job_note(r->job, r->arena,
                 "model.shared_ffn_size = %d (auto: n_shared_experts %d * expert_ffn_size %d)",
                 s->shared_ffn_size, s->n_shared_experts, s->expert_ffn_size);
    }
    if (s->position == POSITION_LEARNED && !reader_given(r, "model.max_seq_len"))
        diagnostics_add(&r->mistakes, NULL,
                        "model.max_seq_len is missing (hint: position learned needs the number of "
                        "position embeddings)");
}

static void derive_batch(struct job_reader *r)
{
    struct job *job = r->job;

    if (job->data.seq_len == 0) {
        job->data.seq_len = min_int(job->model.max_seq_len, SEQ_LEN_AUTO_MAX);
        job_note(job, r->arena, "data.seq_len = %d (auto: model.max_seq_len %d, at most %d)",
                 job->data.seq_len, job->model.max_seq_len, SEQ_LEN_AUTO_MAX);
    }
    if (job->train.micro_batch == 0 && job->parallel.micro_batches.n) {
        job->train.micro_batch = largest_count(&job->parallel.micro_batches);
        job_note(job, r->arena, "train.micro_batch = %d (the largest of parallel.micro_batches)",
                 job->train.micro_batch);
    } else if (job->train.micro_batch == 0 && !job->parallel.micro_batches_auto) {
        job->train.micro_batch = MICRO_BATCH_AUTO_MAX;
        while (job->train.global_batch % job->train.micro_batch != 0)
            job->train.micro_batch /= 2;
        job_note(job, r->arena,
                 "train.micro_batch = %d (auto: divides global_batch %d, at most %d)",
                 job->train.micro_batch, job->train.global_batch, MICRO_BATCH_AUTO_MAX);
    }
}

/* Runs are of steps, or of epochs over instruction data. */
static void derive_length(struct job_reader *r)
{
    struct job *job = r->job;
    int tunes = job->kind != JOB_PRETRAIN;

    if (job->train.epochs > 0 && (!tunes || job->train.steps))
        diagnostics_add(&r->mistakes, reader_given(r, "train.epochs"),
                        tunes
                            ? "train.epochs and train.steps are both given (hint: give one of them)"
                            : "train.epochs is for finetune and lora (hint: train.steps)");
    if (tunes && !job->train.steps && job->train.epochs <= 0) {
        job->train.epochs = EPOCHS_AUTO;
        job_note(job, r->arena, "train.epochs = %g (auto)", job->train.epochs);
    }
    if (job->train.global_batch == 0) {
        job->train.global_batch = tunes ? 16 : 64;
        if (tunes)
            job_note(job, r->arena, "train.global_batch = %d (auto: %s)", job->train.global_batch,
                     choice_word(job_kind_choices, (int)job->kind));
    }
    if (job->optimizer.lr == 0) {
        double factor = optimizer_row(job->optimizer.name)->lr_factor;

        job->optimizer.lr = factor * (job->kind == JOB_LORA ? 2e-4 : tunes ? 1e-5 : 3e-4);
        if (factor == 0)
            diagnostics_add(&r->mistakes, reader_given(r, "optimizer.name"),
                            "optimizer.lr is auto, which %s has not (hint: give one; rates of "
                            "0.001 to 1 are usual)",
                            choice_word(optimizer_choices, (int)job->optimizer.name));
        else if (factor < 1)
            job_note(job, r->arena, "optimizer.lr = %g (auto: %s, a third of adamw's)",
                     job->optimizer.lr, choice_word(optimizer_choices, (int)job->optimizer.name));
        else if (tunes)
            job_note(job, r->arena, "optimizer.lr = %g (auto: %s)", job->optimizer.lr,
                     choice_word(job_kind_choices, (int)job->kind));
    }
}

/* What follows from the number of steps. */
static void derive_schedule(struct job *job, struct arena *arena)
{
    if (job->optimizer.warmup_steps < 0) {
        job->optimizer.warmup_steps = min_i64(job->train.steps / 50, WARMUP_AUTO_MAX);
        job_note(job, arena,
                 "optimizer.warmup_steps = %lld (auto: a fiftieth of train.steps, at most %d)",
                 (long long)job->optimizer.warmup_steps, WARMUP_AUTO_MAX);
    }
    if (job->optimizer.name == RULE_MUON && !job->optimizer.muon_steps) {
        job->optimizer.muon_steps = newton_schulz_steps(job->optimizer.muon_coefficients);
        job_note(job, arena, "optimizer.muon_steps = %d (auto: of %s coefficients)",
                 job->optimizer.muon_steps,
                 choice_word(newton_schulz_choices, (int)job->optimizer.muon_coefficients));
    }
    if (job->optimizer.schedule == LR_WSD && job->optimizer.decay_steps == 0) {
        job->optimizer.decay_steps = max_i64(1, job->train.steps / 5);
        job_note(job, arena, "optimizer.decay_steps = %lld (auto: a fifth of train.steps)",
                 (long long)job->optimizer.decay_steps);
    }
    if (job->optimizer.schedule == LR_INVERSE_SQRT && job->optimizer.timescale == 0) {
        int64_t warmup = job->optimizer.warmup_steps;

        job->optimizer.timescale = warmup > 0 ? warmup : LR_TIMESCALE;
        job_note(job, arena, "optimizer.timescale = %lld (auto: %s)",
                 (long long)job->optimizer.timescale,
                 warmup > 0 ? "optimizer.warmup_steps" : "there is no warm-up");
    }
}

void job_set_steps(struct job *job, int64_t steps, struct arena *arena)
{
    job_note(job, arena, "train.steps = %lld (%g epochs)", (long long)steps, job->train.epochs);
    job->train.steps = steps;
    job->train.epochs = 0; /* said by the steps from now on */
    derive_schedule(job, arena);
}

void job_grow_vocabulary(struct job *job, int vocab_size, struct arena *arena)
{
    CHECK(vocab_size >= job->model.vocab_size);
    job_note(job, arena, "model.vocab_size = %d (grown from %d: the tokenizer's tokens)",
             vocab_size, job->model.vocab_size);
    job->model.vocab_size = vocab_size;
}

/* A constant of the optimizer that may be auto; `own` is 0 where it has none of that name. */
static void derive_constant(struct job_reader *r, const char *key, double *value, double own)
{
    const char *name = choice_word(optimizer_choices, (int)r->job->optimizer.name);

    if (*value >= 0 && own <= 0 && reader_given(r, key))
        diagnostics_add(&r->mistakes, reader_given(r, key),
                        "%s is %g, but %s has none (hint: leave it out)", key, *value, name);
    if (*value >= 0 && own > 0)
        return;
    *value = own > 0 ? own : -1;
    if (own > 0 && r->job->optimizer.name != RULE_ADAMW)
        job_note(r->job, r->arena, "%s = %g (auto: %s)", key, own, name);
}

static void derive_constants(struct job_reader *r)
{
    struct job *job = r->job;
    const struct optimizer_row *row = optimizer_row(job->optimizer.name);

    derive_constant(r, "optimizer.beta1", &job->optimizer.beta1, row->beta1);
    derive_constant(r, "optimizer.beta2", &job->optimizer.beta2, row->beta2);
    derive_constant(r, "optimizer.momentum", &job->optimizer.momentum, row->momentum);
    derive_constant(r, "optimizer.eps", &job->optimizer.eps, row->eps);
    derive_constant(r, "optimizer.weight_decay", &job->optimizer.weight_decay, row->weight_decay);
}

static void derive_optimizer(struct job_reader *r)
{
    struct job *job = r->job;

    derive_constants(r);

    if (job->train.steps)
        derive_schedule(job, r->arena);
    if (job->optimizer.min_lr < 0) {
        enum lr_schedule_kind schedule = job->optimizer.schedule;
        int ends_low = schedule != LR_CONSTANT && schedule != LR_INVERSE_SQRT;

        job->optimizer.min_lr = ends_low                  ? job->optimizer.lr / 10
                                : schedule == LR_CONSTANT ? job->optimizer.lr
                                                          : 0;
        if (ends_low)
            job_note(job, r->arena, "optimizer.min_lr = %g (auto: a tenth of lr)",
                     job->optimizer.min_lr);
    }
}

/* One bucket would be reduced behind the backward; small ones pay each collective's latency. By the
 * whole model, so that all layouts that are compared have the same. */
void reader_derive_buckets(struct job_reader *r)
{
    struct job *job = r->job;
    int64_t n_bytes = model_spec_n_parameters(&job->model) * (int64_t)sizeof(float);

    if (!job->parallel.bucket_mb)
        job->parallel.bucket_mb =
            (int)min_i64(BUCKET_MB_AUTO_MAX, max_i64(1, (n_bytes / BUCKETS_AUTO) >> 20));
}

static void derive_output(struct job_reader *r)
{
    const char *base = strrchr(r->job->source, '/');

    if (r->job->output)
        return;
    base = base ? base + 1 : r->job->source;
    const char *dot = strrchr(base, '.');
    int length = dot && dot > base ? (int)(dot - base) : (int)strlen(base);
    r->job->output = arena_printf(r->arena, "runs/%.*s", length, base);
    job_note(r->job, r->arena, "output = %s (the job file's name)", r->job->output);
}

/* Whether the job's forward has ops that need this. */
static int has_feature(const struct job *job, enum op_feature feature)
{
    const struct model_spec *s = &job->model;
    int tp = job->parallel.tp, splits_rows = tp > 1 && job->parallel.sequence_parallel;

    switch (feature) {
    case FEATURE_NO_FORWARD:
        return 0;
    case FEATURE_ANY_MODEL:
        return 1;
    case FEATURE_RMSNORM:
        return s->norm == NORM_RMS;
    case FEATURE_LAYERNORM:
        return s->norm == NORM_LAYER;
    case FEATURE_QK_NORM:
        return s->qk_norm;
    case FEATURE_ROPE:
        return s->position == POSITION_ROPE;
    case FEATURE_SWIGLU:
        return s->activation == ACTIVATION_SWIGLU &&
               (model_spec_n_expert_layers(s, s->n_layers) < s->n_layers || s->shared_ffn_size > 0);
    case FEATURE_GELU:
        return s->activation == ACTIVATION_GELU;
    case FEATURE_EXPERTS:
        return s->n_experts > 0;
    case FEATURE_CAPACITY:
        return s->n_experts > 0 && job->moe.capacity_factor > 0;
    case FEATURE_SHARED_GATE:
        return s->n_experts > 0 && s->shared_ffn_size > 0 && s->shared_gate;
    case FEATURE_ADAPTERS:
        return job->lora.rank > 0;
    case FEATURE_EXPERT_ADAPTERS:
        return s->n_experts > 0 && job->lora.rank > 0;
    case FEATURE_DROPOUT:
        return s->dropout > 0;
    case FEATURE_SUM_BEFORE_BIAS:
        return tp > 1 && model_spec_has_output_bias(s);
    case FEATURE_SEQUENCE_PARALLEL:
        return splits_rows;
    case FEATURE_WHOLE_ROWS:
        return tp > 1 && !splits_rows;
    case FEATURE_SHARED_KV_HEADS:
        return tp > s->n_kv_heads;
    case FEATURE_CONTEXT_PARALLEL:
        return job->parallel.cp > 1;
    }
    return 0;
}

/* A list for several models is no mistake, but may be one. */
static void note_recompute(struct job_reader *r)
{
    struct choice items[FIELD_ITEMS_MAX + 1];
    struct str missing = { 0 };

    field_find("recompute")->list_items(items);
    for (const struct choice *c = items; c->word; c++)
        if (bitset_has(&r->job->recompute_ops, c->value) &&
            !has_feature(r->job, op_info((enum op_kind)c->value)->feature))
            str_printf(&missing, missing.length ? ", %s" : "%s", c->word);
    if (missing.length)
        job_note(r->job, r->arena, "recompute: this model's forward has no %s", str_text(&missing));
    str_release(&missing);
}

/* recompute_layers says it of each layer. */
static void derive_recompute(struct job_reader *r)
{
    const struct job *job = r->job;

    if ((job->recompute_layers.full.n || job->recompute_layers.selective.n) &&
        !reader_given(r, "recompute"))
        r->job->recompute = RECOMPUTE_NONE;
}

static const char *const loss_scale_fields[] = { "train.loss_scale.initial",
                                                 "train.loss_scale.growth_every",
                                                 "train.loss_scale.min", "train.loss_scale.max" };

/* Gradients of the other dtypes reach as far as fp32's. */
static void note_loss_scale(struct job_reader *r)
{
    if (r->job->train.dtype == DTYPE_F16)
        return;
    for (size_t i = 0; i < sizeof loss_scale_fields / sizeof *loss_scale_fields; i++)
        if (reader_given(r, loss_scale_fields[i])) {
            job_note(r->job, r->arena, "train.loss_scale is off: train.dtype is %s, not fp16",
                     dtype_name(r->job->train.dtype));
            return;
        }
}

static int has_weights(const struct job_reader *r, const char *folder)
{
    /* Of Hugging Face, a run and a checkpoint. */
    static const char *const patterns[] = { "*.safetensors", "pytorch_model*.bin",
                                            "checkpoints/step-*", "manifest.json" };
    int n = 0;

    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        glob_t found;

        if (glob(arena_printf(r->arena, "%s/%s", folder, patterns[i]), 0, NULL, &found) == 0)
            n++;
        globfree(&found);
    }
    return n > 0;
}

/* What is tuned is a model that is there; what is trained from scratch may be its shape alone. */
static void derive_init(struct job_reader *r)
{
    struct job *job = r->job;

    if (job->train.init && !strcmp(job->train.init, "random")) {
        job->train.init = NULL;
        return;
    }
    if (job->train.init || !r->model_folder)
        return;
    if (job->kind == JOB_PRETRAIN) {
        job->train.unsaid_init = has_weights(r, r->model_folder) ? r->model_folder : NULL;
        return;
    }
    job->train.init = r->model_folder;
    job_note(job, r->arena, "train.init = %s (the model's folder)", job->train.init);
}

/* By this name the schedule is breadth-first whose sums of gradients are late, whatever zero is. */
static void derive_fold3d(struct job_reader *r)
{
    const struct yaml_node *node = reader_given(r, "parallel.schedule");
    struct job *job = r->job;

    if (!node || node->kind != YAML_SCALAR || strcmp(node->text, SCHEDULE_FOLD3D) != 0)
        return;
    if (job->parallel.gradient_sum_given && job->parallel.gradient_sum == GRADIENT_SUM_EARLY) {
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.gradient_sum"),
                        "parallel.gradient_sum is early, but parallel.schedule is fold3d, which "
                        "sums the gradients of a chunk behind its last backward (hint: "
                        "gradient_sum: late, or schedule: breadth-first)");
        return;
    }
    if (!job->parallel.gradient_sum_given)
        job_note(job, r->arena, "parallel.gradient_sum = late (schedule fold3d)");
    job->parallel.gradient_sum = GRADIENT_SUM_LATE;
    job->parallel.gradient_sum_given = 1;
}

void reader_derive(struct job_reader *r)
{
    derive_init(r);
    derive_length(r);
    derive_model(r);
    if (r->mistakes.n == 0)
        reader_derive_tuning(r);
    derive_batch(r);
    derive_optimizer(r);
    derive_output(r);
    derive_fold3d(r);
    derive_recompute(r);
    note_recompute(r);
    note_loss_scale(r);
}
