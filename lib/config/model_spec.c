/*
 * model_spec.c - counting parameters and FLOPs of a decoder
 */
#include "config/model_spec.h"

int model_spec_has_experts(const struct model_spec *s, int n)
{
    return s->n_experts && (n + 1) % s->expert_every == 0;
}

int model_spec_n_expert_layers(const struct model_spec *s, int n)
{
    return s->n_experts ? n / s->expert_every : 0;
}

/* Of all layers; with so many experts each, where there are any. */
static int64_t linears_of_layers(const struct model_spec *s, int n_experts)
{
    int64_t hidden = s->hidden_size, attention = (int64_t)s->n_heads * s->head_dim;
    int64_t kv = (int64_t)s->n_kv_heads * s->head_dim;
    int64_t wide = (s->activation == ACTIVATION_SWIGLU ? 3 : 2) * hidden;
    int64_t n_expert_layers = model_spec_n_expert_layers(s, s->n_layers);
    int64_t router = s->n_experts * hidden;

    return s->n_layers * (hidden * (attention + 2 * kv) + attention * hidden) +
           (s->n_layers - n_expert_layers) * wide * s->ffn_size +
           n_expert_layers * (router + n_experts * wide * s->expert_ffn_size);
}

int64_t model_spec_n_matmul_parameters(const struct model_spec *s)
{
    return linears_of_layers(s, s->n_active_experts) + (int64_t)s->vocab_size * s->hidden_size;
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
    int64_t hidden = s->hidden_size;
    int64_t norm = hidden * (s->norm == NORM_LAYER && s->bias ? 2 : 1);
    int64_t layer = 2 * norm;

    if (s->bias) { /* no experts then */
        int64_t up = s->activation == ACTIVATION_SWIGLU ? 2 : 1;

        layer += up * s->ffn_size + hidden;
    }
    if (model_spec_has_qkv_bias(s))
        layer += (int64_t)(s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    if (model_spec_has_output_bias(s))
        layer += hidden;
    if (s->qk_norm)
        layer += 2 * s->head_dim;
    int64_t total = linears_of_layers(s, s->n_experts) + s->n_layers * layer + norm +
                    (int64_t)s->vocab_size * hidden;
    if (!s->tied_embeddings)
        total += (int64_t)s->vocab_size * hidden;
    if (s->position == POSITION_LEARNED)
        total += (int64_t)s->max_seq_len * hidden;
    if (s->embedding_norm)
        total += norm;
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
    double layers = 2.0 * (double)linears_of_layers(s, s->n_active_experts) +
                    4.0 * s->n_layers * (double)seq_len * (double)s->n_heads * s->head_dim;
    double head = 2.0 * (double)s->vocab_size * s->hidden_size;

    /* A backward is two forwards. */
    return (full_recompute ? 4.0 : 3.0) * layers + 3.0 * head;
}
