/*
 * tokenizer_extend_test.c - tokens are added to either kind of files, and nothing else changes
 */
#include "data/data_fixture.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "support/temporary.h"
#include "tokenizer/hf/tokenizer_extend.h"
#include "tokenizer/tokenizer.h"

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    return temporary_folder(folder, sizeof folder);
}

static int drop_folder(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

static const char *at(const char *name)
{
    static char path[512];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    struct err err;

    assert_int_equal(file_write(at(name), text, strlen(text), &err), 0);
}

static char *get_text(const char *name)
{
    struct err err;
    size_t n_bytes;
    char *text;

    assert_int_equal(file_read(at(name), 1 << 20, ERR_DATA, &text, &n_bytes, &err), 0);
    return text;
}

/* The ids of a text, as "1 2 3". */
static const char *ids_of(const char *text)
{
    static char out[256];
    struct tokenizer *tokenizer;
    struct token_list list = { 0 };
    struct err err;
    size_t length = 0;

    if (tokenizer_open(&tokenizer, folder, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), &list, &err), 0);
    out[0] = '\0';
    for (int64_t i = 0; i < list.n; i++)
        length +=
            (size_t)snprintf(out + length, sizeof out - length, i ? " %d" : "%d", list.ids[i]);
    token_list_release(&list);
    tokenizer_close(tokenizer);
    return out;
}

/* small.json up to its list of added tokens, and behind it; all in one block. */
static char *head, *tail;

static void read_small(void)
{
    struct err err;
    size_t n_bytes;

    assert_int_equal(
        file_read("test/tokenizer/golden/small.json", 1 << 20, ERR_DATA, &head, &n_bytes, &err), 0);
    tail = strstr(head, "\"normalizer\"");
    *strstr(head, "\"added_tokens\"") = '\0';
}

static void must_extend(const char *const *tokens, int n, int wanted)
{
    struct err err;
    int n_added = -1;

    if (tokenizer_extend(folder, tokens, n, &n_added, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(n_added, wanted);
}

static void into_tokenizer_json(void **state)
{
    static const char *const tokens[] = { "<x>", "say \"so\"\\", "<x>", "ab", "\xc3\xa9]" };
    static const char *const lists[] = {
        "",
        "\"added_tokens\": null, ",
        "\"added_tokens\": [], ",
        "\"added_tokens\": [ ], ",
        ("\"note\": {\"added_tokens\": [1, \"]}\\\"\"]}, \"x\": [1.5e3, true], "
         "\"added_tokens\": [{\"id\": 559, \"content\": \"[]\\\"\", \"special\": true}], "),
    };
    char *text = NULL;

    (void)state;
    read_small();
    for (int i = 0; i < 5; i++) {
        int first = i == 4 ? 560 : 559;
        char wanted[200], one[64];

        assert_true(asprintf(&text, "%s%s%s", head, lists[i], tail) > 0);
        put("tokenizer.json", text);
        snprintf(one, sizeof one, "%s", ids_of("God"));
        must_extend(tokens, 5, 3); /* ab is there */
        snprintf(wanted, sizeof wanted, "%s %d %d %d", one, first, first + 1, first + 2);
        assert_string_equal(ids_of("God<x>say \"so\"\\\xc3\xa9]"), wanted);
        /* Again: all are there. */
        char *once = get_text("tokenizer.json");
        must_extend(tokens, 5, 0);
        char *twice = get_text("tokenizer.json");
        assert_string_equal(once, twice);
        /* What else was there is as it was. */
        assert_string_equal(strstr(once, "\"normalizer\""), tail);
        if (i == 4) {
            assert_memory_equal(once, text, strlen(head) + 100);
            assert_string_equal(ids_of("[]\""), "559");
        }
        free(text);
        free(once);
        free(twice);
    }
}

static void beside_merges(void **state)
{
    static const char *const tokens[] = { "<x>", "<y>" };
    char *whole = get_text("tokenizer.json");
    struct err err;

    (void)state;
    assert_int_equal(file_remove_tree(at("tokenizer.json"), &err), 0);
    cJSON *root = cJSON_Parse(whole);
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    char *vocab = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(model, "vocab"));
    put("vocab.json", vocab);
    put("merges.txt", "#version: 0.2\n");
    must_extend(tokens, 1, 1);
    assert_string_equal(ids_of("<x>"), "559");
    must_extend(tokens, 2, 1);
    assert_string_equal(ids_of("<y><x>"), "560 559");
    free(vocab);
    free(whole);
    cJSON_Delete(root);
}

static void mistakes(void **state)
{
    const char *const empty[] = { "<z>", "" }, *const bad[] = { "\xff" };
    struct err err;
    int n;

    (void)state;
    assert_int_equal(tokenizer_extend(folder, empty, 2, &n, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "token 2 to be added is empty"));
    assert_int_equal(tokenizer_extend(folder, bad, 1, &n, &err), -1);
    assert_non_null(strstr(err.text, "not valid UTF-8"));
    /* Nothing was written. */
    assert_string_equal(ids_of("<y><x>"), "560 559");
    /* Nothing that could be changed. */
    assert_int_equal(file_remove_tree(at("vocab.json"), &err), 0);
    size_t n_bytes;
    char *model;
    assert_int_equal(
        file_read("test/tokenizer/golden/bpe.model", 1 << 20, ERR_DATA, &model, &n_bytes, &err), 0);
    assert_int_equal(file_write(at("tokenizer.model"), model, n_bytes, &err), 0);
    free(model);
    const char *const one[] = { "<z>" };
    assert_int_equal(tokenizer_extend(folder, one, 1, &n, &err), -1);
    assert_non_null(strstr(err.text, "save_pretrained"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(into_tokenizer_json),
        cmocka_unit_test(beside_merges),
        cmocka_unit_test(mistakes),
    };

    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
