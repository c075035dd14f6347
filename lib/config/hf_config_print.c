/*
 * hf_config_print.c - config.json for a model of ours
 */
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype_choices.h"
#include "base/file.h"
#include "base/num.h"
#include "config/fields_impl.h"
#include "config/hf_config.h"
#include "config/model_differences.h"

const char *hf_config_family(const char *folder, struct arena *arena, struct err *err)
{
    const char *path = arena_printf(arena, "%s/config.json", folder), *family = NULL;
    char *text;
    size_t n_bytes;

    if (file_read(path, HF_CONFIG_MAX_BYTES, ERR_DATA, &text, &n_bytes, err) < 0)
        return NULL;
    cJSON *json = cJSON_ParseWithLength(text, n_bytes);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(json, "model_type");
    if (cJSON_IsString(type))
        family = arena_strdup(arena, type->valuestring);
    else
        err_set(err, ERR_DATA, "%s: %s", path, json ? "model_type is missing" : "not valid JSON");
    cJSON_Delete(json);
    free(text);
    return family;
}

static void add_text(cJSON *json, const char *name, const char *text)
{
    cJSON_AddStringToObject(json, name, text);
}

static void add_int(cJSON *json, const char *name, int value)
{
    cJSON_AddNumberToObject(json, name, value);
}

/* cJSON's own numbers have 17 digits: 1.0000000000000001e-05. */
static void add_float(cJSON *json, const char *name, double value)
{
    struct str text = { 0 };

    field_print_float(&text, value);
    cJSON_AddRawToObject(json, name, str_text(&text));
    str_release(&text);
}

static void add_flag(cJSON *json, const char *name, int value)
{
    cJSON_AddBoolToObject(json, name, value);
}

static void add_scaling(cJSON *json, const struct model_spec *s)
{
    const struct rope_scaling_spec *r = &s->rope_scaling;
    int original = r->original_max_seq_len ? r->original_max_seq_len : s->max_seq_len;

    if (r->type == ROPE_PLAIN) {
        cJSON_AddNullToObject(json, "rope_scaling");
        return;
    }
    cJSON *scaling = cJSON_AddObjectToObject(json, "rope_scaling");
    add_text(scaling, "rope_type", choice_word(rope_scaling_choices, (int)r->type));
    add_float(scaling, "factor", r->factor);
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN)
        add_int(scaling, "original_max_position_embeddings", original);
    if (r->type == ROPE_LLAMA3) {
        add_float(scaling, "low_freq_factor", r->low_freq_factor);
        add_float(scaling, "high_freq_factor", r->high_freq_factor);
    }
    if (r->type == ROPE_YARN) {
        add_float(scaling, "beta_fast", r->beta_fast);
        add_float(scaling, "beta_slow", r->beta_slow);
        add_flag(scaling, "truncate", r->truncate);
    }
    if (r->type == ROPE_YARN && r->attention_factor > 0)
        add_float(scaling, "attention_factor", r->attention_factor);
}

static void add_llama_shape(cJSON *json, const struct model_spec *s)
{
    add_float(json, "attention_dropout", s->attention_dropout);
    add_int(json, "head_dim", s->head_dim);
    add_text(json, "hidden_act", "silu");
    add_int(json, "hidden_size", s->hidden_size);
    add_float(json, "initializer_range", s->init_std);
    add_int(json, "intermediate_size", s->ffn_size);
    add_int(json, "max_position_embeddings", s->max_seq_len);
    add_int(json, "num_attention_heads", s->n_heads);
    add_int(json, "num_hidden_layers", s->n_layers);
    add_int(json, "num_key_value_heads", s->n_kv_heads);
    add_float(json, "rms_norm_eps", s->norm_eps);
    add_scaling(json, s);
    add_float(json, "rope_theta", s->rope_theta);
}

static void add_llama(cJSON *json, const struct model_spec *s)
{
    add_flag(json, "attention_bias", model_spec_has_qkv_bias(s));
    add_flag(json, "mlp_bias", s->bias);
    add_llama_shape(json, s);
}

static void add_window(cJSON *json, const struct model_spec *s)
{
    if (s->window)
        add_int(json, "sliding_window", s->window);
    else
        cJSON_AddNullToObject(json, "sliding_window");
}

