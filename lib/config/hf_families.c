/*
 * hf_families.c - the readers of config.json, one function for each family of Hugging Face
 *
 * A reader copies the shape by a table of fields, and sets by code what the family fixes or spells
 * in its own way. What would silently be another model (an activation, a bias, a scaling that
 * lmtrain lacks) is refused by name.
 */
#include <string.h>

#include "config/hf_families_impl.h"

/* The shape fields of each family; the flags and choices are in take_llama and take_gpt2, mixtures
 * of experts in hf_experts.c. */
static const struct hf_field llama_fields[] = {
    { "vocab_size", "model.vocab_size", NULL },
    { "hidden_size", "model.hidden_size", NULL },
    { "num_hidden_layers", "model.n_layers", NULL },
    { "num_attention_heads", "model.n_heads", NULL },
    { "num_key_value_heads", "model.n_kv_heads", "auto" },
    { "head_dim", "model.head_dim", "auto" },
    { "intermediate_size", "model.ffn_size", NULL },
    { "max_position_embeddings", "model.max_seq_len", "2048" },
    { "rms_norm_eps", "model.norm_eps", "1.0e-6" },
    { "initializer_range", "model.init_std", "0.02" },
    { "attention_dropout", "model.attention_dropout", "0.0" },
    { "tie_word_embeddings", "model.tied_embeddings", "false" },
};

static const struct hf_field gpt2_fields[] = {
    { "vocab_size", "model.vocab_size", NULL },
    { "n_embd", "model.hidden_size", NULL },
    { "n_layer", "model.n_layers", NULL },
    { "n_head", "model.n_heads", NULL },
    { "n_positions", "model.max_seq_len", "1024" },
    { "layer_norm_epsilon", "model.norm_eps", "1.0e-5" },
    { "initializer_range", "model.init_std", "0.02" },
    { "resid_pdrop", "model.dropout", "0.1" },
    { "attn_pdrop", "model.attention_dropout", "0.1" },
    { "tie_word_embeddings", "model.tied_embeddings", "true" },
};

static const struct hf_field qwen_fields[] = {
    { "vocab_size", "model.vocab_size", NULL },
    { "hidden_size", "model.hidden_size", NULL },
    { "num_hidden_layers", "model.n_layers", NULL },
    { "num_attention_heads", "model.n_heads", NULL },
    { "kv_channels", "model.head_dim", "auto" },
    { "seq_length|max_position_embeddings", "model.max_seq_len", "8192" },
    { "layer_norm_epsilon", "model.norm_eps", "1.0e-6" },
    { "rotary_emb_base", "model.rope_theta", "10000.0" },
    { "initializer_range", "model.init_std", "0.02" },
    { "emb_dropout_prob", "model.dropout", "0.0" },
    { "attn_dropout_prob", "model.attention_dropout", "0.0" },
    { "tie_word_embeddings", "model.tied_embeddings", "false" },
};

static const struct hf_field bloom_fields[] = {
    { "vocab_size", "model.vocab_size", NULL },
    { "hidden_size|n_embed", "model.hidden_size", NULL },
    { "n_layer|num_hidden_layers", "model.n_layers", NULL },
    { "n_head|num_attention_heads", "model.n_heads", NULL },
    { "seq_length", "model.max_seq_len", "2048" },
    { "layer_norm_epsilon", "model.norm_eps", "1.0e-5" },
    { "initializer_range", "model.init_std", "0.02" },
    { "hidden_dropout", "model.dropout", "0.0" },
    { "attention_dropout", "model.attention_dropout", "0.0" },
    { "tie_word_embeddings", "model.tied_embeddings", "true" },
};

void hf_take_fields(struct hf_reader *h, const struct hf_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const cJSON *item = hf_key_of(h, fields[i].theirs);
        const char *text = item ? hf_scalar_text(h, item) : fields[i].initial;

        if (!text)
            hf_refuse(h, "%.*s is %s", (int)strcspn(fields[i].theirs, "|"), fields[i].theirs,
                      item ? "a list or an object" : "missing");
        else
            hf_set(h, fields[i].ours, text, !cJSON_IsString(item));
    }
}

static void take_activation(struct hf_reader *h, const char *name, const char *const *allowed,
                            int n_allowed, const char *initial)
{
    const cJSON *item = hf_key(h, name);
    const char *text = item ? hf_scalar_text(h, item) : initial;

    for (int i = 0; text && i < n_allowed; i++)
        if (!strcmp(text, allowed[i]))
            return;
    hf_refuse(h, "%s is %.64s, which lmtrain does not have (hint: %s)", name,
              text ? text : "no text", allowed[0]);
}

