/*
 * hf_config_test.c - config.json of both spellings, read and written (refusals: hf_refusals_test.c)
 */
#include "hf_rig.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_llama(void **state)
{
    static const char *const spellings[] = {
        /* transformers 4 */
        LLAMA ", \"num_key_value_heads\": 4, \"rope_theta\": 500000.0, \"rope_scaling\": null, "
              "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"head_dim\": 64}",
        /* transformers 5 */
        LLAMA
        ", \"num_key_value_heads\": 4, \"rope_parameters\": {\"rope_theta\": 500000.0, "
        "\"rope_type\": \"default\"}, \"tie_word_embeddings\": true, \"dtype\": \"bfloat16\", "
        "\"head_dim\": null}",
    };
    struct rig *r = *state;
    const struct model_spec *m;

    for (int i = 0; i < 2; i++) {
        m = must_read_config(r, spellings[i]);
        assert_string_equal(m->name, strrchr(r->folder, '/') + 1);
        assert_int_equal(model_spec_n_parameters(m), 100092672);
        assert_int_equal(m->n_kv_heads, 4);
        assert_int_equal(m->head_dim, 64);
        assert_int_equal(m->max_seq_len, 4096);
        assert_true(m->rope_theta == 500000.0);
        assert_true(m->norm_eps == 1e-6 && m->init_std == 0.01);
        assert_int_equal(m->norm, NORM_RMS);
        assert_int_equal(m->position, POSITION_ROPE);
        assert_int_equal(m->activation, ACTIVATION_SWIGLU);
        assert_false(m->bias);
    }
    /* What transformers takes for absent keys. */
    m = must_read_config(r, LLAMA "}");
    assert_int_equal(m->n_kv_heads, 12);
    assert_int_equal(m->head_dim, 64);
    assert_false(m->tied_embeddings);
    assert_true(m->rope_theta == 10000.0);
}

static void test_gpt2(void **state)
{
    struct rig *r = *state;
    const struct model_spec *m;

    m = must_read_config(r, GPT2 ", \"n_inner\": null}");
    assert_int_equal(model_spec_n_parameters(m), 124439808);
    assert_int_equal(m->norm, NORM_LAYER);
    assert_int_equal(m->position, POSITION_LEARNED);
    assert_int_equal(m->activation, ACTIVATION_GELU);
    assert_true(m->bias && m->tied_embeddings);
    assert_true(m->dropout == 0.1 && m->attention_dropout == 0.2);
    m = must_read_config(r, GPT2 ", \"n_inner\": 1000}");
    assert_int_equal(m->ffn_size, 1000);
}

static void test_windows(void **state)
{
    static const struct {
        const char *text;
        int window, first_layer, period;
    } rows[] = {
        { FAMILY("mistral") LLAMA_SHAPE "}", 4096, 0, 0 },
        { FAMILY("mistral") LLAMA_SHAPE ", \"sliding_window\": null}", 0, 0, 0 },
        { FAMILY("mistral") LLAMA_SHAPE ", \"sliding_window\": 1024}", 1024, 0, 0 },
        { FAMILY("qwen2") LLAMA_SHAPE ", \"sliding_window\": 512, \"max_window_layers\": 3}", 0, 0,
          0 },
        { FAMILY("qwen2") LLAMA_SHAPE ", \"use_sliding_window\": true, \"sliding_window\": 512, "
                                      "\"max_window_layers\": 3}",
          512, 3, 0 },
        /* Of 12 layers none is behind the 28th. */
        { FAMILY("qwen2") LLAMA_SHAPE ", \"use_sliding_window\": true, \"sliding_window\": 512}", 0,
          0, 0 },
        { QWEN3 ", \"use_sliding_window\": true, \"max_window_layers\": 0}", 4096, 0, 0 },
        { QWEN3 ", \"use_sliding_window\": true, \"sliding_window\": null, "
                "\"max_window_layers\": 0}",
          0, 0, 0 },
        /* transformers 5 */
        { QWEN3_OF_FOUR
          ", \"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": "
          "7, " LAYER_TYPES(FULL ", " SLIDING ", " SLIDING ", " SLIDING) "}",
          64, 1, 0 },
        { QWEN3_OF_FOUR ", \"use_sliding_window\": false, \"sliding_window\": null, " LAYER_TYPES(
              FULL ", " FULL ", " FULL ", " FULL) "}",
          0, 0, 0 },
        { QWEN3_OF_FOUR ", \"use_sliding_window\": true, \"sliding_window\": 64, " LAYER_TYPES(
              SLIDING ", " FULL ", " SLIDING ", " FULL) "}",
          64, 0, 2 },
        { QWEN3_OF_FOUR ", \"use_sliding_window\": true, \"sliding_window\": 64, " LAYER_TYPES(
              FULL ", " SLIDING ", " SLIDING ", " FULL) "}",
          64, 1, 3 },
    };
    struct rig *r = *state;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct model_spec *m = must_read_config(r, rows[i].text);

        if (m->window != rows[i].window || m->window_first_layer != rows[i].first_layer ||
            m->window_period != rows[i].period)
            fail_msg("%s\ngave window %d from layer %d on, period %d", rows[i].text, m->window,
                     m->window_first_layer, m->window_period);
    }
}

