/*
 * hf_config.c - a model's shape from the config.json of a Hugging Face folder
 *
 * Values go through the table of fields like those of YAML, so ranges and messages are the same.
 * Both spellings are read: transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters). What
 * would silently be another model (a family, an activation, a rope scaling that we lack) is refused
 * by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/hf_config.h"
#include "config/hf_family.h"
#include "config/hf_head.h"
#include "config/hf_reader_impl.h"

#define CONFIG_MAX_BYTES ((size_t)4 << 20)
#define MAX_UNREAD 8 /* keys that one message names */

struct hf_field {
    const char *theirs; /* "new|old" where it had another name */
    const char *ours;
    const char *initial; /* what transformers takes if it is absent; NULL: must be there */
};

/* The shape fields of each family; the flags and choices are in take_llama and take_gpt2. */
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

static const struct hf_field mixtral_fields[] = {
    { "num_local_experts|num_experts", "model.n_experts", "8" },
    { "num_experts_per_tok", "model.n_active_experts", "2" },
};

static const struct hf_field qwen3_moe_fields[] = {
    { "num_experts|num_local_experts", "model.n_experts", "128" },
    { "num_experts_per_tok", "model.n_active_experts", "8" },
    { "moe_intermediate_size", "model.expert_ffn_size", "768" },
    { "norm_topk_prob", "model.router_normalize", "false" },
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

static void take_fields(struct hf_reader *h, const struct hf_field *fields, size_t n)
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

/* A flag of theirs, or initial if absent. */
static int flag(struct hf_reader *h, const char *name, int initial)
{
    const cJSON *item = hf_key(h, name);

    return item ? cJSON_IsTrue(item) : initial;
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

/* sliding_window; absent: 4096, null or 0: none. Whether there is one. */
static int take_window(struct hf_reader *h)
{
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(h->json, "sliding_window");
    const char *text = window ? hf_scalar_text(h, window) : "4096";

    hf_keys_add(&h->keys, "sliding_window");
    if (cJSON_IsNull(window) || (text && !strcmp(text, "0")))
        return 0;
    if (text)
        hf_set(h, "model.window", text, !cJSON_IsString(window));
    else
        hf_refuse(h, "sliding_window is a list or an object");
    return 1;
}

/* Whether a layer slides, by its kind in layer_types; -1 after a refusal. */
static int slides(struct hf_reader *h, const cJSON *type, int layer)
{
    const char *kind = cJSON_IsString(type) ? type->valuestring : "the kind";

    if (!strcmp(kind, "sliding_attention") || !strcmp(kind, "full_attention"))
        return *kind == 's';
    hf_refuse(h,
              "layer_types: %.64s of layer %d is not built yet (hint: full_attention, "
              "sliding_attention)",
              kind, layer);
    return -1;
}

/*
 * The first layer with a window, by transformers 5's list of every layer's kind, and of which period
 * those behind it are that have none (0: there are none). n_layers where none has one, -1 after a
 * refusal.
 */
static int first_with_window(struct hf_reader *h, const cJSON *types, int *period)
{
    int n_layers = h->job->job->model.n_layers, n = 0, first = n_layers;
    const cJSON *type;

    *period = 0;
    cJSON_ArrayForEach(type, types)
    {
        int has_window = slides(h, type, n), place = n - first + 1;

        if (has_window < 0)
            return -1;
        if (has_window && first > n)
            first = n;
        else if (!has_window && first < n && !*period)
            *period = place;
        else if (first < n && has_window != (!*period || place % *period != 0)) {
            hf_refuse(
                h,
                "layer_types: %s of layer %d is not built yet (hint: from the first layer with "
                "sliding_attention on, every N-th layer may have full_attention, or none)",
                type->valuestring, n);
            return -1;
        }
        n++;
    }
    if (!h->failed && n != n_layers) {
        hf_refuse(h, "layer_types has %d kinds, num_hidden_layers is %d", n, n_layers);
        return -1;
    }
    return first;
}

/* Qwen's, of layers from max_window_layers on, or as layer_types says. */
static void take_window_of_layers(struct hf_reader *h)
{
    const cJSON *types = hf_key(h, "layer_types"), *max;
    int windows = flag(h, "use_sliding_window", 0) && take_window(h), first, period = 0;

    hf_keys_add(&h->keys, "sliding_window|max_window_layers");
    if (cJSON_IsArray(types)) {
        first = first_with_window(h, types, &period);
    } else {
        max = hf_member(h->json, "max_window_layers");
        double n = max ? cJSON_GetNumberValue(max) : 28;
        first = n >= 0 && n < h->job->job->model.n_layers ? (int)n : h->job->job->model.n_layers;
    }
    if (first < 0)
        return;
    if (first == h->job->job->model.n_layers)
        hf_set(h, "model.window", "none", 1);
    else if (windows) {
        hf_set(h, "model.window_first_layer", arena_printf(h->job->arena, "%d", first), 1);
        if (period)
            hf_set(h, "model.window_period", arena_printf(h->job->arena, "%d", period), 1);
    } else if (types)
        hf_refuse(h, "layer_types has sliding_attention, but use_sliding_window is false or "
                     "sliding_window null");
}

/* What is llama's in all families of its shape. biases: "none", "qkv" or "all", in attention. */
static void take_llama_shape(struct hf_reader *h, const char *biases)
{
    static const char *const silu[] = { "silu", "swish" };

    take_fields(h, llama_fields, sizeof llama_fields / sizeof *llama_fields);
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
    int attention_bias = flag(h, "attention_bias", 0), mlp_bias = flag(h, "mlp_bias", 0);

    take_llama_shape(h, attention_bias && !mlp_bias ? "all" : "none");
    if (mlp_bias && !attention_bias)
        hf_refuse(h, "mlp_bias without attention_bias is not built yet");
    else if (mlp_bias)
        hf_set(h, "model.bias", "true", 1);
}

static void take_qwen2(struct hf_reader *h)
{
    take_llama_shape(h, "qkv");
    take_window_of_layers(h);
}

static void take_qwen3(struct hf_reader *h)
{
    const cJSON *head_dim = hf_key(h, "head_dim");

    take_llama_shape(h, flag(h, "attention_bias", 0) ? "all" : "none");
    take_window_of_layers(h);
    if (!head_dim)
        hf_set(h, "model.head_dim", "128", 1);
    hf_set(h, "model.qk_norm", "true", 1);
}

static void take_mistral(struct hf_reader *h)
{
    take_llama_shape(h, "none");
    take_window(h);
}

/*
 * Theirs is one balance of all layers' choices together, that is the choices of a token where all
 * experts are used alike; ours is as many times 1 as there are layers, of either kind. It is trained
 * on only where output_router_logits asks for it.
 */
static void take_balance(struct hf_reader *h)
{
    const struct model_spec *s = &h->job->job->model;
    const cJSON *coefficient = hf_key(h, "router_aux_loss_coef");
    double theirs = coefficient ? cJSON_GetNumberValue(coefficient) : 0.001;
    int n_layers = h->failed ? 0 : model_spec_n_expert_layers(s, s->n_layers);
    struct str text = { 0 };

    if (!flag(h, "output_router_logits", 0) || n_layers < 1)
        return;
    field_print_float(&text, theirs * s->n_active_experts / n_layers);
    hf_set(h, "model.router_balance", arena_strdup(h->job->arena, str_text(&text)), 1);
    hf_set(h, "model.router_balance_kind", "pooled", 0);
    job_note(
        h->job->job, h->job->arena,
        "model.router_balance = %s, model.router_balance_kind = pooled (output_router_logits and "
        "router_aux_loss_coef %g of %s, as transformers trains it)",
        str_text(&text), theirs, h->path);
    str_release(&text);
}

static void take_mixtral(struct hf_reader *h)
{
    const cJSON *noise = hf_key(h, "router_jitter_noise");

    take_llama_shape(h, "none");
    take_fields(h, mixtral_fields, sizeof mixtral_fields / sizeof *mixtral_fields);
    if (!hf_key(h, "rms_norm_eps"))
        hf_set(h, "model.norm_eps", "1.0e-5", 1);
    if (!hf_key(h, "rope_theta") && !hf_key(h, "rope_parameters"))
        hf_set(h, "model.rope_theta", "1000000.0", 1);
    if (hf_key(h, "sliding_window"))
        take_window(h);
    if (noise && !(cJSON_GetNumberValue(noise) <= 0))
        hf_refuse(h, "router_jitter_noise is not built (hint: 0, which does not change what the "
                     "model computes)");
    hf_set(h, "model.router_normalize", "true", 1);
    take_balance(h);
}

/* Has the layer experts, by both of their settings? */
static int is_sparse(struct hf_reader *h, int layer, int step)
{
    const cJSON *dense;

    cJSON_ArrayForEach(dense, hf_key(h, "mlp_only_layers"))
    {
        if (cJSON_GetNumberValue(dense) == layer)
            return 0;
    }
    return (layer + 1) % step == 0;
}

/* Every how many-th layer has experts. */
static void take_sparse_layers(struct hf_reader *h)
{
    const cJSON *item = hf_key(h, "decoder_sparse_step");
    double step = item ? cJSON_GetNumberValue(item) : 1;
    int n_layers = h->job->job->model.n_layers, every = 1, layer = 0;

    if (h->failed)
        return;
    if (!(step >= 1 && step <= n_layers)) {
        hf_refuse(h, "decoder_sparse_step is not in 1..%d", n_layers);
        return;
    }
    while (every <= n_layers && layer < n_layers) {
        int same = is_sparse(h, layer, (int)step) == ((layer + 1) % every == 0);

        layer = same ? layer + 1 : 0;
        every += !same;
    }
    if (every > n_layers)
        hf_refuse(
            h, "mlp_only_layers: the MoE layers are not every N-th layer, which is not built yet");
    else
        hf_set(h, "model.expert_every", arena_printf(h->job->arena, "%d", every), 1);
}

/* A window is all layers'. */
static void take_qwen3_moe(struct hf_reader *h)
{
    take_llama_shape(h, flag(h, "attention_bias", 0) ? "all" : "none");
    take_fields(h, qwen3_moe_fields, sizeof qwen3_moe_fields / sizeof *qwen3_moe_fields);
    take_sparse_layers(h);
    if (flag(h, "use_sliding_window", 0))
        take_window(h);
    hf_set(h, "model.qk_norm", "true", 1);
    take_balance(h);
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

    take_llama_shape(h, flag(h, "bias", 1) ? "all" : "none");
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

    take_llama_shape(h, "none");
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

    take_fields(h, qwen_fields, sizeof qwen_fields / sizeof *qwen_fields);
    if (cJSON_IsNumber(inner))
        hf_set(h, "model.ffn_size",
               arena_printf(h->job->arena, "%.15g", cJSON_GetNumberValue(inner) / 2), 1);
    else
        hf_refuse(h, "intermediate_size is missing");
    if (turned && cJSON_GetNumberValue(turned) != 1)
        hf_refuse(h, "rotary_pct is not built yet (hint: 1.0)");
    int no_bias = flag(h, "no_bias", 1);
    if (!flag(h, "scale_attn_weights", 1))
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

    take_fields(h, bloom_fields, sizeof bloom_fields / sizeof *bloom_fields);
    if (cJSON_IsNumber(width))
        hf_set(h, "model.ffn_size", arena_printf(h->job->arena, "%.0f", wide), 1);
    if (inner && cJSON_GetNumberValue(inner) != wide)
        hf_refuse(h, "n_inner is not 4 * hidden_size, which Bloom's code requires");
    if (flag(h, "apply_residual_connection_post_layernorm", 0))
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

    take_fields(h, gpt2_fields, sizeof gpt2_fields / sizeof *gpt2_fields);
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
    if (flag(h, "scale_attn_by_inverse_layer_idx", 0) || !flag(h, "scale_attn_weights", 1))
        hf_refuse(h, "attention is scaled otherwise than by 1/sqrt(head_dim): not built yet");
    if (flag(h, "add_cross_attention", 0))
        hf_refuse(h, "add_cross_attention is not built");
    hf_set(h, "model.bias", "true", 1);
    hf_set(h, "model.n_kv_heads", "auto", 1);
    hf_set(h, "model.head_dim", "auto", 1);
    hf_set(h, "model.norm", "layernorm", 1);
    hf_set(h, "model.position", "learned", 1);
    hf_set(h, "model.activation", "gelu", 1);
}

static const struct {
    const char *model_type;
    void (*take)(struct hf_reader *h);
} hf_families[] = {
    { "llama", take_llama },       { "gpt2", take_gpt2 },           { "qwen2", take_qwen2 },
    { "mistral", take_mistral },   { "internlm", take_internlm },   { "internlm2", take_internlm },
    { "baichuan", take_baichuan }, { "qwen3", take_qwen3 },         { "bloom", take_bloom },
    { "mixtral", take_mixtral },   { "qwen3_moe", take_qwen3_moe }, { "qwen", take_qwen },
};

#define N_HF_FAMILIES (sizeof hf_families / sizeof *hf_families)

static const char *family_names(struct hf_reader *h)
{
    struct str all = { 0 };

    for (size_t i = 0; i < N_HF_FAMILIES; i++)
        str_printf(&all, i ? ", %s" : "%s", hf_families[i].model_type);
    const char *text = arena_strdup(h->job->arena, str_text(&all));
    str_release(&all);
    return text;
}

/* Its own keys, also under the names that the family it is like knows them by. */
static void add_known_keys(cJSON *json, const struct yaml_node *keys)
{
    for (const struct yaml_node *pair = keys ? keys->first : NULL; pair; pair = pair->next) {
        const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(json, pair->text);

        if (!theirs)
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(json, pair->key);
        cJSON_AddItemToObject(json, pair->key, cJSON_Duplicate(theirs, 1));
    }
}

/*
 * Windows by the words of families that lmtrain reads otherwise: a switch that turns them off, and
 * layer_types that say what sliding_window already did.
 */
static void take_uniform_windows(struct hf_reader *h)
{
    const cJSON *types = hf_member(h->json, "layer_types"), *type;
    int window = h->job->job->model.window;

    if (!window && cJSON_IsFalse(hf_member(h->json, "use_sliding_window")))
        hf_keys_add(&h->keys, "use_sliding_window|sliding_window|max_window_layers");
    cJSON_ArrayForEach(type, types)
    {
        if (!cJSON_IsString(type) ||
            strcmp(type->valuestring, window ? "sliding_attention" : "full_attention") != 0)
            return;
    }
    hf_keys_add(&h->keys, "layer_types");
}

/* Whether a scalar of a map or list (or NULL) is this text. */
static int has_text(const struct yaml_node *node, const char *text)
{
    const struct yaml_node *item = node ? node->first : NULL;

    while (item && strcmp(item->text, text) != 0)
        item = item->next;
    return item != NULL;
}

/* Whatever config.json says must be read, or known to change nothing. */
static void check_unread(struct hf_reader *h, const struct hf_family *family)
{
    const char *difference =
        strcmp(h->model_type, h->like) != 0 ? hf_type_difference(h->model_type) : NULL;
    const cJSON *item;
    int n_unread = 0;

    take_uniform_windows(h);
    cJSON_ArrayForEach(item, h->json)
    {
        if (has_text(family->keys, item->string) || has_text(family->ignore, item->string) ||
            hf_keys_has(&h->keys, item->string) || hf_key_is_harmless(item, h->like))
            continue;
        if (n_unread++ == MAX_UNREAD)
            return;
        hf_refuse_key(h, "", item);
    }
    if (difference)
        hf_refuse(h, "model_type %s is not like %s: %s, which is not built yet", h->model_type,
                  h->like, difference);
}

static void set_fields(struct hf_reader *h, const struct yaml_node *fields)
{
    for (const struct yaml_node *field = fields ? fields->first : NULL; field;
         field = field->next) {
        const char *key = arena_printf(h->job->arena, "model.%s", field->key);

        if (field_find(key))
            hf_set(h, key, field->text, field->plain);
        else
            hf_refuse(h, "model.%.64s of the family file is not a field of a model", field->key);
    }
}

/* Some of these wrote their names in capitals: "InternLM". */
static void take_family(struct hf_reader *h, cJSON *json)
{
    const cJSON *type = hf_member(json, "model_type");
    struct hf_family family;
    struct err err;

    if (!cJSON_IsObject(h->json)) {
        hf_refuse(h, "not a JSON object");
        return;
    }
    if (!cJSON_IsString(type)) {
        hf_refuse(h, "model_type is missing (hint: %s)", family_names(h));
        return;
    }
    if (hf_family_read(&family, type->valuestring, h->job->arena, &err) < 0) {
        hf_refuse(h, "%s", err.text);
        return;
    }
    for (size_t i = 0; i < N_HF_FAMILIES; i++)
        if (!strcasecmp(family.like, hf_families[i].model_type)) {
            h->model_type = family.model_type;
            h->like = hf_families[i].model_type;
            add_known_keys(json, family.keys);
            hf_families[i].take(h);
            set_fields(h, family.model);
            if (!h->failed)
                check_unread(h, &family);
            return;
        }
    hf_refuse(h, "model_type is %.64s, not built yet (hint: %s, or configs/families/%.64s.yaml)",
              type->valuestring, family_names(h), type->valuestring);
}

int hf_config_take(struct job_reader *r, const char *path, const char *text, size_t n_bytes)
{
    const char *end = text;
    cJSON *json = cJSON_ParseWithLengthOpts(text, n_bytes, &end, 0);
    size_t at = (size_t)(end - text), n_behind = 0;
    struct hf_reader h = { .job = r, .path = path, .json = json };

    while (at + n_behind < n_bytes && memchr(" \t\r\n", end[n_behind], 4))
        n_behind++;
    if (str_has_json_nul(text, n_bytes))
        hf_refuse(&h, "a text with a NUL byte (\\u0000), which is not supported");
    else if (json && at + n_behind == n_bytes)
        take_family(&h, json);
    else
        hf_refuse(&h, "not valid JSON, from byte %zu on", at);
    cJSON_Delete(json);
    return h.failed ? -1 : 0;
}

int hf_config_parse(struct model_spec *spec, const char *text, size_t n_bytes, struct arena *arena,
                    struct err *err)
{
    struct job job = { .source = "config.json",
                       .notes = arena_array(arena, const char *, JOB_MAX_NOTES) };
    struct job_reader r = { .job = &job,
                            .arena = arena,
                            .model_only = 1,
                            .mistakes = { .arena = arena, .source = job.source },
                            .given = arena_array(arena, const struct yaml_node *, n_job_fields),
                            .refused = arena_array(arena, char, n_job_fields) };

    field_set_defaults(&job, arena);
    hf_config_take(&r, job.source, text, n_bytes);
    if (r.mistakes.n == 0)
        reader_derive(&r);
    if (r.mistakes.n == 0)
        reader_check(&r);
    if (diagnostics_tell(&r.mistakes, err))
        return -1;
    *spec = job.model;
    return 0;
}

/* The weights' own head counts for more than what config.json says of it. */
static void untie(struct job_reader *r, const char *folder)
{
    if (!r->job->model.tied_embeddings || !hf_head_is_own(folder, r->arena))
        return;
    r->job->model.tied_embeddings = 0;
    r->job->untied_by = arena_strdup(r->arena, folder);
    job_note(r->job, r->arena, "model.tied_embeddings = false (%s: " JOB_UNTIED ")", folder);
}

int hf_config_read(struct job_reader *r, const struct yaml_node *node, const char *folder)
{
    const char *path = arena_printf(r->arena, "%s/config.json", folder);
    char *text;
    size_t n_bytes;
    struct err err;

    if (file_read(path, CONFIG_MAX_BYTES, ERR_CONFIG, &text, &n_bytes, &err))
        return diagnostics_add(&r->mistakes, node, "%s", err.text);
    int status = hf_config_take(r, path, text, n_bytes);
    free(text);
    if (!status)
        untie(r, folder);
    return status;
}
