/*
 * numerics.c - the numerics of a job, line by line
 */
#include "train/numerics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A double with as few digits as give it back, and what follows it. */
static void add_number_of(struct str *out, const char *key, double value, const char *suffix)
{
    char text[40];

    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    str_printf(out, "%s %s%s\n", key, text, suffix);
}

static void add_number(struct str *out, const char *key, double value)
{
    add_number_of(out, key, value, "");
}

static void add_count(struct str *out, const char *key, int64_t value)
{
    str_printf(out, "%s %" PRId64 "\n", key, value);
}

static void describe_rope_scaling(const struct model_spec *s, struct str *out)
{
    static const char *const types[] = { "none", "linear", "dynamic", "llama3", "yarn" };
    const struct rope_scaling_spec *r = &s->rope_scaling;

    str_printf(out, "model.rope_scaling.type %s\n", types[r->type]);
    add_number(out, "model.rope_scaling.factor", r->factor);
    if (r->type != ROPE_LINEAR)
        add_count(out, "model.rope_scaling.original_max_seq_len",
                  r->original_max_seq_len ? r->original_max_seq_len : s->max_seq_len);
    if (r->type == ROPE_LLAMA3) {
        add_number(out, "model.rope_scaling.low_freq_factor", r->low_freq_factor);
        add_number(out, "model.rope_scaling.high_freq_factor", r->high_freq_factor);
    }
    if (r->type == ROPE_YARN) {
        add_number(out, "model.rope_scaling.beta_fast", r->beta_fast);
        add_number(out, "model.rope_scaling.beta_slow", r->beta_slow);
        add_number(out, "model.rope_scaling.attention_factor", r->attention_factor);
        add_count(out, "model.rope_scaling.truncate", r->truncate);
    }
}

static void describe_experts(const struct model_spec *s, struct str *out)
{
    add_count(out, "model.n_experts", s->n_experts);
    add_count(out, "model.n_active_experts", s->n_active_experts);
    add_count(out, "model.expert_ffn_size", s->expert_ffn_size);
    add_count(out, "model.expert_every", s->expert_every);
    add_count(out, "model.router_normalize", s->router_normalize);
    /* One line for both, so that a run that has the one kind is not resumed with the other. */
    int pooled = s->router_balance > 0 && s->router_balance_kind == ROUTER_BALANCE_POOLED;
    add_number_of(out, "model.router_balance", s->router_balance, pooled ? " pooled" : "");
}

static void describe_model(const struct model_spec *s, struct str *out)
{
    static const char *const positions[] = { "rope", "learned", "alibi" };
    int learned = s->position == POSITION_LEARNED, rope = s->position == POSITION_ROPE;

    add_count(out, "model.vocab_size", s->vocab_size);
    add_count(out, "model.hidden_size", s->hidden_size);
    add_count(out, "model.n_layers", s->n_layers);
    add_count(out, "model.n_heads", s->n_heads);
    add_count(out, "model.n_kv_heads", s->n_kv_heads);
    add_count(out, "model.head_dim", s->head_dim);
    add_count(out, "model.ffn_size", s->ffn_size);
    /* Of other positions it is only a promise. */
    add_count(out, "model.max_seq_len", learned ? s->max_seq_len : 0);
    str_printf(out, "model.norm %s\n", s->norm == NORM_RMS ? "rms" : "layer");
    add_number(out, "model.norm_eps", s->norm_eps);
    str_printf(out, "model.position %s\n", positions[s->position]);
    add_number(out, "model.rope_theta", rope ? s->rope_theta : 0);
    str_printf(out, "model.activation %s\n",
               s->activation == ACTIVATION_SWIGLU ? "swiglu" : "gelu");
    add_count(out, "model.bias", s->bias);
    add_count(out, "model.tied_embeddings", s->tied_embeddings);
    add_number(out, "model.dropout", s->dropout);
    add_number(out, "model.attention_dropout", s->attention_dropout);
    add_number(out, "model.init_std", s->init_std);
    /* What came later is named only where it is used: other runs keep their hash. */
    if (!s->bias && s->attention_bias)
        str_printf(out, "model.attention_bias %s\n",
                   s->attention_bias == ATTENTION_BIAS_QKV ? "qkv" : "all");
    if (s->n_experts)
        describe_experts(s, out);
    if (rope && s->rope_scaling.type != ROPE_PLAIN)
        describe_rope_scaling(s, out);
    if (s->embedding_norm)
        add_count(out, "model.embedding_norm", 1);
    if (s->qk_norm)
        add_count(out, "model.qk_norm", 1);
    if (s->window && s->window_first_layer < s->n_layers) {
        add_count(out, "model.window", s->window);
        add_count(out, "model.window_first_layer", s->window_first_layer);
        if (s->window_period)
            add_count(out, "model.window_period", s->window_period);
    }
    if (s->dropout > 0 && !s->embedding_dropout)
        add_count(out, "model.embedding_dropout", 0);
    if (s->normalized_head)
        add_count(out, "model.normalized_head", 1);
}