static void test_qwen3_and_bloom(void **state)
{
    struct rig *r = *state;
    const struct model_spec *m;

    m = must_read_config(r, QWEN3 ", \"head_dim\": 96, \"attention_bias\": true}");
    assert_true(m->qk_norm);
    assert_int_equal(m->head_dim, 96);
    assert_int_equal(m->attention_bias, ATTENTION_BIAS_ALL);
    m = must_read_config(r, QWEN3 "}");
    assert_int_equal(m->head_dim, 128);
    /* The 7.1B's and the 176B's. */
    m = must_read_config(r, BLOOM ", \"hidden_size\": 4096, \"n_head\": 32, \"n_layer\": 30}");
    assert_int_equal(model_spec_n_parameters(m), 7069016064);
    assert_int_equal(m->position, POSITION_ALIBI);
    assert_true(m->embedding_norm && m->bias && m->tied_embeddings);
    assert_int_equal(m->max_seq_len, 2048);
    m = must_read_config(r, BLOOM
                         ", \"n_embed\": 14336, \"num_attention_heads\": 112, \"n_layer\": 70, "
                         "\"seq_length\": 1024}");
    assert_int_equal(model_spec_n_parameters(m), 176247271424);
    assert_int_equal(m->max_seq_len, 1024);
}

/* A layer's place among those with experts, and what is minimised besides the loss. */
static void test_experts(void **state)
{
    static const struct {
        const char *text;
        int n_experts, n_active, ffn, every, normalize;
        double balance;
    } rows[] = {
        { MIXTRAL "}", 8, 2, 2048, 1, 1, 0 },
        { MIXTRAL ", \"num_local_experts\": 6, \"num_experts_per_tok\": 3, "
                  "\"output_router_logits\": true, \"router_aux_loss_coef\": 0.02}",
          6, 3, 2048, 1, 1, 0.005 },
        { QWEN3_MOE "}", 128, 8, 96, 1, 0, 0 },
        { QWEN3_MOE ", \"num_experts\": 16, \"num_experts_per_tok\": 4, \"norm_topk_prob\": true, "
                    "\"decoder_sparse_step\": 3, \"mlp_only_layers\": []}",
          16, 4, 96, 3, 1, 0 },
        { QWEN3_MOE ", \"num_local_experts\": 16, \"mlp_only_layers\": [0, 2, 4, 6, 8, 10], "
                    "\"output_router_logits\": true}",
          16, 8, 96, 2, 0, 0.001 * 8 / 6 },
    };
    struct rig *r = *state;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct model_spec *m = must_read_config(r, rows[i].text);

        assert_int_equal(m->n_experts, rows[i].n_experts);
        assert_int_equal(m->n_active_experts, rows[i].n_active);
        assert_int_equal(m->expert_ffn_size, rows[i].ffn);
        assert_int_equal(m->expert_every, rows[i].every);
        assert_int_equal(m->router_normalize, rows[i].normalize);
        assert_true(fabs(m->router_balance - rows[i].balance) < 1e-12);
        assert_int_equal(m->router_balance_kind,
                         rows[i].balance > 0 ? ROUTER_BALANCE_POOLED : ROUTER_BALANCE_PER_LAYER);
        assert_int_equal(has_note(&r->job, "model.router_balance_kind = pooled (output_router_"),
                         rows[i].balance > 0);
        assert_int_equal(m->qk_norm, i > 1);
    }
}

