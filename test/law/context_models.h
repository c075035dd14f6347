/*
 * context_models.h - the models of context_test.c
 */
#ifndef LAW_CONTEXT_MODELS_H
#define LAW_CONTEXT_MODELS_H

#include "config/model_spec.h"

#define SEQ_LEN_MAX 240
#define VOCAB 67 /* no other size that occurs */

static inline struct model_spec base_spec(int n_heads, int n_kv_heads, int head_dim)
{
    return (struct model_spec){ .vocab_size = VOCAB,
                                .hidden_size = 40,
                                .n_layers = 2,
                                .n_heads = n_heads,
                                .n_kv_heads = n_kv_heads,
                                .head_dim = head_dim,
                                .ffn_size = 56,
                                .max_seq_len = SEQ_LEN_MAX,
                                .norm = NORM_RMS,
                                .norm_eps = 1e-5,
                                .position = POSITION_ROPE,
                                .rope_theta = 10000,
                                .activation = ACTIVATION_SWIGLU,
                                .init_std = 0.02 };
}

static inline struct model_spec learned_positions(void)
{
    struct model_spec spec = base_spec(12, 12, 4);

    spec.norm = NORM_LAYER;
    spec.position = POSITION_LEARNED;
    spec.activation = ACTIVATION_GELU;
    spec.bias = spec.tied_embeddings = spec.embedding_dropout = 1;
    spec.dropout = spec.attention_dropout = 0.1;
    return spec;
}

static inline struct model_spec slopes(void)
{
    struct model_spec spec = base_spec(6, 6, 8);

    spec.norm = NORM_LAYER;
    spec.position = POSITION_ALIBI;
    spec.activation = ACTIVATION_GELU;
    spec.bias = spec.embedding_norm = 1;
    spec.window = 50;
    return spec;
}

static inline struct model_spec normed(void)
{
    struct model_spec spec = base_spec(8, 4, 8);

    spec.qk_norm = spec.embedding_norm = spec.normalized_head = 1;
    spec.window = 7;
    spec.window_first_layer = 1;
    return spec;
}

static inline struct model_spec mixture(void)
{
    struct model_spec spec = base_spec(4, 2, 8);

    spec.n_experts = 5;
    spec.router_scaling = 1;
    spec.n_active_experts = 2;
    spec.expert_ffn_size = 24;
    spec.expert_every = 2;
    spec.router_normalize = 1;
    spec.router_balance = 0.01;
    return spec;
}

enum { N_MODELS = 7 };

static inline struct model_spec spec_of(int model)
{
    switch (model) {
    case 0:
        return base_spec(8, 2, 8);
    case 1:
        return base_spec(24, 24, 4);
    case 2:
        return base_spec(6, 1, 16);
    case 3:
        return slopes();
    case 4:
        return normed();
    case 5:
        return mixture();
    default:
        return learned_positions();
    }
}

#endif
