/*
 * hf_config.c - a model's shape from the config.json of a Hugging Face folder
 *
 * Values go through the table of fields like those of YAML, so ranges and messages are the same.
 * Both spellings are read: transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters). What
 * would silently be another model (a family, an activation, a rope scaling that we lack) is refused
 * by name.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/hf_family.h"
#include "config/hf_head.h"
#include "config/read_impl.h"

#define CONFIG_MAX_BYTES ((size_t)4 << 20)

struct hf_field {
    const char *theirs; /* "new|old" where it had another name */
    const char *ours;
    const char *initial; /* what transformers takes if it is absent; NULL: must be there */
};

struct hf_reader {
    struct job_reader *job;
    const char *path;
    const cJSON *json;
    int failed;
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

static void refuse(struct hf_reader *h, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void refuse(struct hf_reader *h, const char *format, ...)
{
    struct yaml_node here = { .source = h->path };
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    mistakes_add(&h->job->mistakes, &here, "%s", text);
    h->failed = 1;
}

/* The member, or NULL if it is absent or null. */
static const cJSON *member(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return item && !cJSON_IsNull(item) ? item : NULL;
}

/* The first that is there of names separated by "|". */
static const cJSON *member_of(const cJSON *object, const char *names)
{
    const cJSON *item = NULL;
    char name[64];

    for (const char *at = names; at && !item; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "|"), at);
        item = member(object, name);
    }
    return item;
}

/* A JSON scalar in the words of YAML, or NULL for an object or array. */
static const char *scalar_text(struct hf_reader *h, const cJSON *item)
{
    struct str text = { 0 };
    const char *result;

    if (cJSON_IsBool(item))
        return cJSON_IsTrue(item) ? "true" : "false";
    if (cJSON_IsString(item))
        return arena_strdup(h->job->arena, item->valuestring);
    if (!cJSON_IsNumber(item))
        return NULL;
    double value = item->valuedouble;
    if (!isfinite(value))
        return "infinite"; /* 1e999: no number to any field */
    if (value >= -1e15 && value <= 1e15 && value == (double)(int64_t)value)
        str_printf(&text, "%lld", (long long)value);
    else
        field_print_float(&text, value);
    result = arena_strdup(h->job->arena, str_text(&text));
    str_release(&text);
    return result;
}

static void set(struct hf_reader *h, const char *ours, const char *text, int plain)
{
    const struct field *field = field_find(ours);
    struct yaml_node *node = arena_new(h->job->arena, struct yaml_node);

    CHECK(field);
    *node =
        (struct yaml_node){ .kind = YAML_SCALAR, .plain = plain, .text = text, .source = h->path };
    if (field_set(field, h->job->job, node, &h->job->mistakes))
        h->failed = 1;
    h->job->given[field - job_fields] = node;
}

static void take_fields(struct hf_reader *h, const struct hf_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const cJSON *item = member_of(h->json, fields[i].theirs);
        const char *text = item ? scalar_text(h, item) : fields[i].initial;

        if (!text)
            refuse(h, "%.*s is %s", (int)strcspn(fields[i].theirs, "|"), fields[i].theirs,
                   item ? "a list or an object" : "missing");
        else
            set(h, fields[i].ours, text, !cJSON_IsString(item));
    }
}

/* A flag of theirs, or initial if absent. */
static int flag(const struct hf_reader *h, const char *name, int initial)
{
    const cJSON *item = member(h->json, name);

    return item ? cJSON_IsTrue(item) : initial;
}

static void take_activation(struct hf_reader *h, const char *name, const char *const *allowed,
                            int n_allowed, const char *initial)
{
    const cJSON *item = member(h->json, name);
    const char *text = item ? scalar_text(h, item) : initial;

    for (int i = 0; text && i < n_allowed; i++)
        if (!strcmp(text, allowed[i]))
            return;
    refuse(h, "%s is %.64s, which lmtrain does not have (hint: %s)", name, text ? text : "no text",
           allowed[0]);
}