static void add_mistral(cJSON *json, const struct model_spec *s)
{
    add_llama_shape(json, s);
    add_window(json, s);
}

static void add_layer_types(cJSON *json, const struct model_spec *s)
{
    cJSON *types = cJSON_AddArrayToObject(json, "layer_types");

    for (int layer = 0; layer < s->n_layers; layer++)
        cJSON_AddItemToArray(types,
                             cJSON_CreateString(model_spec_window(s, layer) ? "sliding_attention"
                                                                            : "full_attention"));
}

/* Which layers have it: from one on, unless a list says more. */
static void add_layer_windows(cJSON *json, const struct model_spec *s)
{
    add_window(json, s);
    add_int(json, "max_window_layers", s->window ? s->window_first_layer : s->n_layers);
    if (s->window_period)
        add_layer_types(json, s);
}

static void add_qwen2(cJSON *json, const struct model_spec *s)
{
    add_llama_shape(json, s);
    add_flag(json, "use_sliding_window", s->window > 0);
    if (s->window)
        add_layer_windows(json, s);
}

static void add_qwen3(cJSON *json, const struct model_spec *s)
{
    add_flag(json, "attention_bias", s->attention_bias == ATTENTION_BIAS_ALL);
    add_qwen2(json, s);
}

static void add_balance(cJSON *json, const struct model_spec *s)
{
    int n_layers = model_spec_n_expert_layers(s, s->n_layers);

    add_flag(json, "output_router_logits", s->router_balance > 0);
    if (s->router_balance > 0)
        add_float(json, "router_aux_loss_coef", s->router_balance * n_layers / s->n_active_experts);
}

/* Of these an expert's width is what others call that of the whole part. */
static void add_mixtral(cJSON *json, const struct model_spec *s)
{
    struct model_spec one = *s;

    one.ffn_size = s->expert_ffn_size;
    add_llama_shape(json, &one);
    add_int(json, "num_experts_per_tok", s->n_active_experts);
    add_int(json, "num_local_experts", s->n_experts);
    add_balance(json, s);
    add_window(json, s);
}

/* In Qwen's words: dense layers before the first with experts are listed. */
static void add_qwen_experts(cJSON *json, const struct model_spec *s)
{
    cJSON *dense = cJSON_AddArrayToObject(json, "mlp_only_layers");

    add_int(json, "decoder_sparse_step", s->expert_every);
    for (int layer = s->expert_every - 1; s->n_experts && layer < s->first_dense_layers;
         layer += s->expert_every)
        cJSON_AddItemToArray(dense, cJSON_CreateNumber(layer));
    add_int(json, "moe_intermediate_size", s->expert_ffn_size);
    add_flag(json, "norm_topk_prob", s->router_normalize);
    add_int(json, "num_experts", s->n_experts);
    add_int(json, "num_experts_per_tok", s->n_active_experts);
    add_balance(json, s);
}

/* max_window_layers says one thing to transformers 4, and another to 5: here a list always does. */
static void add_qwen2_moe(cJSON *json, const struct model_spec *s)
{
    add_llama_shape(json, s);
    add_flag(json, "use_sliding_window", s->window > 0);
    if (s->window) {
        add_window(json, s);
        add_layer_types(json, s);
    }
    add_qwen_experts(json, s);
    add_flag(json, "qkv_bias", model_spec_has_qkv_bias(s));
    add_int(json, "shared_expert_intermediate_size", s->shared_ffn_size);
}

static void add_qwen3_moe(cJSON *json, const struct model_spec *s)
{
    add_flag(json, "attention_bias", s->attention_bias == ATTENTION_BIAS_ALL);
    add_llama_shape(json, s);
    add_qwen_experts(json, s);
    add_flag(json, "use_sliding_window", s->window > 0);
    if (s->window)
        add_window(json, s);
}

