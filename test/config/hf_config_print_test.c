/*
 * hf_config_print_test.c - what a conversion changes in a config.json, and what it leaves
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "config/fields_impl.h"
#include "config/hf_config.h"

static cJSON *changed(const char *text, struct hf_config_changes changes)
{
    struct str out = { 0 };
    struct err err;

    assert_int_equal(hf_config_print_changed(text, strlen(text), &changes, &out, &err), 0);
    cJSON *json = cJSON_Parse(str_text(&out));
    assert_non_null(json);
    str_release(&out);
    return json;
}

static const char *text_of(const cJSON *json, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));

    return text ? text : "";
}

static void only_what_is_asked_for(void **state)
{
    static const char old[] = "{\"model_type\": \"llama\", \"torch_dtype\": \"float32\", "
                              "\"vocab_size\": 7, \"quantization_config\": {\"a\": 1}}";
    static const char new[] = "{\"dtype\": \"float32\", \"vocab_size\": 7, \"rope\": [1, 2]}";
    cJSON *json = changed(old, (struct hf_config_changes){ .dtype = DTYPE_BF16 });

    (void)state;
    assert_string_equal(text_of(json, "torch_dtype"), "bfloat16");
    assert_string_equal(text_of(json, "model_type"), "llama");
    assert_true(cJSON_HasObjectItem(json, "quantization_config"));
    assert_false(cJSON_HasObjectItem(json, "dtype"));
    assert_int_equal(cJSON_GetObjectItem(json, "vocab_size")->valueint, 7);
    cJSON_Delete(json);

    json = changed(old, (struct hf_config_changes){ .dtype = -1, .vocab_size = 9, .is_plain = 1 });
    assert_string_equal(text_of(json, "torch_dtype"), "float32");
    assert_int_equal(cJSON_GetObjectItem(json, "vocab_size")->valueint, 9);
    assert_false(cJSON_HasObjectItem(json, "quantization_config"));
    cJSON_Delete(json);

    /* transformers 5 calls it dtype, and goes on to. */
    json = changed(new, (struct hf_config_changes){ .dtype = DTYPE_F16 });
    assert_string_equal(text_of(json, "dtype"), "float16");
    assert_false(cJSON_HasObjectItem(json, "torch_dtype"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "rope")), 2);
    cJSON_Delete(json);
}