/* A number of rope_scaling into one of ours; absent: initial, and if that is NULL it must be there. */
static void take_number(struct hf_reader *h, const cJSON *from, const char *theirs,
                        const char *ours, const char *initial)
{
    const cJSON *item = member(from, theirs);
    const char *text = cJSON_IsNumber(item) ? scalar_text(h, item) : initial;

    if (item && !cJSON_IsNumber(item))
        refuse(h, "rope scaling: %s is not a number", theirs);
    else if (!text)
        refuse(h, "rope scaling: %s is missing", theirs);
    else
        set(h, arena_printf(h->job->arena, "model.rope_scaling.%s", ours), text, 1);
}

/* Without mscale's ratio (DeepSeek) the factor is ours by default too. */
static void take_yarn_attention(struct hf_reader *h, const cJSON *from)
{
    double factor = cJSON_GetNumberValue(member(from, "factor"));
    double mscale = cJSON_GetNumberValue(member(from, "mscale"));
    double all_dim = cJSON_GetNumberValue(member(from, "mscale_all_dim"));
    struct str text = { 0 };

    if (member(from, "attention_factor") || !(mscale > 0) || !(all_dim > 0) || !(factor > 1)) {
        take_number(h, from, "attention_factor", "attention_factor", "auto");
        return;
    }
    field_print_float(&text, (0.1 * mscale * log(factor) + 1) / (0.1 * all_dim * log(factor) + 1));
    set(h, "model.rope_scaling.attention_factor", arena_strdup(h->job->arena, str_text(&text)), 1);
    str_release(&text);
}

static void take_scaling(struct hf_reader *h, const cJSON *from, const char *type)
{
    int yarn = !strcmp(type, "yarn"), llama3 = !strcmp(type, "llama3");

    if (!yarn && !llama3 && strcmp(type, "linear") != 0 && strcmp(type, "dynamic") != 0) {
        refuse(h, "rope scaling %.64s is not built yet (hint: linear, dynamic, llama3, yarn)",
               type);
        return;
    }
    set(h, "model.rope_scaling.type", arena_strdup(h->job->arena, type), 0);
    take_number(h, from, "factor", "factor", NULL);
    if (llama3 || yarn)
        take_number(h, from, "original_max_position_embeddings", "original_max_seq_len", "auto");
    if (llama3) {
        take_number(h, from, "low_freq_factor", "low_freq_factor", NULL);
        take_number(h, from, "high_freq_factor", "high_freq_factor", NULL);
    }
    if (yarn) {
        take_number(h, from, "beta_fast", "beta_fast", "32.0");
        take_number(h, from, "beta_slow", "beta_slow", "1.0");
        take_yarn_attention(h, from);
        if (cJSON_IsFalse(member(from, "truncate")))
            set(h, "model.rope_scaling.truncate", "false", 1);
    }
}

static void take_rope(struct hf_reader *h)
{
    const cJSON *parameters = member(h->json, "rope_parameters");
    const cJSON *scaling = member(h->json, "rope_scaling");
    const cJSON *theta = member(h->json, "rope_theta");
    const cJSON *both[] = { parameters, scaling };
    int n_taken = 0;

    for (int i = 0; i < 2; i++) {
        const cJSON *type = both[i] ? member(both[i], "rope_type") : NULL;

        if (both[i] && !type)
            type = member(both[i], "type");
        if (type && !cJSON_IsString(type))
            refuse(h, "rope scaling of an unknown kind is not built yet");
        else if (type && strcmp(type->valuestring, "default") != 0 && n_taken++ == 0)
            take_scaling(h, both[i], type->valuestring);
        else if (both[i] && i == 1 && !type)
            refuse(h, "rope_scaling without a type");
    }
    if (parameters && member(parameters, "rope_theta"))
        theta = member(parameters, "rope_theta");
    if ((parameters && member(parameters, "partial_rotary_factor")) ||
        member(h->json, "partial_rotary_factor"))
        refuse(h, "partial_rotary_factor is not built yet");
    const char *text = theta ? scalar_text(h, theta) : "10000.0";
    if (text)
        set(h, "model.rope_theta", text, 1);
    else
        refuse(h, "rope_theta is not a number");
}

