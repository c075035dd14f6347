/*
 * special_tokens_test.c - what transformers is told of the tokens that begin, end and pad a text
 */
#include "data/data_fixture.h"

#include <cjson/cJSON.h>

#include "ckpt/carried.h"
#include "tokenizer/tokenizer.h"
#include "weights/model_files.h"
#include "weights/special_tokens.h"

#define KJV "data/kjv-tokenizer"
#define LLAMA "test/tokenizer/golden/llama.json"

static const char *root;

/* A fresh folder with this tokenizer, as root/NAME. */
static const char *make(const char *name, const char *tokenizer)
{
    static char path[4200];
    struct err err = { 0 };

    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(file_make_folder(path, &err), 0);
    if (tokenizer && model_files_put_tokenizer(tokenizer, path, &err) < 0)
        fail_msg("%s", err.text);
    return path;
}

static void put(const char *folder, const char *name, const char *text)
{
    char *path = fixture_path(folder, name);
    struct err err;

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    free(path);
}

/* FOLDER/NAME without white space. */
static void must_be(const char *folder, const char *name, const char *wanted)
{
    char *path = fixture_path(folder, name), *text;
    struct err err;
    size_t n_bytes;

    if (!wanted) {
        assert_false(file_exists(path));
        free(path);
        return;
    }
    assert_int_equal(file_read(path, 1 << 20, ERR_DATA, &text, &n_bytes, &err), 0);
    cJSON *json = cJSON_Parse(text);
    char *printed = cJSON_PrintUnformatted(json);
    assert_string_equal(printed ? printed : text, wanted);
    free(printed);
    cJSON_Delete(json);
    free(text);
    free(path);
}

static void complete(const char *folder)
{
    struct err err = { 0 };

    if (special_tokens_complete(folder, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_complete(void **state)
{
    const char *folder = make("kjv", KJV);

    (void)state;
    put(folder, "config.json", "{\"model_type\": \"llama\", \"a\": 1.0e-5}");
    complete(folder);
    must_be(
        folder, "config.json",
        "{\"bos_token_id\":null,\"eos_token_id\":0,\"pad_token_id\":null,\"model_type\":\"llama\","
        "\"a\":1e-05}");
    must_be(folder, "generation_config.json",
            "{\"bos_token_id\":null,\"eos_token_id\":0,\"pad_token_id\":null}");
    must_be(folder, "tokenizer_config.json",
            "{\"eos_token\":\"<|endoftext|>\",\"clean_up_tokenization_spaces\":false,"
            "\"tokenizer_class\":\"PreTrainedTokenizerFast\"}");
    /* What the post-processor puts in front, by a file's name. */
    folder = make("llama", LLAMA);
    put(folder, "config.json", "{}");
    complete(folder);
    must_be(folder, "config.json",
            "{\"bos_token_id\":1,\"eos_token_id\":601,\"pad_token_id\":null}");
}

static void test_what_is_there_stays(void **state)
{
    const char *folder = make("there", KJV);

    (void)state;
    put(folder, "config.json", "{\"eos_token_id\": [7, 8], \"bos_token_id\": null}");
    put(folder, "tokenizer_config.json", "{\"eos_token\": \"God\"}");
    put(folder, "generation_config.json", "no json");
    complete(folder);
    must_be(folder, "config.json",
            "{\"pad_token_id\":null,\"eos_token_id\":[7,8],\"bos_token_id\":null}");
    must_be(folder, "tokenizer_config.json", "{\"eos_token\":\"God\"}");
    must_be(folder, "generation_config.json", "no json");
}

static void test_no_tokenizer(void **state)
{
    const char *folder = make("bare", NULL);

    (void)state;
    put(folder, "config.json", "{}");
    complete(folder);
    must_be(folder, "config.json",
            "{\"bos_token_id\":null,\"eos_token_id\":null,\"pad_token_id\":null}");
    must_be(folder, "generation_config.json", NULL);
    /* One that is not read here: its ids are not known. */
    folder = make("unknown", NULL);
    put(folder, "config.json", "{}");
    put(folder, "tokenizer.json", "{\"model\": {\"type\": \"WordPiece\"}}");
    complete(folder);
    must_be(folder, "config.json", "{}");
}

static void test_template(void **state)
{
    const char *folder = make("chat", KJV);
    struct err err = { 0 };

    (void)state;
    put(folder, "tokenizer_config.json",
        "{\"eos_token\": \"<|endoftext|>\", \"chat_template\": \"old\", \"x\": 1}");
    put(folder, "own.jinja",
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}God{% endif %}{% "
        "endfor %}");
    put(folder, "config.json", "{\"bos_token_id\": 5, \"eos_token_id\": [0, 9]}");
    char *own = fixture_path(folder, "own.jinja");
    assert_int_equal(special_tokens_set_template(folder, own, &err), 0);
    free(own);
    must_be(
        folder, "tokenizer_config.json",
        "{\"eos_token\":\"<|endoftext|>\",\"x\":1,\"chat_template\":\"{% for m in messages %}{{ "
        "m.content }}{% if m.role == 'assistant' %}God{% endif %}{% endfor %}\"}");
    struct tokenizer *tokenizer;
    assert_int_equal(tokenizer_open(&tokenizer, folder, &err), 0);
    int id = tokenizer_find(tokenizer, "God");
    tokenizer_close(tokenizer);
    char wanted[100];
    snprintf(wanted, sizeof wanted, "{\"bos_token_id\":5,\"eos_token_id\":[0,9,%d]}", id);
    assert_true(id > 9);
    must_be(folder, "generation_config.json", wanted);
    /* An end that is several tokens is none that generation could stop at. */
    folder = make("chatml", KJV);
    assert_int_equal(special_tokens_set_template(folder, "chatml", &err), 0);
    must_be(folder, "generation_config.json", NULL);
    assert_int_equal(special_tokens_set_template(folder, "chatmI", &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
}

static int open_root(void **state)
{
    (void)state;
    root = fixture_folder();
    return 0;
}

static int close_root(void **state)
{
    (void)state;
    fixture_remove(root);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete),
        cmocka_unit_test(test_what_is_there_stays),
        cmocka_unit_test(test_no_tokenizer),
        cmocka_unit_test(test_template),
    };

    return cmocka_run_group_tests(tests, open_root, close_root);
}