/* Shared experts are as wide as the others. */
static void add_dots1(cJSON *json, const struct model_spec *s)
{
    int is_grouped = s->router_groups > 1;

    add_flag(json, "attention_bias", s->attention_bias == ATTENTION_BIAS_ALL);
    add_llama_shape(json, s);
    add_int(json, "first_k_dense_replace", s->first_dense_layers);
    add_int(json, "moe_intermediate_size", s->expert_ffn_size);
    add_int(json, "n_group", is_grouped ? s->router_groups : 1);
    add_int(json, "n_routed_experts", s->n_experts);
    add_int(json, "n_shared_experts",
            s->shared_ffn_size ? max_int(s->shared_ffn_size / s->expert_ffn_size, 1) : 0);
    add_flag(json, "norm_topk_prob", s->router_normalize);
    add_int(json, "num_experts_per_tok", s->n_active_experts);
    add_float(json, "routed_scaling_factor", s->router_scaling);
    add_int(json, "topk_group", is_grouped ? s->router_groups_kept : 1);
    add_layer_windows(json, s);
}

static void add_bloom(cJSON *json, const struct model_spec *s)
{
    add_flag(json, "apply_residual_connection_post_layernorm", 0);
    add_float(json, "attention_dropout", s->attention_dropout);
    add_float(json, "hidden_dropout", s->dropout);
    add_int(json, "hidden_size", s->hidden_size);
    add_float(json, "initializer_range", s->init_std);
    add_float(json, "layer_norm_epsilon", s->norm_eps);
    add_int(json, "n_head", s->n_heads);
    add_int(json, "n_layer", s->n_layers);
    add_int(json, "seq_length", s->max_seq_len);
}

static void add_gpt2(cJSON *json, const struct model_spec *s)
{
    add_text(json, "activation_function", "gelu_new");
    add_float(json, "attn_pdrop", s->attention_dropout);
    add_float(json, "embd_pdrop", s->embedding_dropout ? s->dropout : 0);
    add_float(json, "initializer_range", s->init_std);
    add_float(json, "layer_norm_epsilon", s->norm_eps);
    add_int(json, "n_embd", s->hidden_size);
    add_int(json, "n_head", s->n_heads);
    add_int(json, "n_inner", s->ffn_size);
    add_int(json, "n_layer", s->n_layers);
    add_int(json, "n_positions", s->max_seq_len);
    add_float(json, "resid_pdrop", s->dropout);
}

/* Those that a model of ours alone can become; the plainest first. Others keep the config.json that
 * they came with. */
static const struct printed_family {
    const char *model_type, *architecture;
    void (*add)(cJSON *json, const struct model_spec *spec);
} families[] = {
    { "llama", "LlamaForCausalLM", add_llama },
    { "gpt2", "GPT2LMHeadModel", add_gpt2 },
    { "qwen2", "Qwen2ForCausalLM", add_qwen2 },
    { "mistral", "MistralForCausalLM", add_mistral },
    { "qwen3", "Qwen3ForCausalLM", add_qwen3 },
    { "bloom", "BloomForCausalLM", add_bloom },
    { "mixtral", "MixtralForCausalLM", add_mixtral },
    { "qwen3_moe", "Qwen3MoeForCausalLM", add_qwen3_moe },
    { "qwen2_moe", "Qwen2MoeForCausalLM", add_qwen2_moe },
    { "dots1", "Dots1ForCausalLM", add_dots1 },
};

#define N_FAMILIES (sizeof families / sizeof *families)

static const char *torch_name(enum dtype dtype)
{
    int is_half = dtype == DTYPE_BF16 || dtype == DTYPE_F16;

    return choice_word(dtype_torch_choices, is_half ? (int)dtype : DTYPE_F32);
}

static void print_json(cJSON *json, struct str *out)
{
    char *text = cJSON_Print(json);

    CHECK(text);
    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

static void print_family(const struct printed_family *f, const struct model_spec *spec,
                         enum dtype dtype, struct str *out)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddItemToObject(json, "architectures", cJSON_CreateStringArray(&f->architecture, 1));
    add_text(json, "model_type", f->model_type);
    f->add(json, spec);
    add_flag(json, "tie_word_embeddings", spec->tied_embeddings);
    add_text(json, "torch_dtype", torch_name(dtype));
    add_flag(json, "use_cache", 1);
    add_int(json, "vocab_size", spec->vocab_size);
    print_json(json, out);
}

/*
 * What the family has no words for, by reading back what it prints: no field can be forgotten here.
 * Returns how many fields that are; where the text is refused, all.
 */
static int lost_in(const struct printed_family *f, const struct model_spec *spec,
                   enum model_use use, struct str *lost)
{
    struct str text = { 0 };
    struct arena arena = { 0 };
    struct model_spec back;
    struct err err = { 0 };
    int n = n_job_fields;

