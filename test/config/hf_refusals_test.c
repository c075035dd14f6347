/*
 * hf_refusals_test.c - what a config.json may not say: each is refused by name
 */
#include "hf_rig.h"

/* Each config.json is refused with these words. */
static void refuse_all(struct rig *r, const char *const (*rows)[2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!read_config(r, rows[i][0]))
            fail_msg("no mistake in %s", rows[i][0]);
        if (!strstr(r->err.text, rows[i][1]))
            fail_msg("%s\ngave \"%s\"\nnot  \"%s\"", rows[i][0], r->err.text, rows[i][1]);
        assert_int_equal(r->err.code, ERR_CONFIG);
    }
}

/* A file in ./configs/models is asked before the one in the binary. */
static void test_refusals(void **state)
{
    static const char *const rows[][2] = {
        { MIXTRAL ", \"router_jitter_noise\": 0.1}", "router_jitter_noise is not built (hint: 0" },
        { MIXTRAL ", \"num_experts_per_tok\": 9}",
          "model.n_active_experts is 9, more than the 8 experts (hint: 8)" },
        { QWEN3_MOE ", \"decoder_sparse_step\": 0}", "decoder_sparse_step is not in 1..12" },
        { QWEN3_MOE ", \"mlp_only_layers\": [0, 1, 5]}",
          "mlp_only_layers: the MoE layers are not every N-th layer from a first one on" },
        { QWEN2_MOE ", \"decoder_sparse_step\": 2, \"mlp_only_layers\": [3]}",
          "mlp_only_layers: the MoE layers are not every N-th layer from a first one on" },
        { QWEN2_MOE ", \"decoder_sparse_step\": 12, \"mlp_only_layers\": [11]}",
          "mlp_only_layers: the MoE layers are not" },
        { QWEN2_MOE ", \"use_sliding_window\": true, \"max_window_layers\": 2}",
          "use_sliding_window without layer_types: which layers have a window depends" },
        { DEEPSEEK ", \"moe_layer_freq\": 2}", "moe_layer_freq is 2, which lmtrain does not read" },
        { DEEPSEEK ", \"kv_lora_rank\": 512}", "kv_lora_rank is 512, which lmtrain does not" },
        { DEEPSEEK ", \"scoring_func\": \"sigmoid\"}", "scoring_func is \"sigmoid\", which" },
        { DOTS1 ", \"scoring_func\": \"softmax\"}", "scoring_func is \"softmax\", which" },
        { DOTS1 ", \"n_group\": 3}", "model.router_groups is 3, does not divide n_experts 16" },
        { FAMILY("dots1") LLAMA_SHAPE ", \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, "
                                      "\"n_shared_experts\": 0}",
          "n_shared_experts is 0, but layers of dots1 have shared experts" },
        { FAMILY("deepseek_v3") LLAMA_SHAPE DEEPSEEK_EXPERTS "}",
          "model_type is deepseek_v3, not built yet: its attention is MLA (multi-head latent "
          "attention" },
        { FAMILY("DeepSeek_V2") LLAMA_SHAPE "}", "model_type is DeepSeek_V2, not built yet: its "
                                                 "attention is MLA" },
        { FAMILY("glm4_moe") LLAMA_SHAPE "}",
          "model_type is glm4_moe, not built yet: its RoPE rotates a part of each head" },
        { "", "config.json: not valid JSON" },
        { "{\"model_type\": ", "not valid JSON" },
        { "{\"model_type\": \"llama\"} x", "not valid JSON, from byte 23 on" },
        { "[]", "not a JSON object" },
        { "{}", "model_type is missing (hint: llama, gpt2, qwen2, " },
        { "{\"model_type\": \"llama\\u0000x\"}", "NUL byte" },
        { "{\"model_type\": 3}", "model_type is missing" },
        { "{\"model_type\": \"phi3\"}",
          "model_type is phi3, not built yet (hint: llama, gpt2, qwen2" },
        { "{\"model_type\": \"llama\"}", "hidden_size is missing" },
        { LLAMA ", \"head_dim\": [64]}", "head_dim is a list or an object" },
        { LLAMA ", \"num_key_value_heads\": 0}",
          "model.n_kv_heads is 0, not a whole number from 1" },
        { LLAMA ", \"num_key_value_heads\": 2.5}", "model.n_kv_heads is 2.5, not a whole number" },
        { LLAMA ", \"num_key_value_heads\": \"4\"}",
          "model.n_kv_heads is \"4\", not a whole number" },
        { LLAMA ", \"num_key_value_heads\": 1e999}", "model.n_kv_heads is infinite, not a whole" },
        { LLAMA ", \"num_key_value_heads\": 5}",
          "model.n_kv_heads is 5, does not divide n_heads 12" },
        { LLAMA ", \"tie_word_embeddings\": 1}", "model.tied_embeddings is 1, not true or false" },
        { LLAMA ", \"mlp_bias\": true}", "mlp_bias without attention_bias" },
        { "{\"model_type\": \"llama\", \"hidden_act\": \"gelu\"}",
          "hidden_act is gelu, which lmtrain does not have (hint: silu)" },
        { GPT2 ", \"embd_pdrop\": 0.3}", "embd_pdrop differs from resid_pdrop" },
        { GPT2 ", \"scale_attn_weights\": false}", "attention is scaled otherwise" },
        { GPT2 ", \"scale_attn_by_inverse_layer_idx\": true}", "attention is scaled otherwise" },
        { GPT2 ", \"add_cross_attention\": true}", "add_cross_attention" },
        { GPT2 ", \"n_inner\": -4}", "model.ffn_size is -4" },
        { "{\"model_type\": \"gpt2\", \"activation_function\": \"relu\"}",
          "activation_function is relu, which lmtrain does not have (hint: gelu_new)" },
    };

    refuse_all(*state, rows, sizeof rows / sizeof *rows);
}