/* What beside Mixtral's and Qwen3's they have. */
static void test_shared_experts(void **state)
{
    static const struct {
        const char *text;
        int n_experts, n_active, shared, gate, first_dense, every, groups, kept, bias;
        enum router_score score;
        double scaling, balance;
        enum router_balance_kind kind;
    } rows[] = {
        { QWEN2_MOE "}", 60, 4, 5632, 1, 0, 1, 1, 1, 0, ROUTER_SOFTMAX, 1, 0, 0 },
        { QWEN2_MOE ", \"num_experts\": 8, \"shared_expert_intermediate_size\": 200, "
                    "\"mlp_only_layers\": [0, 1], \"output_router_logits\": true, "
                    "\"router_aux_loss_coef\": 0.05}",
          8, 4, 200, 1, 2, 1, 1, 1, 0, ROUTER_SOFTMAX, 1, 0.05 * 4 / 10, ROUTER_BALANCE_POOLED },
        { QWEN2_MOE ", \"num_experts\": 8, \"decoder_sparse_step\": 2, "
                    "\"mlp_only_layers\": [1, 3, 4, 40]}",
          8, 4, 5632, 1, 5, 2, 1, 1, 0, ROUTER_SOFTMAX, 1, 0, 0 },
        { DEEPSEEK "}", 16, 4, 192, 0, 0, 1, 1, 1, 0, ROUTER_SOFTMAX, 1, 0.001,
          ROUTER_BALANCE_PER_SEQUENCE },
        { DEEPSEEK ", \"first_k_dense_replace\": 1, \"aux_loss_alpha\": 0.02, \"seq_aux\": false}",
          16, 4, 192, 0, 1, 1, 1, 1, 0, ROUTER_SOFTMAX, 1, 0.02, ROUTER_BALANCE_PER_LAYER },
        { DEEPSEEK ", \"aux_loss_alpha\": 0.0, \"moe_layer_freq\": 1}", 16, 4, 192, 0, 0, 1, 1, 1,
          0, ROUTER_SOFTMAX, 1, 0, 0 },
        { DOTS1 ", \"first_k_dense_replace\": 3, \"routed_scaling_factor\": 2.5, \"n_group\": 4, "
                "\"topk_group\": 2}",
          16, 4, 192, 0, 3, 1, 4, 2, 1, ROUTER_SIGMOID, 2.5, 0, 0 },
    };
    struct rig *r = *state;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct model_spec *m = must_read_config(r, rows[i].text);

        assert_int_equal(m->n_experts, rows[i].n_experts);
        assert_int_equal(m->n_active_experts, rows[i].n_active);
        assert_int_equal(m->expert_ffn_size, 96);
        assert_int_equal(m->ffn_size, 2048);
        assert_int_equal(m->shared_ffn_size, rows[i].shared);
        assert_int_equal(m->shared_gate, rows[i].gate);
        assert_int_equal(m->first_dense_layers, rows[i].first_dense);
        assert_int_equal(m->expert_every, rows[i].every);
        assert_int_equal(m->router_groups, rows[i].groups);
        assert_int_equal(m->router_groups_kept, rows[i].kept);
        assert_int_equal(m->router_bias, rows[i].bias);
        assert_int_equal(m->router_score, rows[i].score);
        assert_int_equal(m->router_normalize, 0);
        assert_true(fabs(m->router_scaling - rows[i].scaling) < 1e-12);
        assert_true(fabs(m->router_balance - rows[i].balance) < 1e-12);
        assert_int_equal(m->router_balance_kind, rows[i].kind);
        assert_int_equal(m->qk_norm, rows[i].bias);
        assert_int_equal(m->attention_bias, rows[i].gate ? ATTENTION_BIAS_QKV : 0);
    }
    assert_int_equal(must_read_config(r, QWEN2_MOE ", \"qkv_bias\": false}")->attention_bias,
                     ATTENTION_BIAS_NONE);
    /* A single expert keeps its probability, whatever is said. */
    assert_int_equal(must_read_config(r, DEEPSEEK ", \"norm_topk_prob\": true}")->router_normalize,
                     1);
    assert_int_equal(must_read_config(r, FAMILY("deepseek") LLAMA_SHAPE
                                      ", \"n_routed_experts\": 4, \"num_experts_per_tok\": 1, "
                                      "\"norm_topk_prob\": true}")
                         ->router_normalize,
                     0);
}

