/*
 * hf_keys.c - keys of config.json that have no part in what a model computes
 *
 * Sources: the configuration classes of transformers 4 and 5, and the config.json of the published
 * models of the families that are built in. Settings of generation count as harmless: `generate`
 * has its own.
 */
#include "config/hf_keys_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* Harmless whatever they are. */
static const char *const harmless[] = {
    /* what the folder is, and who made it */
    "model_type",
    "architectures",
    "auto_map",
    "transformers_version",
    "transformers.js_config",
    "tokenizer_class",
    "n_special", /* of GPT-2's first configs */
    "predict_special_tokens",
    "output_past",
    "tf_legacy_loss",
    "use_return_dict",
    "tokenizer_type",
    "torch_dtype",
    "dtype",
    "params_dtype",
    "bf16",
    "fp16",
    "fp32",
    "use_bfloat16",
    "is_llama_config",
    "unsloth_fixed",
    "unsloth_version",
    "name_or_path",
    "license",
    "quantization_config", /* the readers of weights look at what is there */
    /* tokens */
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "image_token_id",
    "decoder_start_token_id",
    "padded_vocab_size",
    /* how it is computed, to rounding */
    "use_cache",
    "use_flash_attn",
    "use_flash_attention",
    "use_flash_attention_2",
    "use_sdpa",
    "attn_implementation",
    "pretraining_tp",
    "softmax_in_fp32",
    "attention_softmax_in_fp32",
    "reorder_and_upcast_attn",
    "slow_but_exact",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "bias_dropout_add_fusion",
    "fused_bias_fc",
    "use_cache_quantization",
    "use_cache_kernel",
    "gradient_checkpointing",
    "chunk_size_feed_forward",
    "torchscript",
    "onnx_safe",
    "use_scaled_init_method",
    /* how long texts were; positions are max_position_embeddings', or the family's own key */
    "model_max_length",
    "max_sequence_length",
    "max_seq_len",
    "max_length",
    "n_ctx",
    /* what is returned, and by which head */
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "classifier_dropout",
    "classifier_bias",
    "classifier_activation",
    "is_decoder",
    "keys_to_ignore_at_inference",
    /* initial values that the model does not have any more */
    "init_std",
    "initializer_factor",
    "init_method",
    "embed_init_std",
    /* generation */
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "min_length",
    "max_new_tokens",
    "num_return_sequences",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "prefix",
    "chat_format",
    "cache_implementation",
};

/*
 * Harmless with one of these values (NULL: any) in these families (NULL: all), both separated by
 * "|".
 */
static const struct {
    const char *key, *values, *families;
} neutral[] = {
    { "is_encoder_decoder", "false", NULL },
    { "add_cross_attention", "false", NULL },
    { "tie_encoder_decoder", "false", NULL },
    { "is_causal", "true", NULL },
    { "use_bidirectional_attention", "false", NULL },
    /* Biases are what the family has; other weights than those are refused by name. */
    { "attention_bias", "true", "qwen2|internlm|internlm2" },
    { "attention_bias", "false", NULL },
    { "attention_out_bias", "false", NULL },
    { "mlp_bias", "false", NULL },
    { "qkv_bias", "true", "qwen2|qwen" },
    { "qkv_bias", "false", NULL },
    { "bias", "false", NULL },
    { "use_bias", "false", NULL },
    { "lm_head_bias", "false", NULL },
    { "add_bias_linear", "false", NULL },
    { "add_qkv_bias", "false", NULL },
    { "skip_bias_add", "true", "bloom" },
    { "skip_bias_add_qkv", "false", "bloom" },
    { "offset_alibi", NULL, "bloom" },
    /* Norms and positions */
    { "qk_layernorm", "false", NULL },
    { "use_qk_norm", "false", NULL },
    { "apply_residual_connection_post_layernorm", "false", NULL },
    { "parallel_residual", "false", NULL },
    { "use_parallel_residual", "false", NULL },
    { "pos_emb", "rotary", "qwen" },
    { "activation", "swiglu", "qwen" },
    { "use_rotary", "true", "qwen" },
    { "ffn_hidden_size", NULL, "qwen" }, /* intermediate_size again, in the first release */
    /* Up to seq_length they change nothing. */
    { "use_dynamic_ntk", NULL, "qwen" },
    { "use_logn_attn", NULL, "qwen" },
    { "use_mrope", "false", NULL },
    { "rope_interleaved", "false", NULL },
    { "rope_interleave", "false", NULL },
    { "rotary_pct", "1", NULL },
    /* Factors of parts of the model */
    { "embedding_multiplier", "1", NULL },
    { "residual_multiplier", "1", NULL },
    { "logits_scaling", "1", NULL },
    { "logit_scale", "1", NULL },
    { "scale_emb", "1", NULL },
    { "scale_attn_weights", "true", NULL },
    { "scale_attn_by_inverse_layer_idx", "false", NULL },
    /* Dropout, beside that which the family reads */
    { "attention_dropout", "0", NULL },
    { "attn_pdrop", "0", NULL },
    { "embd_pdrop", "0", NULL },
    { "embed_dropout", "0", NULL },
    { "hidden_dropout", "0", NULL },
    { "resid_dropout", "0", NULL },
    { "resid_pdrop", "0", NULL },
    { "residual_dropout", "0", NULL },
    /* Experts, in families that have none */
    { "output_router_logits", "false", NULL },
    { "router_jitter_noise", "0", NULL },
    { "num_experts", "0", NULL },
    { "num_local_experts", "0", NULL },
    /* Experts, in families that have them */
    { "moe_layer_freq", "1", NULL },
    { "scoring_func", "softmax", "deepseek" },
    { "topk_method", "greedy", "deepseek" },
    { "routed_scaling_factor", "1", "deepseek" },
    { "scoring_func", "sigmoid|noaux_tc", "dots1" },
    { "topk_method", "noaux_tc", "dots1" },
    { "aux_loss_alpha", NULL, "dots1" }, /* no loss balances them, but the router's bias */
    { "seq_aux", NULL, "dots1" },
    { "output_router_logits", NULL, "dots1" },
    { "num_nextn_predict_layers", "0", NULL },
    { "ep_size", NULL, "deepseek|dots1" },
};