static void test_family_refusals(void **state)
{
    static const char *const rows[][2] = {
        { FAMILY("mistral") LLAMA_SHAPE ", \"sliding_window\": -5}", "model.window is -5" },
        { FAMILY("mistral") LLAMA_SHAPE ", \"sliding_window\": [1]}",
          "sliding_window is a list or an object" },
        { QWEN3_OF_FOUR
          ", \"use_sliding_window\": true, " LAYER_TYPES(SLIDING ", " FULL ", " FULL ", " FULL) "}",
          "layer_types: full_attention of layer 2 is not built yet (hint: from the first layer "
          "with sliding_attention on, every N-th layer may have full_attention, or none)" },
        { QWEN3_OF_FOUR
          ", \"use_sliding_window\": true, " LAYER_TYPES(FULL ", " SLIDING ", " FULL ", " FULL) "}",
          "layer_types: full_attention of layer 3 is not built yet" },
        { QWEN3_OF_FOUR ", \"use_sliding_window\": true, " LAYER_TYPES(
              FULL ", \"chunked_attention\", " FULL ", " FULL) "}",
          "layer_types: chunked_attention of layer 1 is not built yet (hint: full_attention, "
          "sliding_attention)" },
        { QWEN3_OF_FOUR ", \"use_sliding_window\": true, " LAYER_TYPES(FULL ", " SLIDING) "}",
          "layer_types has 2 kinds, num_hidden_layers is 4" },
        { QWEN3_OF_FOUR ", " LAYER_TYPES(FULL ", " FULL ", " FULL ", " SLIDING) "}",
          "layer_types has sliding_attention, but use_sliding_window is false" },
        { FAMILY("baichuan") "\"vocab_size\": 64000, \"hidden_size\": 8, \"num_hidden_layers\": "
                             "1, \"num_attention_heads\": 1, \"intermediate_size\": 8}",
          "neither max_position_embeddings (rope) nor model_max_length (ALiBi) is given" },
        { FAMILY("baichuan") "\"vocab_size\": 64000, \"z_loss_weight\": 0.1, " BAICHUAN_SHAPE "}",
          "z_loss_weight is not built (hint: 0" },
        { BLOOM ", \"hidden_size\": 64, \"n_head\": 4, \"n_layer\": 2, "
                "\"apply_residual_connection_post_layernorm\": true}",
          "apply_residual_connection_post_layernorm is not built (hint: false" },
        { BLOOM ", \"hidden_size\": 64, \"n_head\": 4, \"n_layer\": 2, \"n_inner\": 100}",
          "n_inner is not 4 * hidden_size" },
        { QWEN "}", "intermediate_size is missing" },
        { QWEN ", \"intermediate_size\": 7}", "model.ffn_size is 3.5, not a whole number" },
        { QWEN ", \"intermediate_size\": 64, \"rotary_pct\": 0.5}",
          "rotary_pct is not built yet (hint: 1.0)" },
        { BLOOM ", \"n_head\": 4, \"n_layer\": 2}", "hidden_size is missing" },
        { FAMILY("internlm") LLAMA_SHAPE ", \"rotary\": {\"type\": \"x\"}}",
          "rotary.type is x, not built yet (hint: origin, dynamic)" },
        { FAMILY("qwen2") LLAMA_SHAPE ", \"residual_multiplier\": 0.2}",
          "residual_multiplier is 0.2, which lmtrain does not read" },
        { FAMILY("qwen2") LLAMA_SHAPE ", \"use_mrope\": true}", "use_mrope is true, which" },
        { LLAMA ", \"a\": 1, \"b\": 2, \"c\": {\"d\": \"e\"}}", "c is {\"d\":\"e\"}, which" },
    };

    refuse_all(*state, rows, sizeof rows / sizeof *rows);
}

static void test_rope_refusals(void **state)
{
    static const char *const rows[][2] = {
        { LLAMA ", \"rope_scaling\": {\"type\": \"linear\"}}", "rope scaling: factor is missing" },
        { LLAMA ", \"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2}}",
          "rope scaling longrope is not built yet (hint: linear, dynamic, llama3, yarn)" },
        { LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": \"2\"}}",
          "rope scaling: factor is not a number" },
        { LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}}",
          "model.rope_scaling.factor is 0.5, not a number from 1" },
        { LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}",
          "rope scaling: low_freq_factor is missing" },
        { LLAMA ", \"rope_scaling\": {\"factor\": 8}}", "rope_scaling has no type" },
        { LLAMA ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1e4}}",
          "rope scaling: factor is missing" },
        { LLAMA ", \"rope_scaling\": {\"type\": 3}}", "rope scaling of an unknown kind" },
        { LLAMA ", \"rope_theta\": [1]}", "rope_theta is not a number" },
        { LLAMA ", \"rope_theta\": 0}", "model.rope_theta is 0, not a number above 0" },
        { LLAMA ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}",
          "partial_rotary_factor" },
    };

    refuse_all(*state, rows, sizeof rows / sizeof *rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(test_refusals),
        ON_RIG(test_family_refusals),
        ON_RIG(test_rope_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
