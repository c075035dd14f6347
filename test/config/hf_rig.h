/*
 * hf_rig.h - a job whose model is a folder with a given config.json, and texts of such files
 */
#ifndef TEST_CONFIG_HF_RIG_H
#define TEST_CONFIG_HF_RIG_H

#include "config_fixture.h"

#include "base/file.h"
#include "config/hf_config.h"
#include "support/temporary.h"

/* What each test has: a folder for a config.json, and where its job is read to. */
struct rig {
    char folder[256];
    struct arena arena;
    struct err err;
    struct job job;
};

static inline int rig_make(void **state)
{
    struct rig *r = *state = calloc(1, sizeof *r);

    return r ? temporary_folder(r->folder, sizeof r->folder) : -1;
}

static inline int rig_remove(void **state)
{
    struct rig *r = *state;
    int rc = file_remove_tree(r->folder, &r->err);

    arena_release(&r->arena);
    free(r);
    return rc;
}

/* Read a job whose model is the folder with this config.json. */
static inline int read_config(struct rig *r, const char *text)
{
    const char *job_text =
        arena_printf(&r->arena, "model: %s/\ndata: {train: a}\ntrain: {steps: 1}\n", r->folder);
    const char *path = arena_printf(&r->arena, "%s/config.json", r->folder);

    r->err = (struct err){ 0 };
    assert_int_equal(file_write(path, text, strlen(text), &r->err), 0);
    return read_job(&r->job, job_text, &r->arena, &r->err);
}

/* Its model, until the next. */
static inline const struct model_spec *must_read_config(struct rig *r, const char *text)
{
    if (read_config(r, text))
        fail_msg("%s\n%s", text, r->err.text);
    return &r->job.model;
}

#define ON_RIG(test) cmocka_unit_test_setup_teardown(test, rig_make, rig_remove)

#define LLAMA_SHAPE \
    "\"vocab_size\": 32000, \"hidden_size\": 768, \"num_hidden_layers\": 12, " \
    "\"num_attention_heads\": 12, \"intermediate_size\": 2048, \"max_position_embeddings\": " \
    "4096, " \
    "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-06, \"initializer_range\": 0.01"
#define LLAMA "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", " LLAMA_SHAPE
#define GPT2 \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50257, \"n_embd\": 768, \"n_layer\": 12, " \
    "\"n_head\": 12, \"n_positions\": 1024, \"layer_norm_epsilon\": 1e-05, " \
    "\"activation_function\": \"gelu_new\", \"resid_pdrop\": 0.1, \"attn_pdrop\": 0.2"

#define FAMILY(name) "{\"model_type\": \"" name "\", "
#define QWEN3 FAMILY("qwen3") LLAMA_SHAPE
#define BLOOM \
    FAMILY("bloom") \
    "\"vocab_size\": 250880, \"layer_norm_epsilon\": 1e-05, \"initializer_range\": 0.02"
#define BAICHUAN_SHAPE \
    "\"hidden_size\": 5120, \"num_hidden_layers\": 40, \"num_attention_heads\": 40, " \
    "\"intermediate_size\": 13696, \"hidden_act\": \"silu\", \"model_max_length\": 4096"
#define QWEN3_OF_FOUR \
    FAMILY("qwen3") "\"num_hidden_layers\": 4, " LLAMA_SHAPE /* the first counts */
#define LAYER_TYPES(types) "\"layer_types\": [" types "]"
#define FULL "\"full_attention\""
#define SLIDING "\"sliding_attention\""

#define MIXTRAL FAMILY("mixtral") LLAMA_SHAPE
#define QWEN3_MOE FAMILY("qwen3_moe") LLAMA_SHAPE ", \"moe_intermediate_size\": 96"
#define QWEN2_MOE FAMILY("qwen2_moe") LLAMA_SHAPE ", \"moe_intermediate_size\": 96"
#define DEEPSEEK_EXPERTS \
    ", \"moe_intermediate_size\": 96, \"n_routed_experts\": 16, \"num_experts_per_tok\": 4, " \
    "\"n_shared_experts\": 2"
#define DEEPSEEK FAMILY("deepseek") LLAMA_SHAPE DEEPSEEK_EXPERTS
#define DOTS1 FAMILY("dots1") LLAMA_SHAPE DEEPSEEK_EXPERTS

#define QWEN \
    FAMILY("qwen") \
    "\"vocab_size\": 151936, \"hidden_size\": 4096, \"num_hidden_layers\": 32, " \
    "\"num_attention_heads\": 32, \"kv_channels\": 128, \"seq_length\": 2048, " \
    "\"max_position_embeddings\": 8192, \"layer_norm_epsilon\": 1e-6"

#endif