static void what_is_no_object_is_refused(void **state)
{
    const struct hf_config_changes changes = { .dtype = -1 };
    struct str out = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(hf_config_print_changed("[1]", 3, &changes, &out, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_int_equal(hf_config_print_changed("{", 1, &changes, &out, &err), -1);
    str_release(&out);
}

/* ---- each field of a model in each family ---- */

/* A model of each family that is printed: fields as YAML. */
static const struct shape {
    const char *family, *fields;
} shapes[] = {
#define SIZES "vocab_size: 96, hidden_size: 64, n_layers: 6, n_heads: 4, ffn_size: 256"
#define EXPERTS "n_experts: 4, expert_ffn_size: 32"
#define ROUTER "router_score: sigmoid, router_bias: true, qk_norm: true"
    { "llama", SIZES },
    { "llama", SIZES ", rope_scaling: {type: linear, factor: 2.0}" },
    { "llama", SIZES ", rope_scaling: {type: dynamic, factor: 2.0}" },
    { "llama", SIZES ", rope_scaling: {type: llama3, factor: 2.0}" },
    { "llama", SIZES ", rope_scaling: {type: yarn, factor: 2.0}" },
    { "gpt2", SIZES ", norm: layernorm, position: learned, activation: gelu, bias: true, "
                    "max_seq_len: 128, dropout: 0.1" },
    { "bloom", SIZES ", norm: layernorm, position: alibi, activation: gelu, bias: true, "
                     "embedding_norm: true, dropout: 0.1, embedding_dropout: false" },
    { "qwen2", SIZES ", attention_bias: qkv" },
    { "qwen2", SIZES ", attention_bias: qkv, window: 32, window_first_layer: 1" },
    { "mistral", SIZES ", window: 32" },
    { "qwen3", SIZES ", qk_norm: true" },
    { "qwen3", SIZES ", qk_norm: true, window: 32, window_first_layer: 2, window_period: 2" },
    { "mixtral", SIZES ", " EXPERTS ", router_balance: 0.1, router_balance_kind: pooled" },
    { "qwen3_moe", SIZES ", " EXPERTS ", qk_norm: true, router_normalize: false" },
    { "qwen3_moe", SIZES ", " EXPERTS ", qk_norm: true, expert_every: 2, window: 32" },
    { "qwen3_moe", SIZES ", " EXPERTS ", qk_norm: true, first_dense_layers: 3" },
    { "qwen2_moe", SIZES ", " EXPERTS ", n_shared_experts: 1, shared_ffn_size: 96, shared_gate: "
                         "true, attention_bias: qkv, first_dense_layers: 1" },
    { "qwen2_moe",
      SIZES ", " EXPERTS ", n_shared_experts: 3, shared_gate: true, "
            "router_normalize: false, expert_every: 3, window: 32, "
            "window_first_layer: 2, router_balance: 0.1, router_balance_kind: pooled" },
    { "dots1", SIZES ", " EXPERTS ", n_shared_experts: 2, " ROUTER },
    { "dots1", SIZES ", " EXPERTS ", n_shared_experts: 1, " ROUTER ", router_groups: 2, "
                     "first_dense_layers: 1, router_scaling: 2.5, window: 32, window_period: 2" },
};

/* What numbers of any field may be; those that it, or the model, does not take are left out. */
static const char *const numbers[] = { "0",     "1",    "2",   "3",   "4",    "5",    "8",
                                       "16",    "32",   "64",  "96",  "77",   "128",  "256",
                                       "0.001", "0.05", "0.3", "2.5", "5e+5", "auto", "none" };

static int read_model(struct job *job, const char *fields, const char *override,
                      struct arena *arena, struct err *err)
{
    const char *text = arena_printf(arena, "model: {%s}", fields);

    return job_read_model(job, text, strlen(text), "model", &override, override ? 1 : 0, arena,
                          err);
}

/* Whether such a scaling does not look at the field. */
static int scaling_ignores(enum rope_scaling type, const char *key)
{
    static const char *const readers[][2] = {
        { "original_max_seq_len", "dynamic llama3 yarn" },
        { "low_freq_factor", "llama3" },
        { "high_freq_factor", "llama3" },
        { "beta_fast", "yarn" },
        { "beta_slow", "yarn" },
        { "attention_factor", "yarn" },
        { "truncate", "yarn" },
        { "scaling.factor", "linear dynamic llama3 yarn" },
    };
    static const char *const types[] = { "none", "linear", "dynamic", "llama3", "yarn" };

    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (str_ends_with(key, readers[i][0]))
            return !strstr(readers[i][1], types[type]);
    return 0;
}

/* Whether the field says nothing in such a model. */
static int says_nothing(const struct model_spec *s, const char *key)
{
    int all_have_experts =
        s->n_experts && model_spec_n_expert_layers(s, s->n_layers) == s->n_layers;

    return !strcmp(key, "model.name") ||
           (!s->n_experts &&
            (strstr(key, "expert_") || strstr(key, "active_experts") || strstr(key, "shared_") ||
             strstr(key, "first_dense_layers") || str_starts_with(key, "model.router_"))) ||
           (s->router_groups <= 1 && !strcmp(key, "model.router_groups_kept")) ||
           (!s->router_bias && !strcmp(key, "model.router_bias_rate")) ||
           (all_have_experts && !strcmp(key, "model.ffn_size")) ||
           (!(s->router_balance > 0) && !strcmp(key, "model.router_balance_kind")) ||
           (s->position != POSITION_ROPE && str_starts_with(key, "model.rope_")) ||
           (str_starts_with(key, "model.rope_scaling.") &&
            scaling_ignores(s->rope_scaling.type, key)) ||
           (s->bias && !strcmp(key, "model.attention_bias")) ||
           (!(s->dropout > 0) && !strcmp(key, "model.embedding_dropout"));
}

static int original_length(const struct model_spec *s)
{
    return s->rope_scaling.original_max_seq_len ? s->rope_scaling.original_max_seq_len
                                                : s->max_seq_len;
}

/* Windows are the same where each layer's is, and so are layers with experts; of shared ones the
 * width counts. */
static int is_same(const struct field *f, const struct job *a, const struct job *b)
{
    struct str of_a = { 0 }, of_b = { 0 };
    int same = 1;

    field_print(f, a, &of_a);
    field_print(f, b, &of_b);
    if (str_starts_with(f->key, "model.window"))
        for (int layer = 0; layer < a->model.n_layers; layer++)
            same &= model_spec_window(&a->model, layer) == model_spec_window(&b->model, layer);
    else if (!strcmp(f->key, "model.expert_every") || !strcmp(f->key, "model.first_dense_layers"))
        for (int layer = 0; layer < a->model.n_layers; layer++)
            same &= model_spec_has_experts(&a->model, layer) ==
                    model_spec_has_experts(&b->model, layer);
    else if (!strcmp(f->key, "model.n_shared_experts"))
        same = a->model.shared_ffn_size == b->model.shared_ffn_size;
    else if (!strcmp(f->key, "model.router_balance"))
        same = fabs(a->model.router_balance - b->model.router_balance) < 1e-12;
    else if (!strcmp(f->key, "model.rope_scaling.original_max_seq_len"))
        same = original_length(&a->model) == original_length(&b->model);
    else
        same = !strcmp(str_text(&of_a), str_text(&of_b));
    str_release(&of_a);
    str_release(&of_b);
    return same;
}

/* It is another model only by what was said to be left out. */
static void check_back(const struct job *job, const struct job *back, const char *unsaid,
                       const char *what)
{
    for (int i = 0; str_starts_with(job_fields[i].key, "model."); i++) {
        const struct field *f = &job_fields[i];

        if (!says_nothing(&job->model, f->key) && !is_same(f, job, back) && !strstr(unsaid, f->key))
            fail_msg("%s: %s was lost", what, f->key);
    }
}

enum outcome { NO_MODEL, PRINTED, REFUSED };

static enum outcome check_one(const struct shape *shape, const struct field *f, const char *value,
                              struct arena *arena)
{
    const char *override = arena_printf(arena, "%s=%s", f->key, value);
    const char *what = arena_printf(arena, "%s {%s} %s", shape->family, shape->fields, override);
    struct str out = { 0 }, unsaid = { 0 };
    struct job job, back = { 0 };
    struct err err = { 0 };
    enum outcome outcome = REFUSED;

    if (read_model(&job, shape->fields, override, arena, &err))
        return NO_MODEL;
    hf_config_unsaid(&job.model, shape->family, &unsaid);
    if (hf_config_print(&job.model, shape->family, DTYPE_F32, &out, &err)) {
        /* Bloom's ffn_size is 4 hidden_size: it is the one that is not said. */
        int is_named = strstr(err.text, f->key) || strstr(err.text, "no model.ffn_size 256");
        if (!is_named)
            fail_msg("%s: refused without its name: %s", what, err.text);
        assert_int_equal(out.length, 0);
    } else {
        outcome = PRINTED;
        if (hf_config_parse(&back.model, str_text(&out), out.length, arena, &err))
            fail_msg("%s: %s", what, err.text);
        check_back(&job, &back, str_text(&unsaid), what);
    }
    str_release(&out);
    str_release(&unsaid);
    return outcome;
}

/* All that the field may be. Returns how many of them were a model that was printed. */
static int check_field(const struct shape *shape, const struct field *f, struct arena *arena)
{
    static const char *const flags[] = { "true", "false" };
    int n_printed = 0;

    for (int i = 0; f->type == FIELD_BOOL && i < 2; i++)
        n_printed += check_one(shape, f, flags[i], arena) == PRINTED;
    for (const struct choice *c = f->choices; c && c->word; c++)
        n_printed += check_one(shape, f, c->word, arena) == PRINTED;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (f->type == FIELD_INT || f->type == FIELD_FLOAT)
            n_printed += check_one(shape, f, numbers[i], arena) == PRINTED;
    return n_printed;
}

/* A model of ours that becomes a family's is the same one when it comes back, or it is refused. */
static void each_field_in_each_family(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; str_starts_with(job_fields[i].key, "model."); i++) {
            struct arena arena = { 0 };

            if (job_fields[i].type != FIELD_NAME &&
                !check_field(&shapes[s], &job_fields[i], &arena))
                fail_msg("%s {%s}: no %s at all", shapes[s].family, shapes[s].fields,
                         job_fields[i].key);
            arena_release(&arena);
        }
}

/* What was lost once, by name. */
static void what_a_family_lacks_is_named(void **state)
{
    static const struct {
        const char *family, *fields, *refused, *unsaid;
    } rows[] = {
        { "llama", SIZES ", rope_scaling: {type: dynamic, factor: 2.0, original_max_seq_len: 512}",
          "llama models cannot have the architecture of custom: they have no "
          "model.rope_scaling.original_max_seq_len "
          "512",
          "" },
        { "llama", SIZES ", dropout: 0.1, qk_norm: true, window: 16",
          "no model.qk_norm true, model.window 16",
          "model.dropout 0.1, model.embedding_dropout true" },
        { "qwen3_moe", SIZES ", " EXPERTS ", qk_norm: true, router_balance: 0.5", NULL,
          "model.router_balance_kind per_layer" },
        { "bloom",
          SIZES ", norm: layernorm, position: alibi, activation: gelu, bias: true, "
                "embedding_norm: true, dropout: 0.1",
          NULL, "model.embedding_dropout true" },
        { "gpt3", SIZES, "lmtrain writes no config.json of gpt3 models", "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arena arena = { 0 };
        struct str out = { 0 }, unsaid = { 0 };
        struct err err = { 0 };
        struct job job;

        if (read_model(&job, rows[i].fields, NULL, &arena, &err))
            fail_msg("%s", err.text);
        hf_config_unsaid(&job.model, rows[i].family, &unsaid);
        assert_string_equal(str_text(&unsaid), rows[i].unsaid);
        int status = hf_config_print(&job.model, rows[i].family, DTYPE_F32, &out, &err);
        assert_int_equal(status, rows[i].refused ? -1 : 0);
        if (rows[i].refused && !strstr(err.text, rows[i].refused))
            fail_msg("%s", err.text);
        str_release(&out);
        str_release(&unsaid);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_asked_for),
        cmocka_unit_test(what_is_no_object_is_refused),
        cmocka_unit_test(each_field_in_each_family),
        cmocka_unit_test(what_a_family_lacks_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