/* sliding_window; absent: 4096, null or 0: none. Whether there is one. */
static int take_window(struct hf_reader *h)
{
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(h->json, "sliding_window");
    const char *text = window ? scalar_text(h, window) : "4096";

    if (cJSON_IsNull(window) || (text && !strcmp(text, "0")))
        return 0;
    if (text)
        set(h, "model.window", text, !cJSON_IsString(window));
    else
        refuse(h, "sliding_window is a list or an object");
    return 1;
}

/* Whether a layer slides, by its kind in layer_types; -1 after a refusal. */
static int slides(struct hf_reader *h, const cJSON *type, int layer)
{
    const char *kind = cJSON_IsString(type) ? type->valuestring : "the kind";

    if (!strcmp(kind, "sliding_attention") || !strcmp(kind, "full_attention"))
        return *kind == 's';
    refuse(h,
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
            refuse(h,
                   "layer_types: %s of layer %d is not built yet (hint: behind the first with "
                   "sliding_attention every so many-th has full_attention, or none)",
                   type->valuestring, n);
            return -1;
        }
        n++;
    }
    if (!h->failed && n != n_layers) {
        refuse(h, "layer_types has %d kinds, num_hidden_layers is %d", n, n_layers);
        return -1;
    }
    return first;
}

/* Qwen's, of layers from max_window_layers on, or as layer_types says. */
static void take_window_of_layers(struct hf_reader *h)
{
    const cJSON *types = member(h->json, "layer_types"), *max;
    int windows = flag(h, "use_sliding_window", 0) && take_window(h), first, period = 0;

    if (cJSON_IsArray(types)) {
        first = first_with_window(h, types, &period);
    } else {
        max = member(h->json, "max_window_layers");
        double n = max ? cJSON_GetNumberValue(max) : 28;
        first = n >= 0 && n < h->job->job->model.n_layers ? (int)n : h->job->job->model.n_layers;
    }
    if (first < 0)
        return;
    if (first == h->job->job->model.n_layers)
        set(h, "model.window", "none", 1);
    else if (windows) {
        set(h, "model.window_first_layer", arena_printf(h->job->arena, "%d", first), 1);
        if (period)
            set(h, "model.window_period", arena_printf(h->job->arena, "%d", period), 1);
    } else if (types)
        refuse(h, "layer_types has sliding_attention, but use_sliding_window is false or "
                  "sliding_window null");
}

/* What is llama's in all families of its shape. biases: "none", "qkv" or "all", in attention. */
static void take_llama_shape(struct hf_reader *h, const char *biases)
{
    static const char *const silu[] = { "silu", "swish" };

    take_fields(h, llama_fields, sizeof llama_fields / sizeof *llama_fields);
    take_activation(h, "hidden_act", silu, 2, "silu");
    take_rope(h);
    set(h, "model.bias", "false", 1);
    set(h, "model.attention_bias", biases, 0);
    set(h, "model.norm", "rmsnorm", 1);
    set(h, "model.position", "rope", 1);
    set(h, "model.activation", "swiglu", 1);
    set(h, "model.dropout", "0.0", 1);
}

static void take_llama(struct hf_reader *h)
{
    int attention_bias = flag(h, "attention_bias", 0), mlp_bias = flag(h, "mlp_bias", 0);

    take_llama_shape(h, attention_bias && !mlp_bias ? "all" : "none");
    if (mlp_bias && !attention_bias)
        refuse(h, "mlp_bias without attention_bias is not built yet");
    else if (mlp_bias)
        set(h, "model.bias", "true", 1);
}

static void take_qwen2(struct hf_reader *h)
{
    take_llama_shape(h, "qkv");
    take_window_of_layers(h);
}