void hf_take_llama_shape(struct hf_reader *h, const char *biases)
{
    static const char *const silu[] = { "silu", "swish" };

    hf_take_fields(h, llama_fields, sizeof llama_fields / sizeof *llama_fields);
    take_activation(h, "hidden_act", silu, 2, "silu");
    hf_take_rope(h);
    hf_set(h, "model.bias", "false", 1);
    hf_set(h, "model.attention_bias", biases, 0);
    hf_set(h, "model.norm", "rmsnorm", 1);
    hf_set(h, "model.position", "rope", 1);
    hf_set(h, "model.activation", "swiglu", 1);
    hf_set(h, "model.dropout", "0.0", 1);
}

static void take_llama(struct hf_reader *h)
{
    int attention_bias = hf_flag(h, "attention_bias", 0), mlp_bias = hf_flag(h, "mlp_bias", 0);

    hf_take_llama_shape(h, attention_bias && !mlp_bias ? "all" : "none");
    if (mlp_bias && !attention_bias)
        hf_refuse(h, "mlp_bias without attention_bias is not built yet");
    else if (mlp_bias)
        hf_set(h, "model.bias", "true", 1);
}

static void take_qwen2(struct hf_reader *h)
{
    hf_take_llama_shape(h, "qkv");
    hf_take_layer_windows(h, 0, 28);
}

static void take_qwen3(struct hf_reader *h)
{
    const cJSON *head_dim = hf_key(h, "head_dim");

    hf_take_llama_shape(h, hf_flag(h, "attention_bias", 0) ? "all" : "none");
    hf_take_layer_windows(h, 0, 28);
    if (!head_dim)
        hf_set(h, "model.head_dim", "128", 1);
    hf_set(h, "model.qk_norm", "true", 1);
}

static void take_mistral(struct hf_reader *h)
{
    hf_take_llama_shape(h, "none");
    hf_take_window(h);
}

/*
 * All of InternLM's attention has biases, or nothing has. The first generation says by rotary what
 * others say by rope_theta and rope_scaling.
 */
static void take_internlm(struct hf_reader *h)
{
    const cJSON *rotary = hf_key(h, "rotary");
    const cJSON *type = hf_member(rotary, "type"), *base = hf_member(rotary, "base");
    const char *kind = cJSON_IsString(type) ? type->valuestring : "";

    hf_take_llama_shape(h, hf_flag(h, "bias", 1) ? "all" : "none");
    if (!rotary)
        return;
    if (cJSON_IsNumber(base))
        hf_set(h, "model.rope_theta", hf_scalar_text(h, base), 1);
    if (!strcmp(kind, "dynamic")) {
        hf_set(h, "model.rope_scaling.type", "dynamic", 0);
        hf_take_rope_number(h, rotary, "scaling_factor", "factor", "1.0");
    } else if (strcmp(kind, "origin") != 0) {
        hf_refuse(h, "rotary.type is %.64s, not built yet (hint: origin, dynamic)", kind);
    }
}

/*
 * The 13B have ALiBi and say so by max_position_embeddings that is not there. Those of the second
 * generation have a normalised head; their code has it without asking, their config.json alone
 * knows of z_loss_weight, and their vocabulary is this large.
 */
static void take_baichuan(struct hf_reader *h)
{
    const cJSON *vocab_size = hf_key(h, "vocab_size");
    const cJSON *length = hf_key(h, "model_max_length");
    const cJSON *z_loss = hf_key(h, "z_loss_weight");

    hf_take_llama_shape(h, "none");
    if (!hf_key(h, "max_position_embeddings")) {
        if (length && hf_scalar_text(h, length))
            hf_set(h, "model.max_seq_len", hf_scalar_text(h, length), !cJSON_IsString(length));
        else
            hf_refuse(
                h, "neither max_position_embeddings (rope) nor model_max_length (ALiBi) is given");
        hf_set(h, "model.position", "alibi", 1);
    }
    if (z_loss && cJSON_GetNumberValue(z_loss) != 0)
        hf_refuse(
            h,
            "z_loss_weight is not built (hint: 0, which does not change what the model computes)");
    if (z_loss || cJSON_GetNumberValue(vocab_size) == 125696)
        hf_set(h, "model.normalized_head", "true", 1);
}

/*
 * The first generation. intermediate_size counts both halves of what the activation joins. Up to
 * seq_length use_dynamic_ntk and use_logn_attn change nothing.
 */