static void test_baichuan(void **state)
{
    static const struct {
        const char *text;
        int position, normalized;
        int64_t n_parameters;
    } rows[] = {
        { FAMILY("baichuan") "\"vocab_size\": 64000, \"hidden_size\": 4096, "
                             "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, "
                             "\"intermediate_size\": 11008, \"max_position_embeddings\": 4096}",
          POSITION_ROPE, 0, 7000559616 },
        { FAMILY("baichuan") "\"vocab_size\": 64000, " BAICHUAN_SHAPE "}", POSITION_ALIBI, 0,
          13264901120 },
        { FAMILY("baichuan") "\"vocab_size\": 125696, " BAICHUAN_SHAPE "}", POSITION_ALIBI, 1,
          13896668160 },
        /* With tokens of one's own; only the second generation knows this key. */
        { FAMILY("baichuan") "\"vocab_size\": 125700, \"z_loss_weight\": 0, " BAICHUAN_SHAPE "}",
          POSITION_ALIBI, 1, 13896709120 },
    };
    struct rig *r = *state;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct model_spec *m = must_read_config(r, rows[i].text);

        assert_int_equal(m->position, rows[i].position);
        assert_int_equal(m->normalized_head, rows[i].normalized);
        assert_int_equal(m->max_seq_len, 4096);
        assert_int_equal(model_spec_n_parameters(m), rows[i].n_parameters);
    }
}

static void test_qwen(void **state)
{
    const struct model_spec *m =
        must_read_config(*state, QWEN ", \"intermediate_size\": 22016, \"rotary_pct\": 1.0}");

    assert_int_equal(model_spec_n_parameters(m), 7721324544);
    assert_int_equal(m->attention_bias, ATTENTION_BIAS_QKV);
    assert_int_equal(m->max_seq_len, 2048);
    m = must_read_config(*state, QWEN ", \"intermediate_size\": 64, \"no_bias\": false}");
    assert_int_equal(m->bias, 1);
}