static void take_qwen3(struct hf_reader *h)
{
    const cJSON *head_dim = member(h->json, "head_dim");

    take_llama_shape(h, flag(h, "attention_bias", 0) ? "all" : "none");
    take_window_of_layers(h);
    if (!head_dim)
        set(h, "model.head_dim", "128", 1);
    set(h, "model.qk_norm", "true", 1);
}

static void take_mistral(struct hf_reader *h)
{
    take_llama_shape(h, "none");
    take_window(h);
}

/*
 * Theirs is one balance of all layers' choices together, that is the choices of a token where all
 * experts are used alike; ours is a sum over layers, each 1 then. It is trained on where it is asked
 * for alone.
 */
static void take_balance(struct hf_reader *h)
{
    const struct model_spec *s = &h->job->job->model;
    const cJSON *coefficient = member(h->json, "router_aux_loss_coef");
    double theirs = coefficient ? cJSON_GetNumberValue(coefficient) : 0.001;
    int n_layers = h->failed ? 0 : model_spec_n_expert_layers(s, s->n_layers);
    struct str text = { 0 };

    if (!flag(h, "output_router_logits", 0) || n_layers < 1)
        return;
    field_print_float(&text, theirs * s->n_active_experts / n_layers);
    set(h, "model.router_balance", arena_strdup(h->job->arena, str_text(&text)), 1);
    str_release(&text);
}

static void take_mixtral(struct hf_reader *h)
{
    const cJSON *noise = member(h->json, "router_jitter_noise");

    take_llama_shape(h, "none");
    take_fields(h, mixtral_fields, sizeof mixtral_fields / sizeof *mixtral_fields);
    if (!member(h->json, "rms_norm_eps"))
        set(h, "model.norm_eps", "1.0e-5", 1);
    if (!member(h->json, "rope_theta") && !member(h->json, "rope_parameters"))
        set(h, "model.rope_theta", "1000000.0", 1);
    if (member(h->json, "sliding_window"))
        take_window(h);
    if (noise && !(cJSON_GetNumberValue(noise) <= 0))
        refuse(h, "router_jitter_noise is not built (hint: 0, which has no part in what the model "
                  "gives)");
    set(h, "model.router_normalize", "true", 1);
    take_balance(h);
}

/* Has the layer experts, by both of their settings? */
static int is_sparse(const struct hf_reader *h, int layer, int step)
{
    const cJSON *dense;

    cJSON_ArrayForEach(dense, member(h->json, "mlp_only_layers"))
    {
        if (cJSON_GetNumberValue(dense) == layer)
            return 0;
    }
    return (layer + 1) % step == 0;
}

/* Every how many-th layer has experts. */
static void take_sparse_layers(struct hf_reader *h)
{
    const cJSON *item = member(h->json, "decoder_sparse_step");
    double step = item ? cJSON_GetNumberValue(item) : 1;
    int n_layers = h->job->job->model.n_layers, every = 1, layer = 0;

    if (h->failed)
        return;
    if (!(step >= 1 && step <= n_layers)) {
        refuse(h, "decoder_sparse_step is not in 1..%d", n_layers);
        return;
    }
    while (every <= n_layers && layer < n_layers) {
        int same = is_sparse(h, layer, (int)step) == ((layer + 1) % every == 0);

        layer = same ? layer + 1 : 0;
        every += !same;
    }
    if (every > n_layers)
        refuse(h, "mlp_only_layers: layers with experts are not every so many-th one, which is not "
                  "built yet");
    else
        set(h, "model.expert_every", arena_printf(h->job->arena, "%d", every), 1);
}

/* A window is all layers'. */
static void take_qwen3_moe(struct hf_reader *h)
{
    take_llama_shape(h, flag(h, "attention_bias", 0) ? "all" : "none");
    take_fields(h, qwen3_moe_fields, sizeof qwen3_moe_fields / sizeof *qwen3_moe_fields);
    take_sparse_layers(h);
    if (flag(h, "use_sliding_window", 0))
        take_window(h);
    set(h, "model.qk_norm", "true", 1);
    take_balance(h);
}

