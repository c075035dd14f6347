/*
 * model_spec.h - the shape of a decoder, and nothing about how it is run
 *
 * One struct covers LLaMA (RMSNorm, rotary positions, SwiGLU, grouped KV heads, no biases) and
 * GPT-2 (LayerNorm, learned positions, GELU, biases, dropout), and what lies between and beside
 * them (Bloom's ALiBi, Qwen3's norms of queries and keys, Mistral's window, Baichuan2's head). A
 * family is a set of these fields, not code. It comes from configs/models/NAME.yaml, a HF
 * config.json, or inline fields of a job.
 */
#ifndef CONFIG_MODEL_SPEC_H
#define CONFIG_MODEL_SPEC_H

#include <stdint.h>

#include "base/choice.h"
#include "ops/ops.h"

enum norm_kind { NORM_RMS, NORM_LAYER };
/* Of which tokens f_e and P_e of the load-balancing loss are: a micro-batch's, in each layer or
 * averaged over all layers; each sequence's; f_e of all ranks' micro-batches of the step so far.
 */
enum router_balance_kind {
    ROUTER_BALANCE_PER_LAYER,
    ROUTER_BALANCE_POOLED,
    ROUTER_BALANCE_PER_SEQUENCE,
    ROUTER_BALANCE_GLOBAL
};
enum position_kind { POSITION_ROPE, POSITION_LEARNED, POSITION_ALIBI };
enum activation_kind { ACTIVATION_SWIGLU, ACTIVATION_GELU };
enum attention_bias { ATTENTION_BIAS_NONE, ATTENTION_BIAS_QKV, ATTENTION_BIAS_ALL };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN };

/* Their names in jobs. */
extern const struct choice norm_choices[];
extern const struct choice position_choices[];
extern const struct choice activation_choices[];
extern const struct choice rope_scaling_choices[];
extern const struct choice attention_bias_choices[];
extern const struct choice router_balance_choices[];
extern const struct choice router_score_choices[];

/*
 * How rotary frequencies are changed for texts longer than the model was first trained on (train/
 * rope_tables.h has the formulas). What a kind does not look at has its default.
 */
struct rope_scaling_spec {
    enum rope_scaling type;
    double factor;
    int original_max_seq_len;                 /* 0: max_seq_len */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn, in rotations */
    double attention_factor; /* yarn, of cosines and sines; 0: 0.1 ln(factor) + 1 */
    int truncate;            /* yarn: whole dimensions as bounds */
};

struct model_spec {
    char name[128];
    int vocab_size;
    int hidden_size;
    int n_layers;
    int n_heads;
    int n_kv_heads; /* divides n_heads */
    int head_dim;   /* hidden_size / n_heads unless given */
    int ffn_size;
    int n_experts;          /* 0: no mixture of experts */
    int n_active_experts;   /* selected per token (top-k) */
    int expert_ffn_size;    /* intermediate size of one expert */
    int expert_every;       /* every N-th layer is an MoE layer, the others have a dense FFN */
    int first_dense_layers; /* so many first layers have a dense FFN, whatever expert_every is */
    enum router_score router_score;
    int router_normalize;                  /* weights of the selected experts sum to 1: 0 or 1 */
    double router_scaling;                 /* factor of these weights */
    int router_groups, router_groups_kept; /* of experts, and how many a token may choose from; 1
                                              (or 0): all are one group */
    int router_bias;                       /* experts are chosen by scores plus a bias: 0 or 1 */
    double router_bias_rate;               /* by which a step changes it; 0: it stays */
    double router_balance;                 /* coefficient of the load-balancing loss; 0: none */
    enum router_balance_kind router_balance_kind;
    double router_z;      /* coefficient of the router's z-loss; 0: none */
    int n_shared_experts; /* that all tokens go to, beside those that are selected */
    int shared_ffn_size;  /* intermediate size of all of these together; 0: there are none */
    int shared_gate;      /* their sum is multiplied by a sigmoid of the token: 0 or 1 */
    int max_seq_len;      /* learned positions: rows of the table; rope: intended maximum */
    enum norm_kind norm;
    double norm_eps;
    enum position_kind position;
    double rope_theta;
    struct rope_scaling_spec rope_scaling;
    int embedding_norm; /* a norm behind the embedding, before the first block: 0 or 1 */
    int qk_norm;        /* RMSNorm over each head of q and of k, before rope: 0 or 1 */
    int window; /* tokens that a token attends to, itself included; 0: full causal attention */
    int window_first_layer; /* layers before this one have no window */
    int window_period;      /* from there on every N-th layer has full attention; 0: none */
    int normalized_head;    /* head rows normalised to L2 norm 1 (Baichuan2): 0 or 1 */
    enum activation_kind activation;
    int bias; /* on every linear but the head, and (NORM_LAYER) on norms: 0 or 1 */
    enum attention_bias attention_bias; /* where bias is 0: on q, k, v, or on the output too */
    int tied_embeddings;                /* the head uses the embedding's table: 0 or 1 */
    double dropout;                     /* on both residual branches and, if embedding_dropout: */
    int embedding_dropout;              /* after the embedding: 0 or 1 */
    double attention_dropout;           /* on attention probabilities */
    double init_std;                    /* residual projections: divided by sqrt(2 n_layers) */
};

/* Whether layer n (from 0) has experts that all tokens go to. */
int model_spec_has_shared(const struct model_spec *spec, int n);

/* Whether layer n (from 0) has experts, and how many layers of the first n do. */
int model_spec_has_experts(const struct model_spec *spec, int n);
int model_spec_n_expert_layers(const struct model_spec *spec, int n);

/* The window of a layer; 0: none. */
int model_spec_window(const struct model_spec *spec, int layer);

/* Keys that a token sees in a layer, on average over a text of seq_len: half of it (design.md §10
 * counts no diagonal), or w - w^2 / 2 seq_len under a window w that is shorter. */
double model_spec_keys(const struct model_spec *spec, int layer, int seq_len);

/* Whether q, k and v have a bias, and whether attention's output has one. */
int model_spec_has_qkv_bias(const struct model_spec *spec);
int model_spec_has_output_bias(const struct model_spec *spec);

/* Parameters in all; a tied table counts once. */
int64_t model_spec_n_parameters(const struct model_spec *spec);

/* Parameters that multiply a token's activations (MFU's N_matmul): linears and the head, no
 * embedding, norm, bias; of experts those that a token goes to. */
int64_t model_spec_n_matmul_parameters(const struct model_spec *spec);

/*
 * Model FLOPs of training on one token at a sequence length: 6 N_matmul + 6 L d T, d = n_heads
 * head_dim (causal attention counted once; design.md §10). Of a layer with a window w < T, T / 2
 * keys a token become w - w^2 / 2T. No recomputation in it.
 */
double model_spec_flops_per_token(const struct model_spec *spec, int seq_len);

/*
 * FLOPs of training on one token as Megatron-LM's papers count them (Narayanan et al., SC 2021, eq.
 * 3): attention over the whole square, the forward of the layers once more under full
 * recomputation. For a GPT of feed-forward 4h this is 96 l h^2 (1 + s/6h + V/16lh), or 72 l h^2 (1
 * + s/6h + V/12lh) without.
 */
double model_spec_megatron_flops_per_token(const struct model_spec *spec, int seq_len,
                                           int full_recompute);

#endif
