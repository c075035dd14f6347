/*
 * hf_experts.c - the readers of config.json of mixtures of experts
 *
 * All have LLaMA's shape. A field of it says of each layer whether it has experts: every N-th layer
 * from a first one on. Lists of layers that are no such pattern are refused.
 */
#include <string.h>

#include "base/num.h"
#include "config/hf_families_impl.h"

static const struct hf_field mixtral_fields[] = {
    { "num_local_experts|num_experts", "model.n_experts", "8" },
    { "num_experts_per_tok", "model.n_active_experts", "2" },
};

static const struct hf_field qwen2_moe_fields[] = {
    { "num_experts|num_local_experts", "model.n_experts", "60" },
    { "num_experts_per_tok", "model.n_active_experts", "4" },
    { "moe_intermediate_size", "model.expert_ffn_size", "1408" },
    { "shared_expert_intermediate_size", "model.shared_ffn_size", "5632" },
    { "norm_topk_prob", "model.router_normalize", "false" },
};

static const struct hf_field qwen3_moe_fields[] = {
    { "num_experts|num_local_experts", "model.n_experts", "128" },
    { "num_experts_per_tok", "model.n_active_experts", "8" },
    { "moe_intermediate_size", "model.expert_ffn_size", "768" },
    { "norm_topk_prob", "model.router_normalize", "false" },
};

static const struct hf_field deepseek_fields[] = {
    { "n_routed_experts|num_local_experts", "model.n_experts", NULL },
    { "num_experts_per_tok", "model.n_active_experts", NULL },
    { "moe_intermediate_size", "model.expert_ffn_size", "1407" },
    { "n_shared_experts", "model.n_shared_experts", "0" },
    { "first_k_dense_replace", "model.first_dense_layers", "0" },
    { "norm_topk_prob", "model.router_normalize", "false" },
};

static const struct hf_field dots1_fields[] = {
    { "n_routed_experts|num_local_experts", "model.n_experts", NULL },
    { "num_experts_per_tok", "model.n_active_experts", NULL },
    { "moe_intermediate_size", "model.expert_ffn_size", "1408" },
    { "n_shared_experts", "model.n_shared_experts", NULL },
    { "first_k_dense_replace", "model.first_dense_layers", "0" },
    { "norm_topk_prob", "model.router_normalize", "false" },
    { "routed_scaling_factor", "model.router_scaling", "1.0" },
    { "n_group", "model.router_groups", "1" },
    { "topk_group", "model.router_groups_kept", "1" },
};

#define TAKE(h, fields) hf_take_fields(h, fields, sizeof(fields) / sizeof *(fields))

/* Returns the number as it is printed. */
static const char *set_float(struct hf_reader *h, const char *ours, double value)
{
    struct str text = { 0 };

    field_print_float(&text, value);
    const char *printed = arena_strdup(h->job->arena, str_text(&text));
    hf_set(h, ours, printed, 1);
    str_release(&text);
    return printed;
}

/*
 * transformers has one balancing loss over the choices of all layers together: with balanced
 * experts it is n_active_experts, whatever the number of layers. That of lmtrain is a sum over the
 * MoE layers, 1 each. The loss is added only with output_router_logits.
 */
static void take_pooled_balance(struct hf_reader *h)
{
    const struct model_spec *s = &h->job->job->model;
    const cJSON *coefficient = hf_key(h, "router_aux_loss_coef");
    double theirs = coefficient ? cJSON_GetNumberValue(coefficient) : 0.001;
    int n_layers = h->failed ? 0 : model_spec_n_expert_layers(s, s->n_layers);

    if (!hf_flag(h, "output_router_logits", 0) || n_layers < 1)
        return;
    const char *ours =
        set_float(h, "model.router_balance", theirs * s->n_active_experts / n_layers);
    hf_set(h, "model.router_balance_kind", "pooled", 0);
    job_note(
        h->job->job, h->job->arena,
        "model.router_balance = %s, model.router_balance_kind = pooled (output_router_logits and "
        "router_aux_loss_coef %g of %s, as transformers trains it)",
        ours, theirs, h->path);
}

/* DeepSeek's own code always adds its loss: of each sequence, or of the micro-batch. */
static void take_own_balance(struct hf_reader *h)
{
    const cJSON *coefficient = hf_key(h, "aux_loss_alpha");
    const char *kind = hf_flag(h, "seq_aux", 1) ? "per_sequence" : "per_layer";
    double theirs = coefficient ? cJSON_GetNumberValue(coefficient) : 0.001;

    if (!(theirs > 0))
        return;
    const char *ours = set_float(h, "model.router_balance", theirs);
    hf_set(h, "model.router_balance_kind", kind, 0);
    job_note(
        h->job->job, h->job->arena,
        "model.router_balance = %s, model.router_balance_kind = %s (aux_loss_alpha and seq_aux "
        "of %s, as DeepSeek trains it)",
        ours, kind, h->path);
}