/* All of InternLM's attention has biases, or nothing has. */
static void take_internlm(struct hf_reader *h)
{
    take_llama_shape(h, flag(h, "bias", 1) ? "all" : "none");
}

/*
 * The 13B have ALiBi and say so by max_position_embeddings that is not there. Those of the second
 * generation have a normalised head; their code has it without asking, their config.json alone
 * knows of z_loss_weight, and their vocabulary is this large.
 */
static void take_baichuan(struct hf_reader *h)
{
    const cJSON *vocab_size = member(h->json, "vocab_size");
    const cJSON *length = member(h->json, "model_max_length");
    const cJSON *z_loss = member(h->json, "z_loss_weight");

    take_llama_shape(h, "none");
    if (!member(h->json, "max_position_embeddings")) {
        if (length && scalar_text(h, length))
            set(h, "model.max_seq_len", scalar_text(h, length), !cJSON_IsString(length));
        else
            refuse(h, "neither max_position_embeddings (rope) nor model_max_length (ALiBi) is "
                      "there");
        set(h, "model.position", "alibi", 1);
    }
    if (z_loss && cJSON_GetNumberValue(z_loss) != 0)
        refuse(h,
               "z_loss_weight is not built (hint: 0, which has no part in what the model gives)");
    if (z_loss || cJSON_GetNumberValue(vocab_size) == 125696)
        set(h, "model.normalized_head", "true", 1);
}

/*
 * The first generation. intermediate_size counts both halves of what the activation joins. Up to
 * seq_length use_dynamic_ntk and use_logn_attn change nothing.
 */
static void take_qwen(struct hf_reader *h)
{
    const cJSON *inner = member(h->json, "intermediate_size"),
                *turned = member(h->json, "rotary_pct");

    take_fields(h, qwen_fields, sizeof qwen_fields / sizeof *qwen_fields);
    if (cJSON_IsNumber(inner))
        set(h, "model.ffn_size",
            arena_printf(h->job->arena, "%.15g", cJSON_GetNumberValue(inner) / 2), 1);
    else
        refuse(h, "intermediate_size is missing");
    if (turned && cJSON_GetNumberValue(turned) != 1)
        refuse(h, "rotary_pct is not built yet (hint: 1.0)");
    int no_bias = flag(h, "no_bias", 1);
    if (!flag(h, "scale_attn_weights", 1))
        refuse(h, "attention is scaled otherwise than by 1/sqrt(head_dim): not built yet");
    set(h, "model.bias", no_bias ? "false" : "true", 1);
    set(h, "model.attention_bias", no_bias ? "qkv" : "none", 0);
    set(h, "model.n_kv_heads", "auto", 1);
    set(h, "model.norm", "rmsnorm", 1);
    set(h, "model.position", "rope", 1);
    set(h, "model.activation", "swiglu", 1);
}

static void take_bloom(struct hf_reader *h)
{
    const cJSON *inner = member(h->json, "n_inner"),
                *width = member_of(h->json, "hidden_size|n_embed");
    double wide = 4 * cJSON_GetNumberValue(width);

    take_fields(h, bloom_fields, sizeof bloom_fields / sizeof *bloom_fields);
    if (cJSON_IsNumber(width))
        set(h, "model.ffn_size", arena_printf(h->job->arena, "%.0f", wide), 1);
    if (inner && cJSON_GetNumberValue(inner) != wide)
        refuse(h, "n_inner is not 4 hidden_size, as Bloom's code has it");
    if (flag(h, "apply_residual_connection_post_layernorm", 0))
        refuse(h, "apply_residual_connection_post_layernorm is not built (hint: false, as the "
                  "published models have it)");
    set(h, "model.embedding_dropout", "false", 1);
    set(h, "model.bias", "true", 1);
    set(h, "model.n_kv_heads", "auto", 1);
    set(h, "model.head_dim", "auto", 1);
    set(h, "model.norm", "layernorm", 1);
    set(h, "model.embedding_norm", "true", 1);
    set(h, "model.position", "alibi", 1);
    set(h, "model.activation", "gelu", 1);
}

