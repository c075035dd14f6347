/*
 * hf_family_test.c - families that a file describes: their config.json, their tensors' names
 */
#include "config_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "config/hf_family.h"
#include "support/temporary.h"

#define CONFIG \
    "{\"model_type\": \"Mine\", \"vocab_size\": 32000, \"width\": 768, \"n_layer\": 12, " \
    "\"num_attention_heads\": 12, \"intermediate_size\": 2048, \"hidden_size\": 5}"

static char folder[256], before[1024];

static int enter_folder(void **state)
{
    struct err err;

    (void)state;
    return !getcwd(before, sizeof before) || temporary_folder(folder, sizeof folder) < 0 ||
           chdir(folder) < 0 || file_make_folders("configs/families", &err) < 0 ||
           file_make_folders("model", &err) < 0 ||
           file_write("model/config.json", CONFIG, sizeof CONFIG - 1, &err) < 0;
}

static int leave_folder(void **state)
{
    struct err err;

    (void)state;
    return chdir(before) < 0 || file_remove_tree(folder, &err) < 0;
}

static void describe(const char *text)
{
    struct err err;

    assert_int_equal(file_write("configs/families/mine.yaml", text, strlen(text), &err), 0);
}

static void config_json(void **state)
{
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    describe("like: llama\nkeys: {hidden_size: width, num_hidden_layers: n_layer}\n"
             "model: {attention_bias: qkv, qk_norm: true, window: 9}\n");
    if (read_job(&j, "model: ./model\ndata: {train: a}\ntrain: {steps: 1}\n", &arena, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(j.model.hidden_size, 768);
    assert_int_equal(j.model.n_layers, 12);
    assert_int_equal(j.model.head_dim, 64);
    assert_int_equal(j.model.attention_bias, ATTENTION_BIAS_QKV);
    assert_int_equal(j.model.window, 9);
    assert_true(j.model.qk_norm && j.model.position == POSITION_ROPE);
    arena_release(&arena);
}

static void names(void **state)
{
    static const char *const rows[][2] = {
        { "model.embed_tokens.weight", "base.wte.weight" },
        { "model.layers.N.self_attn.q_proj.weight", "base.layers.N.attn.wq.weight" },
        { "model.layers.N.self_attn.k_proj.bias", "base.layers.N.self_attn.k_proj.bias" },
        { "lm_head.weight", "output" },
        { "my_model.model", "my_model.base" },
    };
    struct hf_family family;
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    describe("like: llama\nnames:\n  model: base\n  embed_tokens: wte\n"
             "  self_attn.q_proj: attn.wq\n  lm_head.weight: output\n");
    assert_int_equal(hf_family_read(&family, "Mine", &arena, &err), 0);
    assert_string_equal(family.like, "llama");
    assert_string_equal(family.model_type, "mine");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(hf_family_rename(&family, rows[i][0], &arena), rows[i][1]);
    assert_int_equal(hf_family_read(&family, "Aquila", &arena, &err), 0);
    assert_string_equal(family.like, "llama"); /* out of the binary */
    assert_int_equal(hf_family_read(&family, "../mine", &arena, &err), 0);
    assert_string_equal(family.like, "../mine");
    assert_string_equal(hf_family_rename(&family, "model.x", &arena), "model.x");
    arena_release(&arena);
}

/* Reads a job with ./model's config.json replaced by this text; "" or what is wrong. */
static void expect(const char *config, const char *mistake)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct job j;

    assert_int_equal(file_write("model/config.json", config, strlen(config), &err), 0);
    int status =
        read_job(&j, "model: ./model\ndata: {train: a}\ntrain: {steps: 1}\n", &arena, &err);
    if (status < 0 ? !*mistake || !strstr(err.text, mistake) : *mistake)
        fail_msg("%s\ngave \"%s\"\nnot  \"%s\"", config, err.text, mistake);
    assert_int_equal(file_write("model/config.json", CONFIG, sizeof CONFIG - 1, &err), 0);
    arena_release(&arena);
}

#define SHAPE \
    "\"vocab_size\": 32000, \"hidden_size\": 768, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 12, \"intermediate_size\": 2048"
#define MINE "{\"model_type\": \"Mine\", " SHAPE

/* What the family it is like does not read, and what `ignore` names. */
static void unread_keys(void **state)
{
    (void)state;
    describe("like: llama\n");
    expect(MINE ", \"embedding_multiplier\": 1.0, \"sliding_window\": null, \"_x\": 3, "
                "\"foo\": [], \"bos_token_id\": 1}",
           "");
    expect(
        MINE ", \"embedding_multiplier\": 12.5}",
        "model/config.json: embedding_multiplier is 12.5, which lmtrain does not read: the model "
        "may compute something else (hint: if this key changes nothing, "
        "configs/families/mine.yaml with \"like: llama\" and \"ignore: "
        "[embedding_multiplier]\")");
    expect(MINE ", \"no_rope_layers\": [1, 0]}", "no_rope_layers is [1,0], which");
    expect(MINE ", \"pretraining_tp\": 2, \"embedding_multiplier\": 1}", "");
    expect(MINE ", \"rope_parameters\": {\"rope_type\": \"default\", \"share\": 0.5}}",
           "rope parameters: share is 0.5, which");
    expect(MINE ", \"layer_types\": [\"full_attention\", \"full_attention\"]}", "");
    expect(MINE ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
           "layer_types is [\"full_attention\",\"sliding_attention\"], which");
    expect(MINE ", \"sliding_window\": 9, \"use_sliding_window\": false}", "");
    expect(MINE ", \"sliding_window\": 9, \"use_sliding_window\": true}", "sliding_window is 9");
    describe("like: mistral\n");
    expect(MINE ", \"sliding_window\": 9, \"use_sliding_window\": false}",
           "use_sliding_window is false, which");
    expect(MINE ", \"sliding_window\": 9, \"layer_types\": [\"sliding_attention\", "
                "\"sliding_attention\"]}",
           "");
    describe("like: llama\nkeys: {hidden_size: width}\nignore: [scale, no_rope_layers]\n");
    expect(MINE ", \"scale\": 2, \"width\": 768, \"no_rope_layers\": [1, 0]}", "");
    expect(MINE ", \"scale\": 2, \"scales\": 3}", "scales is 3, which");
}

/* A difference that no key says. */
static void unlike(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(file_write("configs/families/helium.yaml", "like: llama", 11, &err), 0);
    expect("{\"model_type\": \"helium\", " SHAPE "}",
           "model_type helium is not like llama: its RoPE rotates adjacent pairs of elements "
           "(interleaved), not the two halves of a head, which is not built yet");
}

static void mistakes(void **state)
{
    static const char *const rows[][2] = {
        { "", "configs/families/mine.yaml: key like is missing (hint: like: llama)" },
        { "[a]", "key like is missing" },
        { "keys: {a: b}", "key like is missing" },
        { "like: [llama]", "configs/families/mine.yaml:1:7: like is not the name of a family" },
        { "like: llama\nname: {a: b}", "mine.yaml:2:1: unknown key name (hint: like, keys, names, "
                                       "model, ignore)" },
        { "like: llama\nignore: a", "mine.yaml:2:9: ignore is not a list (hint: [key])" },
        { "like: llama\nignore: [[a]]", "mine.yaml:2:10: ignore has an item that is not a key" },
        { "like: llama\nnames: a",
          "mine.yaml:2:8: names is not a map (hint: {NAME_IN_LIKE: NAME_IN_THIS_MODEL})" },
        { "like: llama\nkeys: {a: [b]}", "mine.yaml:2:11: a is not a single value" },
        { "like: nothing", "model_type is Mine, not built yet (hint: llama, " },
        { "like: llama\nmodel: {widht: 3}",
          "model.widht of the family file is not a field of a model" },
        { "like: llama\nmodel: {n_heads: x}", "model.n_heads is x, not a whole number" },
        { "like: *llama", "mine.yaml:1:7: alias" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arena arena = { 0 };
        struct err err = { 0 };
        struct job j;

        describe(rows[i][0]);
        assert_int_equal(
            read_job(&j, "model: ./model\ndata: {train: a}\ntrain: {steps: 1}\n", &arena, &err),
            -1);
        if (!strstr(err.text, rows[i][1]))
            fail_msg("%s\ngave \"%s\"\nnot  \"%s\"", rows[i][0], err.text, rows[i][1]);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json), cmocka_unit_test(names),    cmocka_unit_test(unread_keys),
        cmocka_unit_test(unlike),      cmocka_unit_test(mistakes),
    };

    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