/* The line of a text that begins here, or nothing behind its end. */
static size_t line_length(const char *line)
{
    return strcspn(line, "\n");
}

/* Lines of both descriptions go side by side: those that only one may have are the last. */
int numerics_check_weights(const struct model_spec *ours, const struct model_spec *theirs,
                           const char *path, struct err *err)
{
    struct model_spec other = *theirs;
    struct str a = { 0 }, b = { 0 };
    int status = 0;

    other.dropout = ours->dropout;
    other.embedding_dropout = ours->embedding_dropout;
    other.attention_dropout = ours->attention_dropout;
    other.init_std = ours->init_std;
    other.router_balance = ours->router_balance;
    other.router_balance_kind = ours->router_balance_kind;
    describe_model(ours, &a);
    describe_model(&other, &b);
    for (const char *x = str_text(&a), *y = str_text(&b); (*x || *y) && !status;) {
        size_t n = line_length(x), m = line_length(y);

        if (n != m || memcmp(x, y, n) != 0)
            status =
                err_set(err, ERR_CONFIG, "the job has %.*s, but %s has %.*s (hint: model: %s)",
                        n ? (int)n : 4, n ? x : "none", path, m ? (int)m : 4, m ? y : "none", path);
        x += n + (x[n] == '\n');
        y += m + (y[m] == '\n');
    }
    str_release(&a);
    str_release(&b);
    return status;
}

/* What a schedule does not look at is left out, so that it may change. */
static void describe_optimizer(const struct job *job, struct str *out)
{
    static const char *const schedules[] = { "constant", "linear", "cosine", "wsd" };
    int constant = job->optimizer.schedule == LR_CONSTANT;

    str_printf(out, "optimizer.name %s\n", job->optimizer.name);
    add_number(out, "optimizer.lr", job->optimizer.lr);
    str_printf(out, "optimizer.schedule %s\n", schedules[job->optimizer.schedule]);
    add_count(out, "optimizer.warmup_steps", job->optimizer.warmup_steps);
    add_number(out, "optimizer.min_lr", constant ? 0 : job->optimizer.min_lr);
    add_count(out, "optimizer.decay_steps",
              job->optimizer.schedule == LR_WSD ? job->optimizer.decay_steps : 0);
    add_count(out, "train.steps", constant ? 0 : job->train.steps);
    add_number(out, "optimizer.beta1", job->optimizer.beta1);
    add_number(out, "optimizer.beta2", job->optimizer.beta2);
    add_number(out, "optimizer.eps", job->optimizer.eps);
    add_number(out, "optimizer.weight_decay", job->optimizer.weight_decay);
    add_number(out, "optimizer.clip", job->optimizer.clip);
    if (job->optimizer.states != DTYPE_F32)
        str_printf(out, "optimizer.states %s\n", dtype_name(job->optimizer.states));
}

/* Micro-batches of one size are the same numerics however they are given. */
static void describe_sizes(const struct job_counts *sizes, struct str *out)
{
    int differ = 0;

    for (int i = 1; i < sizes->n; i++)
        differ |= sizes->values[i] != sizes->values[0];
    if (!differ)
        return;
    str_add(out, "parallel.micro_batches");
    for (int i = 0; i < sizes->n; i++)
        str_printf(out, " %d", sizes->values[i]);
    str_add(out, "\n");
}