void hf_take_mixtral(struct hf_reader *h)
{
    const cJSON *noise = hf_key(h, "router_jitter_noise");

    hf_take_llama_shape(h, "none");
    TAKE(h, mixtral_fields);
    if (!hf_key(h, "rms_norm_eps"))
        hf_set(h, "model.norm_eps", "1.0e-5", 1);
    if (!hf_key(h, "rope_theta") && !hf_key(h, "rope_parameters"))
        hf_set(h, "model.rope_theta", "1000000.0", 1);
    if (hf_key(h, "sliding_window"))
        hf_take_window(h);
    if (noise && !(cJSON_GetNumberValue(noise) <= 0))
        hf_refuse(h, "router_jitter_noise is not built (hint: 0, which does not change what the "
                     "model computes)");
    hf_set(h, "model.router_normalize", "true", 1);
    take_pooled_balance(h);
}

/* Which layers have experts, by both settings of Qwen's mixtures; in the arena. */
static const char *sparse_layers(struct hf_reader *h, int n_layers, int step)
{
    char *sparse = arena_array(h->job->arena, char, n_layers);
    const cJSON *dense;

    for (int layer = step - 1; layer < n_layers; layer += step)
        sparse[layer] = 1;
    cJSON_ArrayForEach(dense, hf_key(h, "mlp_only_layers"))
    {
        double layer = cJSON_GetNumberValue(dense);

        if (layer >= 0 && layer < n_layers)
            sparse[(int)layer] = 0;
    }
    return sparse;
}

/* The next layer from this one on that has experts; n_layers if there is none. */
static int next_sparse(const char *sparse, int layer, int n_layers)
{
    while (layer < n_layers && !sparse[layer])
        layer++;
    return layer;
}

static void take_sparse_layers(struct hf_reader *h)
{
    const cJSON *item = hf_key(h, "decoder_sparse_step");
    double step = item ? cJSON_GetNumberValue(item) : 1;
    int n_layers = h->job->job->model.n_layers;

    if (h->failed)
        return;
    if (!(step >= 1 && step <= n_layers)) {
        hf_refuse(h, "decoder_sparse_step is not in 1..%d", n_layers);
        return;
    }
    const char *sparse = sparse_layers(h, n_layers, (int)step);
    int first = next_sparse(sparse, 0, n_layers);
    int second = next_sparse(sparse, first + 1, n_layers);
    int every = second < n_layers ? second - first : first + 1;
    int is_pattern = first < n_layers && (first + 1) % every == 0;

    for (int layer = 0; layer < n_layers && is_pattern; layer++)
        is_pattern = sparse[layer] == (layer >= first && (layer + 1) % every == 0);
    if (!is_pattern) {
        hf_refuse(h, "mlp_only_layers: the MoE layers are not every N-th layer from a first one "
                     "on, which is not built yet");
        return;
    }
    hf_set(h, "model.expert_every", arena_printf(h->job->arena, "%d", every), 1);
    if (first + 1 > every)
        hf_set(h, "model.first_dense_layers", arena_printf(h->job->arena, "%d", first), 1);
}

void hf_take_qwen2_moe(struct hf_reader *h)
{
    hf_take_llama_shape(h, hf_flag(h, "qkv_bias", 1) ? "qkv" : "none");
    TAKE(h, qwen2_moe_fields);
    take_sparse_layers(h);
    if (hf_flag(h, "use_sliding_window", 0) && !hf_key(h, "layer_types"))
        hf_refuse(h,
                  "use_sliding_window without layer_types: which layers have a window depends on "
                  "the version of transformers (hint: list them)");
    hf_take_layer_windows(h, 0, 28);
    hf_set(h, "model.n_shared_experts", "1", 1);
    hf_set(h, "model.shared_gate", "true", 1);
    take_pooled_balance(h);
}

/* A window is all layers'. */
void hf_take_qwen3_moe(struct hf_reader *h)
{
    hf_take_llama_shape(h, hf_flag(h, "attention_bias", 0) ? "all" : "none");
    TAKE(h, qwen3_moe_fields);
    take_sparse_layers(h);
    if (hf_flag(h, "use_sliding_window", 0))
        hf_take_window(h);
    hf_set(h, "model.qk_norm", "true", 1);
    take_pooled_balance(h);
}

/* DeepSeek's first mixtures: softmax, attention as LLaMA's. Of a single expert its code never makes
 * the weight 1. */
void hf_take_deepseek(struct hf_reader *h)
{
    hf_take_llama_shape(h, hf_flag(h, "attention_bias", 0) ? "all" : "none");
    TAKE(h, deepseek_fields);
    if (h->job->job->model.n_active_experts == 1)
        hf_set(h, "model.router_normalize", "false", 1);
    take_own_balance(h);
}

/*
 * The router of DeepSeek-V3, whose bias is what balances it, and attention as Qwen3's. The rate at
 * which the bias is trained is not in config.json.
 */
void hf_take_dots1(struct hf_reader *h)
{
    hf_take_llama_shape(h, hf_flag(h, "attention_bias", 0) ? "all" : "none");
    TAKE(h, dots1_fields);
    hf_take_layer_windows(h, 1, 62);
    if (!h->failed && !h->job->job->model.n_shared_experts)
        hf_refuse(h, "n_shared_experts is 0, but layers of dots1 have shared experts (hint: "
                     "model.n_shared_experts 1 or more)");
    hf_set(h, "model.router_score", "sigmoid", 0);
    hf_set(h, "model.router_bias", "true", 1);
    hf_set(h, "model.qk_norm", "true", 1);
}
