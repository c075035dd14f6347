/*
 * law_models.c - the models of the law's cases, as jobs have them
 */
#include <string.h>

#include "support/law_rig.h"

const char *law_model_text(const char *model)
{
    if (!strcmp(model, "gpt2"))
        return "{vocab_size: 64, hidden_size: 32, n_layers: 2, n_heads: 2, ffn_size: 80, "
               "max_seq_len: 32, norm: layernorm, position: learned, activation: gelu, bias: true, "
               "tied_embeddings: true, dropout: 0.1, attention_dropout: 0.1}";
    if (!strcmp(model, "llama-untied"))
        return "{vocab_size: 64, hidden_size: 96, n_layers: 3, n_heads: 4, n_kv_heads: 4, "
               "head_dim: 24, ffn_size: 200, norm: rmsnorm, position: rope, activation: swiglu, "
               "tied_embeddings: false}";
    /* As many experts as one has not, in every second layer. */
    if (!strcmp(model, "mixture"))
        return "{vocab_size: 64, hidden_size: 32, n_layers: 4, n_heads: 4, n_kv_heads: 2, "
               "head_dim: 8, ffn_size: 48, n_experts: 5, n_active_experts: 2, expert_ffn_size: 24, "
               "expert_every: 2, router_balance: 0.1, norm: rmsnorm, position: rope, activation: "
               "swiglu, tied_embeddings: true}";
    /* The same with one balance of all its layers. */
    if (!strcmp(model, "pooled"))
        return "{vocab_size: 64, hidden_size: 32, n_layers: 4, n_heads: 4, n_kv_heads: 2, "
               "head_dim: 8, ffn_size: 48, n_experts: 5, n_active_experts: 2, expert_ffn_size: 24, "
               "expert_every: 2, router_balance: 0.1, router_balance_kind: pooled, norm: rmsnorm, "
               "position: rope, activation: swiglu, tied_embeddings: true}";
    /* What routers have beside softmax, and shared experts; a balance of all ranks' counts. */
    if (!strcmp(model, "routed"))
        return "{vocab_size: 64, hidden_size: 32, n_layers: 4, n_heads: 4, n_kv_heads: 2, "
               "ffn_size: 48, n_experts: 6, expert_ffn_size: 24, first_dense_layers: 2, "
               "n_shared_experts: 2, shared_gate: true, router_score: sigmoid, router_groups: 3, "
               "router_groups_kept: 2, router_bias: true, router_bias_rate: 0.01, router_balance: "
               "0.1, router_balance_kind: per_sequence, router_z: 0.01, tied_embeddings: true}";
    if (!strcmp(model, "counted"))
        return "{vocab_size: 64, hidden_size: 32, n_layers: 4, n_heads: 4, n_kv_heads: 2, "
               "ffn_size: 48, n_experts: 5, expert_ffn_size: 24, expert_every: 2, router_scaling: "
               "2.0, router_normalize: false, router_balance: 0.1, router_balance_kind: "
               "global_batch}";
    if (!strcmp(model, "llama-deep"))
        return "{vocab_size: 64, hidden_size: 32, n_layers: 8, n_heads: 2, n_kv_heads: 2, "
               "head_dim: 16, ffn_size: 48, norm: rmsnorm, position: rope, activation: swiglu, "
               "tied_embeddings: true}";
    if (!strcmp(model, "normed"))
        return "{vocab_size: 64, hidden_size: 48, n_layers: 2, n_heads: 4, n_kv_heads: 2, "
               "head_dim: 16, ffn_size: 72, embedding_norm: true, qk_norm: true, window: 7, "
               "window_first_layer: 1, normalized_head: true}";
    if (!strcmp(model, "alibi"))
        return "{vocab_size: 64, hidden_size: 48, n_layers: 2, n_heads: 6, ffn_size: 80, norm: "
               "layernorm, position: alibi, embedding_norm: true, activation: gelu, bias: true, "
               "tied_embeddings: true, window: 9, dropout: 0.1, attention_dropout: 0.1}";
    /* Its gradients fill several buckets of the 1 MiB below. */
    return "{vocab_size: 64, hidden_size: 96, n_layers: 5, n_heads: 4, n_kv_heads: 2, "
           "head_dim: 24, ffn_size: 144, norm: rmsnorm, position: rope, activation: swiglu, "
           "tied_embeddings: true}";
}
