/*
 * model_spec.c - counting parameters and FLOPs of a decoder
 */
#include "config/model_spec.h"

#include "base/num.h"

static int64_t linears_of_a_layer(const struct model_spec *s)
{
    int64_t hidden = s->hidden_size, attention = (int64_t)s->n_heads * s->head_dim;
    int64_t kv = (int64_t)s->n_kv_heads * s->head_dim;
    int64_t up = s->activation == ACTIVATION_SWIGLU ? 2 : 1;

    return hidden * (attention + 2 * kv) + attention * hidden + (up + 1) * hidden * s->ffn_size;
}

int64_t model_spec_n_matmul_parameters(const struct model_spec *s)
{
    return s->n_layers * linears_of_a_layer(s) + (int64_t)s->vocab_size * s->hidden_size;
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
    return layer >= s->window_first_layer ? s->window : 0;
}

int64_t model_spec_n_parameters(const struct model_spec *s)
{
    int64_t hidden = s->hidden_size;
    int64_t norm = hidden * (s->norm == NORM_LAYER && s->bias ? 2 : 1);
    int64_t layer = linears_of_a_layer(s) + 2 * norm;

    if (s->bias) {
        int64_t up = s->activation == ACTIVATION_SWIGLU ? 2 : 1;

        layer += up * s->ffn_size + hidden;
    }
    if (model_spec_has_qkv_bias(s))
        layer += (int64_t)(s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    if (model_spec_has_output_bias(s))
        layer += hidden;
    if (s->qk_norm)
        layer += 2 * s->head_dim;
    int64_t total = s->n_layers * layer + norm + (int64_t)s->vocab_size * hidden;
    if (!s->tied_embeddings)
        total += (int64_t)s->vocab_size * hidden;
    if (s->position == POSITION_LEARNED)
        total += (int64_t)s->max_seq_len * hidden;
    if (s->embedding_norm)
        total += norm;
    return total;
}

/* Keys of a token, on average of a text and over all layers, times layers. */
static double keys_of_all_layers(const struct model_spec *s, int seq_len)
{
    int n = s->window && s->window < seq_len ? max_int(0, s->n_layers - s->window_first_layer) : 0;
    double length = seq_len, window = s->window;

    return (s->n_layers - n) * length / 2 + n * (window - window * window / (2 * length));
}

double model_spec_flops_per_token(const struct model_spec *s, int seq_len)
{
    double attention = (double)s->n_heads * s->head_dim;

    return 6.0 * (double)model_spec_n_matmul_parameters(s) +
           12.0 * attention * keys_of_all_layers(s, seq_len);
}

double model_spec_megatron_flops_per_token(const struct model_spec *s, int seq_len,
                                           int full_recompute)
{
    double layer = 2.0 * (double)linears_of_a_layer(s) +
                   4.0 * (double)seq_len * (double)s->n_heads * s->head_dim;
    double head = 2.0 * (double)s->vocab_size * s->hidden_size;

    /* A backward is two forwards. */
    return (full_recompute ? 4.0 : 3.0) * s->n_layers * layer + 3.0 * head;
}