/* What becomes a family's config.json reads back as the same model. */
static void test_printed(void **state)
{
    static const struct {
        const char *family, *text;
    } rows[] = {
        { "llama", LLAMA ", \"num_key_value_heads\": 4, \"attention_bias\": true, "
                         "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                         "\"original_max_position_embeddings\": 1024}}" },
        { "gpt2", GPT2 ", \"n_inner\": 1000}" },
        { "gpt2", GPT2 ", \"embd_pdrop\": 0.0}" },
        { "qwen2", FAMILY("qwen2") LLAMA_SHAPE "}" },
        { "qwen2", FAMILY("qwen2") LLAMA_SHAPE
          ", \"use_sliding_window\": true, \"sliding_window\": 512, \"max_window_layers\": 3}" },
        { "mistral", FAMILY("mistral") LLAMA_SHAPE ", \"sliding_window\": 1024}" },
        { "qwen3", QWEN3 ", \"attention_bias\": true, \"tie_word_embeddings\": true}" },
        { "qwen3", QWEN3 ", \"use_sliding_window\": true, \"max_window_layers\": 7}" },
        { "qwen3",
          QWEN3_OF_FOUR ", \"use_sliding_window\": true, \"sliding_window\": 64, " LAYER_TYPES(
              FULL ", " SLIDING ", " FULL ", " SLIDING) "}" },
        { "mixtral", MIXTRAL ", \"sliding_window\": 1024, \"output_router_logits\": true}" },
        { "qwen3_moe", QWEN3_MOE ", \"attention_bias\": true, \"decoder_sparse_step\": 2}" },
        { "qwen3_moe", QWEN3_MOE ", \"norm_topk_prob\": true, \"use_sliding_window\": true, "
                                 "\"sliding_window\": 100, \"tie_word_embeddings\": true}" },
        { "qwen3_moe", QWEN3_MOE ", \"mlp_only_layers\": [0, 1, 2]}" },
        { "qwen2_moe", QWEN2_MOE ", \"output_router_logits\": true}" },
        { "qwen2_moe", QWEN2_MOE ", \"decoder_sparse_step\": 2, \"mlp_only_layers\": [1]}" },
        { "qwen2_moe",
          FAMILY("qwen2_moe") "\"num_hidden_layers\": 4, " LLAMA_SHAPE
                              ", \"moe_intermediate_size\": 96, \"use_sliding_window\": "
                              "true, " LAYER_TYPES(FULL ", " FULL ", " SLIDING ", " SLIDING) "}" },
        { "dots1", DOTS1 "}" },
        { "dots1", DOTS1 ", \"norm_topk_prob\": true, \"n_group\": 4, \"topk_group\": 2, "
                         "\"routed_scaling_factor\": 2.5, \"first_k_dense_replace\": 1, "
                         "\"sliding_window\": 77, \"max_window_layers\": 3}" },
        { "bloom", BLOOM ", \"hidden_size\": 64, \"n_head\": 4, \"n_layer\": 2}" },
        { "bloom",
          BLOOM ", \"hidden_size\": 64, \"n_head\": 4, \"n_layer\": 2, \"hidden_dropout\": 0.1}" },
    };
    struct rig *r = *state;
    struct model_spec m;
    struct str out = { 0 };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memcpy(&m, must_read_config(r, rows[i].text), sizeof m);
        const char *family = hf_config_family_of(&m, &r->err);
        assert_string_equal(family ? family : r->err.text, rows[i].family);
        str_clear(&out);
        if (hf_config_print(&m, rows[i].family, DTYPE_BF16, &out, &r->err))
            fail_msg("%s", r->err.text);
        if (memcmp(&m, must_read_config(r, str_text(&out)), sizeof m) != 0)
            fail_msg("%s\nis another model than\n%s", str_text(&out), rows[i].text);
    }
    /* Nobody has all of these together. */
    m.normalized_head = 1;
    assert_null(hf_config_family_of(&m, &r->err));
    assert_non_null(strstr(r->err.text, "the nearest is bloom, which has no model.normalized_head "
                                        "true"));
    assert_int_equal(hf_config_print(&m, "bloom", DTYPE_F32, &out, &r->err), -1);
    assert_non_null(strstr(r->err.text, "bloom models cannot have the architecture of"));
    str_release(&out);
}

#define SMALL_LLAMA \
    "\"hidden_act\": \"silu\", \"hidden_size\": 64, \"initializer_range\": 0.02, " \
    "\"intermediate_size\": 128, \"num_attention_heads\": 4, \"num_hidden_layers\": 2, " \
    "\"rms_norm_eps\": 1e-05, \"use_cache\": true, \"vocab_size\": 128"