static void take_qwen(struct hf_reader *h)
{
    const cJSON *inner = hf_key(h, "intermediate_size"), *turned = hf_key(h, "rotary_pct");

    hf_take_fields(h, qwen_fields, sizeof qwen_fields / sizeof *qwen_fields);
    if (cJSON_IsNumber(inner))
        hf_set(h, "model.ffn_size",
               arena_printf(h->job->arena, "%.15g", cJSON_GetNumberValue(inner) / 2), 1);
    else
        hf_refuse(h, "intermediate_size is missing");
    if (turned && cJSON_GetNumberValue(turned) != 1)
        hf_refuse(h, "rotary_pct is not built yet (hint: 1.0)");
    int no_bias = hf_flag(h, "no_bias", 1);
    if (!hf_flag(h, "scale_attn_weights", 1))
        hf_refuse(h, "attention is scaled otherwise than by 1/sqrt(head_dim): not built yet");
    hf_set(h, "model.bias", no_bias ? "false" : "true", 1);
    hf_set(h, "model.attention_bias", no_bias ? "qkv" : "none", 0);
    hf_set(h, "model.n_kv_heads", "auto", 1);
    hf_set(h, "model.norm", "rmsnorm", 1);
    hf_set(h, "model.position", "rope", 1);
    hf_set(h, "model.activation", "swiglu", 1);
}

static void take_bloom(struct hf_reader *h)
{
    const cJSON *inner = hf_key(h, "n_inner"), *width = hf_key_of(h, "hidden_size|n_embed");
    double wide = 4 * cJSON_GetNumberValue(width);

    hf_take_fields(h, bloom_fields, sizeof bloom_fields / sizeof *bloom_fields);
    if (cJSON_IsNumber(width))
        hf_set(h, "model.ffn_size", arena_printf(h->job->arena, "%.0f", wide), 1);
    if (inner && cJSON_GetNumberValue(inner) != wide)
        hf_refuse(h, "n_inner is not 4 * hidden_size, which Bloom's code requires");
    if (hf_flag(h, "apply_residual_connection_post_layernorm", 0))
        hf_refuse(h, "apply_residual_connection_post_layernorm is not built (hint: false, as the "
                     "published models have it)");
    hf_set(h, "model.embedding_dropout", "false", 1);
    hf_set(h, "model.bias", "true", 1);
    hf_set(h, "model.n_kv_heads", "auto", 1);
    hf_set(h, "model.head_dim", "auto", 1);
    hf_set(h, "model.norm", "layernorm", 1);
    hf_set(h, "model.embedding_norm", "true", 1);
    hf_set(h, "model.position", "alibi", 1);
    hf_set(h, "model.activation", "gelu", 1);
}

static void take_gpt2(struct hf_reader *h)
{
    static const char *const tanh_gelu[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast" };
    const cJSON *inner = hf_key(h, "n_inner"), *width = hf_key(h, "n_embd");
    const cJSON *after_embedding = hf_key(h, "embd_pdrop");

    hf_take_fields(h, gpt2_fields, sizeof gpt2_fields / sizeof *gpt2_fields);
    take_activation(h, "activation_function", tanh_gelu, 3, "gelu_new");
    if (inner && hf_scalar_text(h, inner))
        hf_set(h, "model.ffn_size", hf_scalar_text(h, inner), 1);
    else if (cJSON_IsNumber(width))
        hf_set(h, "model.ffn_size",
               arena_printf(h->job->arena, "%.0f", 4 * cJSON_GetNumberValue(width)), 1);
    double first = after_embedding ? cJSON_GetNumberValue(after_embedding) : 0.1;
    hf_set(h, "model.embedding_dropout",
           first == 0 && h->job->job->model.dropout > 0 ? "false" : "true", 1);
    if (!h->failed && first != 0 && first != h->job->job->model.dropout)
        hf_refuse(h, "embd_pdrop differs from resid_pdrop, lmtrain has one dropout for both (hint: "
                     "the same, or embd_pdrop 0)");
    if (hf_flag(h, "scale_attn_by_inverse_layer_idx", 0) || !hf_flag(h, "scale_attn_weights", 1))
        hf_refuse(h, "attention is scaled otherwise than by 1/sqrt(head_dim): not built yet");
    if (hf_flag(h, "add_cross_attention", 0))
        hf_refuse(h, "add_cross_attention is not built");
    hf_set(h, "model.bias", "true", 1);
    hf_set(h, "model.n_kv_heads", "auto", 1);
    hf_set(h, "model.head_dim", "auto", 1);
    hf_set(h, "model.norm", "layernorm", 1);
    hf_set(h, "model.position", "learned", 1);
    hf_set(h, "model.activation", "gelu", 1);
}

const struct hf_family_reader hf_family_readers[] = {
    { "llama", take_llama },
    { "gpt2", take_gpt2 },
    { "qwen2", take_qwen2 },
    { "mistral", take_mistral },
    { "internlm", take_internlm },
    { "internlm2", take_internlm },
    { "baichuan", take_baichuan },
    { "qwen3", take_qwen3 },
    { "bloom", take_bloom },
    { "mixtral", hf_take_mixtral },
    { "qwen3_moe", hf_take_qwen3_moe },
    { "qwen", take_qwen },
    { "qwen2_moe", hf_take_qwen2_moe },
    { "deepseek", hf_take_deepseek },
    { "dots1", hf_take_dots1 },
};

const size_t n_hf_family_readers = sizeof hf_family_readers / sizeof *hf_family_readers;
