/*
 * hf_head_test.c - when a tied model is read as untied, by what its weights hold
 */
#include "config_fixture.h"

#include <unistd.h>

#include "base/file.h"
#include "config/hf_head.h"
#include "support/temporary.h"

#define CONFIG(tied) \
    "{\"model_type\": \"llama\", \"vocab_size\": 3, \"hidden_size\": 2, " \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"intermediate_size\": 2, " \
    "\"max_position_embeddings\": 4, \"tie_word_embeddings\": " tied "}"

#define TENSOR(name, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[" #begin "," #end "]}"
#define TABLE(begin, end) TENSOR("model.embed_tokens.weight", begin, end)
#define HEAD(begin, end) TENSOR("lm_head.weight", begin, end)

#define ONE "abcdefghijklmnopqrstuvwx" /* 24 bytes: [3 x 2] of four */
#define OTHER "abcdefghijklmnopqrstuvwX"

struct file {
    const char *name, *header, *data;
};

static char folder[256];
static struct arena arena;
static struct err err;

static void put(const char *name, const void *data, size_t n_bytes)
{
    const char *path = arena_printf(&arena, "%s/%s", folder, name);

    assert_int_equal(file_write(path, data, n_bytes, &err), 0);
}

static void put_weights(const struct file *f)
{
    struct str text = { 0 };
    uint64_t length = strlen(f->header);

    for (int i = 0; i < 8; i++)
        str_add_char(&text, (char)(length >> (8 * i)));
    str_add(&text, f->header);
    str_add(&text, f->data);
    put(f->name, text.data, text.length);
    str_release(&text);
}

static int set_up(void **state)
{
    (void)state;
    return temporary_folder(folder, sizeof folder);
}

static int tear_down(void **state)
{
    (void)state;
    arena_release(&arena);
    memset(&arena, 0, sizeof arena);
    return file_remove_tree(folder, &err);
}

static void one_file(void **state)
{
    static const struct {
        const char *header, *data;
        int is_own;
    } cases[] = {
        { "{" TABLE(0, 24) "," HEAD(24, 48) "}", ONE OTHER, 1 },
        { "{" TABLE(0, 24) "," HEAD(24, 48) "}", ONE ONE, 0 },
        { "{" HEAD(24, 48) "," TABLE(0, 24) "}", ONE ONE, 0 },
        { "{" TABLE(0, 24) "}", ONE, 0 },
        { "{" HEAD(0, 24) "}", ONE, 1 },
        { "{" HEAD(0, 24) ",\"b\":{\"dtype\":\"I32\",\"shape\":[3,2],\"data_offsets\":[24,48]}}",
          ONE ONE, 1 },
        { "{" HEAD(0, 24) ",\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,48]}}",
          ONE ONE, 1 },
        { "{\"__metadata__\":{\"format\":\"pt\"}," TABLE(0, 24) "," HEAD(24, 48) "}", ONE OTHER,
          1 },
        /* what hf_folder.h refuses */
        { "{" TABLE(0, 24) "," HEAD(24, 49) "}", ONE OTHER, 0 },
        { "{" TABLE(0, 24) "," HEAD(48, 24) "}", ONE OTHER, 0 },
        { "{\"lm_head.weight\":7}", ONE, 0 },
        { "[1]", ONE, 0 },
        { "{", ONE, 0 },
    };

    (void)state;
    assert_int_equal(hf_head_is_own(folder, &arena), 0);
    put("model.safetensors", "short", 5);
    assert_int_equal(hf_head_is_own(folder, &arena), 0);
    put("model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    assert_int_equal(hf_head_is_own(folder, &arena), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_weights(&(struct file){ "model.safetensors", cases[i].header, cases[i].data });
        if (hf_head_is_own(folder, &arena) != cases[i].is_own)
            fail_msg("%s %s", cases[i].header, cases[i].data);
    }
}

static void several_files(void **state)
{
    static const char index[] = "{\"weight_map\": {\"lm_head.weight\": \"b.safetensors\", "
                                "\"model.embed_tokens.weight\": \"a.safetensors\", "
                                "\"model.norm.weight\": \"a.safetensors\"}}";
    static const char outside[] = "{\"weight_map\": {\"lm_head.weight\": \"../b.safetensors\"}}";

    (void)state;
    put("model.safetensors.index.json", index, strlen(index));
    assert_int_equal(hf_head_is_own(folder, &arena), 0); /* no files */
    put_weights(&(struct file){ "a.safetensors", "{" TABLE(0, 24) "}", ONE });
    put_weights(&(struct file){ "b.safetensors", "{" HEAD(0, 24) "}", OTHER });
    assert_int_equal(hf_head_is_own(folder, &arena), 1);
    put_weights(&(struct file){ "b.safetensors", "{" HEAD(0, 24) "}", ONE });
    assert_int_equal(hf_head_is_own(folder, &arena), 0);
    put("model.safetensors.index.json", outside, strlen(outside));
    assert_int_equal(hf_head_is_own(folder, &arena), 0);
    put("model.safetensors.index.json", "[", 1);
    assert_int_equal(hf_head_is_own(folder, &arena), 0);
}

/* The rule, where jobs are read: every command does by this. */
static void jobs(void **state)
{
    static const struct {
        const char *config, *data;
        int tied, is_said;
    } cases[] = {
        { CONFIG("true"), ONE OTHER, 0, 1 },
        { CONFIG("true"), ONE ONE, 1, 0 },
        { CONFIG("false"), ONE OTHER, 0, 0 },
        { CONFIG("false"), ONE ONE, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job;
        const char *text =
            arena_printf(&arena, "model: %s/\ndata: {train: a}\ntrain: {steps: 1}\n", folder);

        put("config.json", cases[i].config, strlen(cases[i].config));
        put_weights(&(struct file){ "model.safetensors", "{" TABLE(0, 24) "," HEAD(24, 48) "}",
                                    cases[i].data });
        must_read(&job, text, &arena);
        assert_int_equal(job.model.tied_embeddings, cases[i].tied);
        assert_int_equal(job.untied_by != NULL, cases[i].is_said);
        assert_int_equal(has_note(&job, "lm_head.weight"), cases[i].is_said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(several_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(jobs, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