    print_family(f, spec, DTYPE_F32, &text);
    if (hf_config_parse(&back, str_text(&text), text.length, &arena, &err) < 0)
        str_add(lost, err.text);
    else
        n = model_differences(spec, &back, use, lost);
    str_release(&text);
    arena_release(&arena);
    return n;
}

const char *hf_config_family_of(const struct model_spec *spec, struct err *err)
{
    struct str lost = { 0 }, least = { 0 };
    int n_least = n_job_fields + 1;
    size_t nearest = 0;

    for (size_t i = 0; i < N_FAMILIES && n_least; i++) {
        str_clear(&lost);
        int n = lost_in(&families[i], spec, MODEL_COMPUTES, &lost);

        if (n >= n_least)
            continue;
        n_least = n;
        nearest = i;
        str_clear(&least);
        str_add(&least, str_text(&lost));
    }
    if (n_least)
        err_set(err, ERR_CONFIG,
                "no family of transformers has this model's architecture: the nearest is %s, which "
                "has no %s",
                families[nearest].model_type, str_text(&least));
    str_release(&lost);
    str_release(&least);
    return n_least ? NULL : families[nearest].model_type;
}

static const struct printed_family *find_family(const char *name)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (!strcmp(families[i].model_type, name))
            return &families[i];
    return NULL;
}

int hf_config_print(const struct model_spec *spec, const char *family, enum dtype dtype,
                    struct str *out, struct err *err)
{
    const struct printed_family *f = find_family(family);
    struct str lost = { 0 };
    int status = 0;

    if (!f)
        return err_set(err, ERR_CONFIG, "lmtrain writes no config.json of %s models", family);
    if (lost_in(f, spec, MODEL_COMPUTES, &lost))
        status = err_set(err, ERR_CONFIG,
                         "%s models cannot have the architecture of %s: they have no %s", family,
                         spec->name, str_text(&lost));
    else
        print_family(f, spec, dtype, out);
    str_release(&lost);
    return status;
}

int hf_config_unsaid(const struct model_spec *spec, const char *family, struct str *out)
{
    const struct printed_family *f = find_family(family);

    return f ? lost_in(f, spec, MODEL_TRAINS, out) : 0;
}

/* Where transformers 5 has written it, in its spelling. */
static void put_scaling(cJSON *json, const struct model_spec *s)
{
    bool is_new = cJSON_HasObjectItem(json, "rope_parameters");

    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_parameters");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_scaling");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "max_position_embeddings");
    add_int(json, "max_position_embeddings", s->max_seq_len);
    add_scaling(json, s);
    if (!is_new)
        return;
    cJSON *scaling = cJSON_DetachItemFromObjectCaseSensitive(json, "rope_scaling");
    add_float(scaling, "rope_theta", s->rope_theta);
    cJSON_AddItemToObject(json, "rope_parameters", scaling);
}

int hf_config_print_changed(const char *text, size_t n_bytes,
                            const struct hf_config_changes *changes, struct str *out,
                            struct err *err)
{
    cJSON *json = cJSON_ParseWithLength(text, n_bytes);
    int is_new = cJSON_HasObjectItem(json, "dtype");

    if (!cJSON_IsObject(json)) {
        cJSON_Delete(json);
        return err_set(err, ERR_DATA, "config.json is not a JSON object");
    }
    if (changes->dtype >= 0) {
        cJSON_DeleteItemFromObjectCaseSensitive(json, "dtype");
        cJSON_DeleteItemFromObjectCaseSensitive(json, "torch_dtype");
        add_text(json, is_new ? "dtype" : "torch_dtype", torch_name((enum dtype)changes->dtype));
    }
    if (changes->vocab_size) {
        cJSON_DeleteItemFromObjectCaseSensitive(json, "vocab_size");
        add_int(json, "vocab_size", changes->vocab_size);
    }
    if (changes->is_untied) {
        cJSON_DeleteItemFromObjectCaseSensitive(json, "tie_word_embeddings");
        add_flag(json, "tie_word_embeddings", 0);
    }
    if (changes->scaled)
        put_scaling(json, changes->scaled);
    if (changes->is_plain)
        cJSON_DeleteItemFromObjectCaseSensitive(json, "quantization_config");
    print_json(json, out);
    return 0;
}