/* The keys of published models, their shapes made small: none of them is refused. */
static const char *const published[] = {
    /* SmolLM2 */
    FAMILY("llama") SMALL_LLAMA
    ", \"is_llama_config\": true, \"rope_interleaved\": false, "
    "\"transformers.js_config\": {\"dtype\": \"q4\", \"kv_cache_dtype\": {\"q4f16\": "
    "\"float16\"}}, \"pretraining_tp\": 1, \"rope_scaling\": null, \"bos_token_id\": 1, "
    "\"transformers_version\": \"4.42.3\"}",
    /* Llama 2, finetuned by others */
    FAMILY("llama") SMALL_LLAMA
    ", \"_name_or_path\": \"a/b\", \"max_length\": 4096, "
    "\"pad_token_id\": 0, \"pretraining_tp\": 2, \"max_sequence_length\": 2048, "
    "\"temperature\": 0.9, \"top_p\": 0.6, \"unsloth_version\": \"2024.9\", "
    "\"eos_token_id\": [128001, 128008], \"mlp_bias\": false}",
    /* Qwen2.5 */
    FAMILY("qwen2") SMALL_LLAMA
    ", \"attention_dropout\": 0.0, \"max_window_layers\": 28, "
    "\"sliding_window\": 131072, \"use_sliding_window\": false, \"use_mrope\": false, "
    "\"rope_theta\": 1e6}",
    /* Qwen3-30B-A3B */
    FAMILY("qwen3_moe") SMALL_LLAMA ", \"max_window_layers\": 48, \"sliding_window\": null, "
                                    "\"use_sliding_window\": false, \"moe_intermediate_size\": "
                                    "32, \"mlp_only_layers\": []}",
    /* Qwen1.5-MoE-A2.7B */
    FAMILY("qwen2_moe") SMALL_LLAMA
    ", \"decoder_sparse_step\": 1, \"max_window_layers\": 21, \"moe_intermediate_size\": 32, "
    "\"norm_topk_prob\": false, \"output_router_logits\": false, \"router_aux_loss_coef\": 0.001, "
    "\"shared_expert_intermediate_size\": 128, \"sliding_window\": 32768, "
    "\"use_sliding_window\": false, \"num_experts\": 6, \"num_experts_per_tok\": 2}",
    /* DeepSeek-MoE 16B */
    FAMILY("deepseek") SMALL_LLAMA
    ", \"attention_bias\": false, \"aux_loss_alpha\": 0.001, \"first_k_dense_replace\": 1, "
    "\"moe_intermediate_size\": 32, \"moe_layer_freq\": 1, \"n_routed_experts\": 8, "
    "\"n_shared_experts\": 2, \"norm_topk_prob\": false, \"num_experts_per_tok\": 3, "
    "\"pretraining_tp\": 1, \"rope_scaling\": null, \"scoring_func\": \"softmax\", "
    "\"seq_aux\": true}",
    /* dots.llm1 */
    FAMILY("dots1") SMALL_LLAMA
    ", \"attention_bias\": false, \"first_k_dense_replace\": 1, \"moe_intermediate_size\": 32, "
    "\"moe_layer_freq\": 1, \"n_group\": 1, \"n_routed_experts\": 8, \"n_shared_experts\": 2, "
    "\"norm_topk_prob\": true, \"num_experts_per_tok\": 3, \"pretraining_tp\": 1, "
    "\"routed_scaling_factor\": 2.5, \"scoring_func\": \"noaux_tc\", \"sliding_window\": null, "
    "\"max_window_layers\": 62, \"topk_group\": 1, \"topk_method\": \"noaux_tc\"}",
    /* Qwen */
    FAMILY("qwen") "\"vocab_size\": 128, \"hidden_size\": 64, \"num_hidden_layers\": 2, "
                   "\"num_attention_heads\": 4, \"intermediate_size\": 128"
                   ", \"auto_map\": {\"AutoConfig\": \"a.B\"}, \"bf16\": false, "
                   "\"fp16\": false, \"fp32\": false, \"attn_dropout_prob\": 0.0, \"kv_channels\": "
                   "16, "
                   "\"emb_dropout_prob\": 0.0, \"layer_norm_epsilon\": 1e-06, \"no_bias\": true, "
                   "\"max_position_embeddings\": 8192, \"onnx_safe\": null, \"rotary_emb_base\": "
                   "10000, "
                   "\"rotary_pct\": 1.0, \"scale_attn_weights\": true, \"seq_length\": 8192, "
                   "\"tokenizer_class\": \"QWenTokenizer\", \"use_dynamic_ntk\": true, "
                   "\"use_flash_attn\": \"auto\", \"use_logn_attn\": true, \"softmax_in_fp32\": "
                   "false, "
                   "\"use_cache_quantization\": false, \"use_cache_kernel\": false}",
    /* Baichuan2-7B */
    FAMILY("baichuan") SMALL_LLAMA
    ", \"_from_model_config\": true, \"z_loss_weight\": 0, "
    "\"model_max_length\": 4096, \"max_position_embeddings\": 4096, "
    "\"gradient_checkpointing\": false, \"tie_word_embeddings\": false}",
    /* InternLM2 */
    FAMILY("internlm2") SMALL_LLAMA ", \"attn_implementation\": \"eager\", \"bias\": false, "
                                    "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}",
    /* BLOOM-7B1 */
    FAMILY("bloom") "\"vocab_size\": 128, \"n_embed\": 64, \"num_attention_heads\": 4, "
                    "\"n_layer\": 2, \"apply_residual_connection_post_layernorm\": false, "
                    "\"attention_dropout\": 0.0, \"attention_softmax_in_fp32\": true, "
                    "\"pretraining_tp\": 4, "
                    "\"bias_dropout_fusion\": true, \"hidden_dropout\": 0.0, "
                    "\"initializer_range\": 0.02, "
                    "\"layer_norm_epsilon\": 1e-05, \"masked_softmax_fusion\": true, "
                    "\"n_inner\": null, "
                    "\"offset_alibi\": 100, \"seq_length\": 2048, \"skip_bias_add\": true, "
                    "\"skip_bias_add_qkv\": false, \"unk_token_id\": 0, \"use_cache\": false}",
    /* GPT-2 */
    GPT2 ", \"n_special\": 0, \"predict_special_tokens\": true, \"output_past\": true, "
         "\"n_ctx\": 1024, \"embd_pdrop\": 0.1, \"summary_activation\": null, "
         "\"summary_first_dropout\": 0.1, \"summary_proj_to_labels\": true, "
         "\"summary_type\": \"cls_index\", \"summary_use_proj\": true, "
         "\"task_specific_params\": {\"text-generation\": {\"do_sample\": true}}}",
};