static void take_gpt2(struct hf_reader *h)
{
    static const char *const tanh_gelu[] = { "gelu_new", "gelu_pytorch_tanh", "gelu_fast" };
    const cJSON *inner = member(h->json, "n_inner"), *width = member(h->json, "n_embd");
    const cJSON *after_embedding = member(h->json, "embd_pdrop");

    take_fields(h, gpt2_fields, sizeof gpt2_fields / sizeof *gpt2_fields);
    take_activation(h, "activation_function", tanh_gelu, 3, "gelu_new");
    if (inner && scalar_text(h, inner))
        set(h, "model.ffn_size", scalar_text(h, inner), 1);
    else if (cJSON_IsNumber(width))
        set(h, "model.ffn_size",
            arena_printf(h->job->arena, "%.0f", 4 * cJSON_GetNumberValue(width)), 1);
    double first = after_embedding ? cJSON_GetNumberValue(after_embedding) : 0.1;
    set(h, "model.embedding_dropout",
        first == 0 && h->job->job->model.dropout > 0 ? "false" : "true", 1);
    if (!h->failed && first != 0 && first != h->job->job->model.dropout)
        refuse(h, "embd_pdrop differs from resid_pdrop, lmtrain has one dropout for both (hint: "
                  "the same, or embd_pdrop 0)");
    if (flag(h, "scale_attn_by_inverse_layer_idx", 0) || !flag(h, "scale_attn_weights", 1))
        refuse(h, "attention is scaled otherwise than by 1/sqrt(head_dim): not built yet");
    if (flag(h, "add_cross_attention", 0))
        refuse(h, "add_cross_attention is not built");
    set(h, "model.bias", "true", 1);
    set(h, "model.n_kv_heads", "auto", 1);
    set(h, "model.head_dim", "auto", 1);
    set(h, "model.norm", "layernorm", 1);
    set(h, "model.position", "learned", 1);
    set(h, "model.activation", "gelu", 1);
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

static void set_fields(struct hf_reader *h, const struct yaml_node *fields)
{
    for (const struct yaml_node *field = fields ? fields->first : NULL; field;
         field = field->next) {
        const char *key = arena_printf(h->job->arena, "model.%s", field->key);

        if (field_find(key))
            set(h, key, field->text, field->plain);
        else
            refuse(h, "its family's model.%.64s is no field of a model", field->key);
    }
}

/* Some of these wrote their names in capitals: "InternLM". */
static void take_family(struct hf_reader *h, cJSON *json)
{
    const cJSON *type = member(json, "model_type");
    struct hf_family family;
    struct err err;

    if (!cJSON_IsObject(h->json)) {
        refuse(h, "not a JSON object");
        return;
    }
    if (!cJSON_IsString(type)) {
        refuse(h, "model_type is missing (hint: %s)", family_names(h));
        return;
    }
    if (hf_family_read(&family, type->valuestring, h->job->arena, &err) < 0) {
        refuse(h, "%s", err.text);
        return;
    }
    for (size_t i = 0; i < N_HF_FAMILIES; i++)
        if (!strcasecmp(family.like, hf_families[i].model_type)) {
            add_known_keys(json, family.keys);
            hf_families[i].take(h);
            set_fields(h, family.model);
            return;
        }
    refuse(h, "model_type is %.64s, not built yet (hint: %s, or configs/families/%.64s.yaml)",
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
        refuse(&h, "a text with a NUL byte (\\u0000), which is not supported");
    else if (json && at + n_behind == n_bytes)
        take_family(&h, json);
    else
        refuse(&h, "not valid JSON, from byte %zu on", at);
    cJSON_Delete(json);
    return h.failed ? -1 : 0;
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
        return mistakes_add(&r->mistakes, node, "%s", err.text);
    int status = hf_config_take(r, path, text, n_bytes);
    free(text);
    if (!status)
        untie(r, folder);
    return status;
}
