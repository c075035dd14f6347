/*
 * model_spec.c - counting parameters and FLOPs of a decoder
 */
#include "config/model_spec.h"

#include "config/parameters.h"

const struct choice norm_choices[] = { { "rmsnorm", NORM_RMS },
                                       { "layernorm", NORM_LAYER },
                                       { 0 } };
const struct choice position_choices[] = {
    { "rope", POSITION_ROPE }, { "learned", POSITION_LEARNED }, { "alibi", POSITION_ALIBI }, { 0 }
};
const struct choice activation_choices[] = { { "swiglu", ACTIVATION_SWIGLU },
                                             { "gelu", ACTIVATION_GELU },
                                             { 0 } };
const struct choice rope_scaling_choices[] = {
    { "none", ROPE_PLAIN },    { "linear", ROPE_LINEAR }, { "dynamic", ROPE_DYNAMIC },
    { "llama3", ROPE_LLAMA3 }, { "yarn", ROPE_YARN },     { 0 }
};
const struct choice attention_bias_choices[] = { { "none", ATTENTION_BIAS_NONE },
                                                 { "qkv", ATTENTION_BIAS_QKV },
                                                 { "all", ATTENTION_BIAS_ALL },
                                                 { 0 } };
const struct choice router_balance_choices[] = { { "per_layer", ROUTER_BALANCE_PER_LAYER },
                                                 { "pooled", ROUTER_BALANCE_POOLED },
                                                 { "per_sequence", ROUTER_BALANCE_PER_SEQUENCE },
                                                 { "global_batch", ROUTER_BALANCE_GLOBAL },
                                                 { 0 } };
const struct choice router_score_choices[] = { { "softmax", ROUTER_SOFTMAX },
                                               { "sigmoid", ROUTER_SIGMOID },
                                               { 0 } };

int model_spec_has_experts(const struct model_spec *s, int n)
{
    return s->n_experts && n >= s->first_dense_layers && (n + 1) % s->expert_every == 0;
}

int model_spec_n_expert_layers(const struct model_spec *s, int n)
{
    int dense = n < s->first_dense_layers ? n : s->first_dense_layers;

    return s->n_experts ? n / s->expert_every - dense / s->expert_every : 0;
}

int model_spec_has_shared(const struct model_spec *s, int n)
{
    return s->shared_ffn_size > 0 && model_spec_has_experts(s, n);
}

/* Of all layers, those that multiply a token's activations. */
static int64_t matmul_of_layers(const struct model_spec *s)
{
    int64_t total = 0;

    for (int layer = 0; layer < s->n_layers; layer++)
        total += parameters_count_matmul(s, layer);
    return total;
}

int64_t model_spec_n_matmul_parameters(const struct model_spec *s)
{
    return matmul_of_layers(s) + parameters_count_head(s);
}

int model_spec_has_qkv_bias(const struct model_spec *s)
{
    return s->bias || s->attention_bias != ATTENTION_BIAS_NONE;
}

int model_spec_has_output_bias(const struct model_spec *s)
{
    return s->bias || s->attention_bias == ATTENTION_BIAS_ALL;
}

int model_spec_window(const struct model_spec *s, int layer)
{
    int at = layer - s->window_first_layer;

    return at < 0 || (s->window_period && (at + 1) % s->window_period == 0) ? 0 : s->window;
}

int64_t model_spec_n_parameters(const struct model_spec *s)
{
    int64_t total = 0;

    for (int layer = LAYER_BEFORE; layer <= s->n_layers; layer++)
        total += parameters_count(s, layer);
    return total;
}

double model_spec_keys(const struct model_spec *s, int layer, int seq_len)
{
    double length = seq_len, window = model_spec_window(s, layer);

    return window > 0 && window < length ? window - window * window / (2 * length) : length / 2;
}

double model_spec_flops_per_token(const struct model_spec *s, int seq_len)
{
    double attention = (double)s->n_heads * s->head_dim, keys = 0;

    for (int i = 0; i < s->n_layers; i++)
        keys += model_spec_keys(s, i, seq_len);
    return 6.0 * (double)model_spec_n_matmul_parameters(s) + 12.0 * attention * keys;
}

double model_spec_megatron_flops_per_token(const struct model_spec *s, int seq_len,
                                           int full_recompute)
{
    double layers = 2.0 * (double)matmul_of_layers(s) +
                    4.0 * s->n_layers * (double)seq_len * (double)s->n_heads * s->head_dim;
    double head = 2.0 * (double)parameters_count_head(s);

    /* A backward is two forwards. */
    return (full_recompute ? 4.0 : 3.0) * layers + 3.0 * head;
}