static void test_published(void **state)
{
    const struct model_spec *m;

    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        must_read_config(*state, published[i]);
    /* InternLM's first generation */
    m = must_read_config(*state, FAMILY("internlm") SMALL_LLAMA
                         ", \"bias\": true, \"rotary\": "
                         "{\"base\": 20000, \"type\": \"dynamic\"}}");
    assert_true(m->rope_theta == 20000 && m->rope_scaling.type == ROPE_DYNAMIC);
    assert_true(m->rope_scaling.factor == 1);
    m = must_read_config(*state,
                         FAMILY("internlm") SMALL_LLAMA ", \"bias\": true, \"rotary\": "
                                                        "{\"base\": 500, \"type\": \"origin\"}}");
    assert_true(m->rope_theta == 500 && m->rope_scaling.type == ROPE_PLAIN);
}

static void test_disk_wins(void **state)
{
    static const char text[] =
        "vocab_size: 11\nhidden_size: 8\nn_layers: 1\nn_heads: 1\nffn_size: 8\n";
    static const char wrong[] = "vocab_size: 11\nhiden_size: 8\n";
    struct rig *r = *state;
    struct job *j = &r->job;
    char *here = getcwd(NULL, 0);

    assert_int_equal(chdir(r->folder), 0);
    assert_int_equal(file_make_folders("configs/models", &r->err), 0);
    must_read(j, SMALL, &r->arena);
    assert_int_equal(j->model.vocab_size, 256);
    assert_int_equal(file_write("configs/models/llama-tiny.yaml", text, sizeof text - 1, &r->err),
                     0);
    must_read(j, SMALL, &r->arena);
    assert_int_equal(j->model.vocab_size, 11);
    assert_string_equal(j->model.name, "llama-tiny");
    assert_int_equal(file_write("configs/models/llama-tiny.yaml", wrong, sizeof wrong - 1, &r->err),
                     0);
    assert_int_equal(read_job(j, SMALL, &r->arena, &r->err), -1);
    assert_string_equal(r->err.text,
                        "configs/models/llama-tiny.yaml:2:1: unknown key model.hiden_size "
                        "(hint: model.hidden_size)");
    assert_int_equal(file_write("configs/models/llama-tiny.yaml", "[1]", 3, &r->err), 0);
    assert_int_equal(read_job(j, SMALL, &r->arena, &r->err), -1);
    assert_string_equal(r->err.text,
                        "configs/models/llama-tiny.yaml:1:1: a model is a map of fields");
    assert_int_equal(file_write("configs/models/llama-tiny.yaml", "a: *b", 5, &r->err), 0);
    assert_int_equal(read_job(j, SMALL, &r->arena, &r->err), -1);
    assert_non_null(strstr(r->err.text, "configs/models/llama-tiny.yaml:1:4: alias *b"));
    assert_int_equal(chdir(here), 0);
    free(here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(test_llama),           ON_RIG(test_gpt2),      ON_RIG(test_windows),
        ON_RIG(test_qwen3_and_bloom), ON_RIG(test_baichuan),  ON_RIG(test_experts),
        ON_RIG(test_shared_experts),  ON_RIG(test_printed),   ON_RIG(test_qwen),
        ON_RIG(test_disk_wins),       ON_RIG(test_published),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