static void describe_texts(const char *key, const struct job_texts *texts, struct str *out)
{
    if (!texts->n)
        return;
    str_add(out, key);
    for (int i = 0; i < texts->n; i++)
        str_printf(out, " %s", texts->values[i]);
    str_add(out, "\n");
}

/* What is trained, named only where that is not everything. */
static void describe_tuning(const struct job *job, struct str *out)
{
    static const char *const biases[] = { "none", "all", "lora_only" };

    describe_texts("train.only", &job->train.only, out);
    describe_texts("train.freeze", &job->train.freeze, out);
    if (!job->lora.rank)
        return;
    add_count(out, "lora.rank", job->lora.rank);
    add_number(out, "lora.alpha", job->lora.alpha > 0 ? job->lora.alpha : 2.0 * job->lora.rank);
    add_number(out, "lora.dropout", job->lora.dropout);
    add_count(out, "lora.rslora", job->lora.rslora);
    str_printf(out, "lora.bias %s\n", biases[job->lora.bias]);
    describe_texts("lora.targets", &job->lora.targets, out);
    describe_texts("lora.modules_to_save", &job->lora.modules_to_save, out);
}

void numerics_describe(const struct job *job, uint64_t data, const char *identity,
                       const char *choices, struct str *out)
{
    int early = job->parallel.gradient_sum == GRADIENT_SUM_EARLY;
    /* One rank or one micro-batch has one order of sums. */
    int one_order = job->parallel.dp == 1 || job->n_micro_batches == 1;

    add_count(out, "version", NUMERICS_VERSION);
    describe_model(&job->model, out);
    if (job->train.init)
        str_printf(out, "train.init %s\n", job->train.init);
    describe_tuning(job, out);
    str_printf(out, "data %016" PRIx64 "\ntrain.seed %" PRIu64 "\n", data, job->train.seed);
    add_count(out, "data.seq_len", job->data.seq_len);
    add_count(out, "train.global_batch", job->train.global_batch);
    add_count(out, "train.micro_batch", job->train.micro_batch);
    describe_sizes(&job->parallel.micro_batches, out);
    str_printf(out, "train.dtype %s\ntrain.gradient_dtype %s\n", dtype_name(job->train.dtype),
               dtype_name(job->train.gradient_dtype));
    if (job->train.residual != DTYPE_F32)
        str_printf(out, "train.residual %s\n", dtype_name(job->train.residual));
    if (job->train.dtype == DTYPE_F16) {
        add_count(out, "train.loss_scale.initial", job->train.loss_scale.initial);
        add_count(out, "train.loss_scale.growth_every", job->train.loss_scale.growth_every);
        add_count(out, "train.loss_scale.min", job->train.loss_scale.min);
        add_count(out, "train.loss_scale.max", job->train.loss_scale.max);
    }
    add_count(out, "parallel.dp", job->parallel.dp);
    add_count(out, "parallel.tp", job->parallel.tp);
    add_count(out, "parallel.sequence_parallel",
              job->parallel.tp > 1 && job->parallel.sequence_parallel);
    add_count(out, "parallel.cp", job->parallel.cp);
    add_count(out, "parallel.ep", job->parallel.ep);
    /* Alone there is nothing to sum. */
    int is_fast = job->parallel.reductions == REDUCTIONS_FAST &&
                  (job->parallel.dp > 1 || job->parallel.tp > 1 || job->parallel.cp > 1);
    str_printf(out, "parallel.gradient_sum %s\nparallel.reductions %s\n",
               one_order ? "any"
               : early   ? "early"
                         : "late",
               is_fast ? "fast" : "fixed");
    describe_optimizer(job, out);
    str_printf(out, "kernels %s\n", identity);
    if (*choices)
        str_printf(out, "kernels.choices %016" PRIx64 "\n", XXH64(choices, strlen(choices), 0));
}

uint64_t numerics_hash(const struct str *description)
{
    return XXH64(str_text(description), description->length, 0);
}