/* Known keys of rope_parameters and rope_scaling, of any type. */
static const char *const rope_keys[] = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "partial_rotary_factor",
    "finetuned",
};

#define NEIGHBOURS \
    "its RoPE rotates adjacent pairs of elements (interleaved), not the two halves of a head"
#define GEMMA "its norms multiply by 1 + weight, and its embeddings are scaled by sqrt(hidden_size)"

#define MLA "its attention is MLA (multi-head latent attention: keys and values of low rank)"
#define PARTIAL "its RoPE rotates a part of each head (partial_rotary_factor)"

static const struct {
    const char *model_type, *difference;
} differences[] = {
    { "cohere", NEIGHBOURS },
    { "cohere2", NEIGHBOURS },
    { "ernie4_5", NEIGHBOURS },
    { "ernie4_5_moe", NEIGHBOURS },
    { "glm", NEIGHBOURS },
    { "glm4", NEIGHBOURS },
    { "helium", NEIGHBOURS },
    { "gemma", GEMMA },
    { "gemma2", GEMMA },
    { "gemma3_text", GEMMA },
    { "deepseek_v2", MLA },
    { "deepseek_v3", MLA },
    { "deepseek_v32", MLA },
    { "glm4_moe_lite", MLA },
    { "kimi_k2", MLA },
    { "longcat_flash", MLA },
    { "glm4_moe", PARTIAL },
    { "minimax_m2", PARTIAL },
    { "smollm3", "every fourth layer has no RoPE, unless no_rope_layers says otherwise" },
};

#define N_ITEMS(table) (sizeof(table) / sizeof *(table))

/* Whether a word is one of those separated by "|". */
static int is_among(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = words; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strcspn(at, "|") == n && !strncmp(at, word, n))
            return 1;
    return 0;
}

int hf_keys_has(const struct hf_keys *keys, const char *name)
{
    for (int i = 0; i < keys->n; i++)
        if (is_among(keys->names[i], name))
            return 1;
    return 0;
}

void hf_keys_add(struct hf_keys *keys, const char *names)
{
    for (int i = 0; i < keys->n; i++)
        if (!strcmp(keys->names[i], names))
            return;
    CHECK(keys->n < HF_KEYS_MAX);
    keys->names[keys->n++] = names;
}

/* Whether a scalar is one of these values; lists and objects are not. */
static int has_value(const cJSON *item, const char *values)
{
    char text[40];

    if (cJSON_IsBool(item))
        return is_among(values, cJSON_IsTrue(item) ? "true" : "false");
    if (cJSON_IsString(item))
        return is_among(values, item->valuestring);
    if (!cJSON_IsNumber(item))
        return 0;
    snprintf(text, sizeof text, "%.17g", item->valuedouble);
    return is_among(values, text);
}

int hf_key_is_harmless(const cJSON *item, const char *family)
{
    int is_list = cJSON_IsArray(item) || cJSON_IsObject(item);

    if (*item->string == '_' || cJSON_IsNull(item) || (is_list && !item->child))
        return 1;
    for (size_t i = 0; i < N_ITEMS(harmless); i++)
        if (!strcmp(item->string, harmless[i]))
            return 1;
    for (size_t i = 0; i < N_ITEMS(neutral); i++)
        if (!strcmp(item->string, neutral[i].key) &&
            (!neutral[i].families || is_among(neutral[i].families, family)) &&
            (!neutral[i].values || has_value(item, neutral[i].values)))
            return 1;
    return 0;
}

int hf_rope_key_is_read(const char *name)
{
    for (size_t i = 0; i < N_ITEMS(rope_keys); i++)
        if (!strcmp(name, rope_keys[i]))
            return 1;
    return 0;
}

const char *hf_type_difference(const char *model_type)
{
    for (size_t i = 0; i < N_ITEMS(differences); i++)
        if (!strcmp(model_type, differences[i].model_type))
            return differences[i].difference;
    return NULL;
}
