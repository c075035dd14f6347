/*
 * tokenizer_test.c - ids are HF tokenizers' ids, text comes back, and what is broken is refused
 */
#include "data/data_fixture.h"

#include "tokenizer/tokenizer.h"

#define KJV "data/kjv-tokenizer"
#define GOLDEN "test/tokenizer/golden/"

static struct tokenizer *open_tokenizer(const char *path)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    if (tokenizer_open(&tokenizer, path, &err) < 0)
        fail_msg("%s", err.text);
    return tokenizer;
}

static size_t unhex(const char *hex, size_t n_hex, char *out)
{
    for (size_t i = 0; i < n_hex / 2; i++) {
        const char pair[] = { hex[2 * i], hex[2 * i + 1], 0 };

        out[i] = (char)strtol(pair, NULL, 16);
    }
    return n_hex / 2;
}

/* One line of a golden file: hex, tab, ids. Decoding gives the probe back unless a space was put
 * before it. */
static void check_probe(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                        const char *line, int decodes)
{
    static char probe[1 << 14];
    size_t n_hex = strcspn(line, "\t"), n = unhex(line, n_hex, probe);
    struct token_list ids = { 0 };
    struct str text = { 0 };
    struct err err = { 0 };
    const char *expected = line + n_hex + 1;

    assert_int_equal(tokenizer_encode_cached(tokenizer, cache, probe, n, &ids, &err), 0);
    for (int64_t i = 0; i < ids.n; i++) {
        char *end;

        if (strtol(expected, &end, 10) != ids.ids[i] || end == expected)
            fail_msg("id %d of '%.*s' is %d, expected '%s'", (int)i, (int)n, probe, ids.ids[i],
                     expected);
        expected = end;
    }
    assert_int_equal(strspn(expected, "\n"), strlen(expected));
    tokenizer_decode_text(tokenizer, ids.ids, ids.n, &text);
    if (decodes) {
        assert_int_equal(text.length, n);
        assert_int_equal(memcmp(str_text(&text), probe, n), 0);
    }
    str_release(&text);
    token_list_release(&ids);
}

static void check_golden(const char *tokenizer_path, const char *golden, int decodes)
{
    struct tokenizer *tokenizer = open_tokenizer(tokenizer_path);
    struct tokenizer_cache *cache = tokenizer_cache_create();
    FILE *file = fopen(golden, "r");
    char *line = NULL;
    size_t capacity = 0;
    int n = 0;

    assert_non_null(file);
    for (; getline(&line, &capacity, file) > 0; n++) {
        check_probe(tokenizer, NULL, line, decodes);
        check_probe(tokenizer, cache, line, decodes);
        check_probe(tokenizer, cache, line, decodes);
    }
    assert_true(n > 200);
    free(line);
    fclose(file);
    tokenizer_cache_destroy(cache);
    tokenizer_close(tokenizer);
}

static void test_golden_kjv(void **state)
{
    (void)state;
    check_golden(KJV, GOLDEN "kjv.txt", 1);
}

static void test_golden_small(void **state)
{
    (void)state;
    check_golden(GOLDEN "small.json", GOLDEN "small.txt", 0);
}

/* Splits and a normalizer of other families, added tokens with every flag. */
static void test_golden_families(void **state)
{
    (void)state;
    check_golden(GOLDEN "qwen.json", GOLDEN "qwen.txt", 0);
    check_golden(GOLDEN "deepseek.json", GOLDEN "deepseek.txt", 0);
    check_golden(GOLDEN "llama.json", GOLDEN "llama.txt", 0);
}

static void test_golden_spm(void **state)
{
    (void)state;
    check_golden(GOLDEN "bpe.model", GOLDEN "bpe.txt", 0);
    check_golden(GOLDEN "unigram.model", GOLDEN "unigram.txt", 0);
}

/* Part by part, cut in front of each space, is the whole: nothing is put in front of a later
 * part. */
static void check_parts(const char *path, const char *text)
{
    struct tokenizer *tokenizer = open_tokenizer(path);
    struct token_list whole = { 0 }, parts = { 0 };
    struct err err = { 0 };

    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), &whole, &err), 0);
    for (size_t at = 0, n; text[at]; at += n) {
        n = 1 + strcspn(text + at + 1, " ");
        assert_int_equal(tokenizer_encode_more(tokenizer, NULL, text + at, n, &parts, &err), 0);
    }
    assert_int_equal(parts.n, whole.n);
    assert_memory_equal(parts.ids, whole.ids, (size_t)whole.n * sizeof *whole.ids);
    /* A part may also begin without a space: then it has none. */
    struct str shown = { 0 };
    assert_int_equal(tokenizer_encode_more(tokenizer, NULL, "light", 5, &parts, &err), 0);
    tokenizer_decode(tokenizer, parts.ids, parts.n, &shown);
    assert_non_null(strstr(str_text(&shown), "daylight"));
    str_release(&shown);
    token_list_release(&whole);
    token_list_release(&parts);
    tokenizer_close(tokenizer);
}

static void test_parts(void **state)
{
    static const char text[] = "And God called the light day";

    (void)state;
    check_parts(KJV, text);
    check_parts(GOLDEN "qwen.json", text);
    check_parts(GOLDEN "llama.json", text);
    check_parts(GOLDEN "bpe.model", text);
    check_parts(GOLDEN "unigram.model", text);
}

/* Text that a tokenizer of characters gives back, but for the space in front of a whole text; and
 * what its template puts around. */
static void test_decode_characters(void **state)
{
    static const char text[] = "In the \xe4\xb8\x80  beginning\xf0\x9f\x98\x80 God\n";
    struct tokenizer *tokenizer = open_tokenizer(GOLDEN "llama.json");
    struct str whole = { 0 }, parts = { 0 };
    struct token_list ids = { 0 };
    const int32_t *before, *after;
    int n_before, n_after;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text - 1, &ids, &err), 0);
    tokenizer_decode_text(tokenizer, ids.ids, ids.n, &whole);
    assert_string_equal(str_text(&whole), text);
    for (int64_t i = 0; i < ids.n; i++)
        tokenizer_decode(tokenizer, &ids.ids[i], 1, &parts);
    assert_int_equal(parts.data[0], ' ');
    assert_string_equal(parts.data + 1, text);
    tokenizer_frame(tokenizer, &before, &n_before, &after, &n_after);
    assert_int_equal(n_before, 1);
    assert_int_equal(n_after, 0);
    assert_int_equal(before[0], tokenizer_find(tokenizer, "<s>"));
    str_release(&whole);
    str_release(&parts);
    token_list_release(&ids);
    tokenizer_close(tokenizer);
}

static void test_names(void **state)
{
    struct tokenizer *tokenizer = open_tokenizer(KJV);

    (void)state;
    assert_int_equal(tokenizer_vocab_size(tokenizer), 4096);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 0);
    assert_int_equal(tokenizer_find(tokenizer, "<|endoftext|>"), 0);
    assert_int_equal(tokenizer_find(tokenizer, "!"), 1);
    assert_int_equal(tokenizer_find(tokenizer, "no such token"), -1);
    assert_int_equal(tokenizer_find(tokenizer, ""), -1);
    tokenizer_close(tokenizer);
}

static void test_bad_utf8(void **state)
{
    static const char *const bad[] = { "ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xc0\x80",
                                       "ab\x80" };
    struct tokenizer *tokenizer = open_tokenizer(KJV);
    struct token_list ids = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(token_list_add(&ids, 5, &err), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tokenizer_encode(tokenizer, bad[i], strlen(bad[i]), &ids, &err), -1);
        assert_int_equal(err.code, ERR_DATA);
        assert_non_null(strstr(err.text, "byte 2 "));
        assert_int_equal(ids.n, 1);
    }
    token_list_release(&ids);
    tokenizer_close(tokenizer);
}

/* Quadratic merging would take minutes for this. */
static void test_long_words(void **state)
{
    struct tokenizer *tokenizer = open_tokenizer(KJV);
    struct token_list ids = { 0 };
    struct str text = { 0 };
    struct err err = { 0 };
    size_t n = 1 << 20;
    char *word = malloc(n);

    (void)state;
    assert_non_null(word);
    for (size_t i = 0; i < n; i++)
        word[i] = "etaoinshrdlu"[i * i % 97 % 12];
    assert_int_equal(tokenizer_encode(tokenizer, word, n, &ids, &err), 0);
    assert_in_range(ids.n, n / 8, n - 1);
    tokenizer_decode(tokenizer, ids.ids, ids.n, &text);
    assert_int_equal(text.length, n);
    assert_int_equal(memcmp(text.data, word, n), 0);
    str_release(&text);
    token_list_release(&ids);
    free(word);
    tokenizer_close(tokenizer);
}

static void test_decode_passes_over_strangers(void **state)
{
    struct tokenizer *tokenizer = open_tokenizer(KJV);
    const int32_t ids[] = { -1, 1, 4096, INT32_MAX, INT32_MIN, 0 };
    struct str text = { 0 };

    (void)state;
    tokenizer_decode(tokenizer, ids, 6, &text);
    assert_string_equal(str_text(&text), "!<|endoftext|>");
    str_clear(&text);
    tokenizer_decode_plain(tokenizer, ids, 6, &text);
    assert_string_equal(str_text(&text), "!");
    str_release(&text);
    tokenizer_close(tokenizer);
}

static void test_whole_length(void **state)
{
    static const struct {
        const char *text;
        size_t whole;
    } cases[] = {
        { "", 0 },
        { "abc", 3 },
        { "ab\xc3", 2 },
        { "ab\xc3\xa9", 4 },
        { "a\xe4\xb8", 1 },
        { "a\xe4", 1 },
        { "a\xe4\xb8\x80", 4 },
        { "\xf0\x9f\x98", 0 },
        { "\xf0\x9f\x98\x80", 4 },
        { "\xf0\x9f\x98\x80\xf0", 4 },
        { "a\xff", 2 }, /* never becomes whole: shown as it is */
        { "\x80\x80\x80\x80", 4 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(tokenizer_whole_length(cases[i].text, strlen(cases[i].text)),
                         cases[i].whole);
}

/* A folder with small.json as tokenizer.json and, unless NULL, a tokenizer_config.json. */
static char *make_folder(const char *folder, const char *name, const char *config)
{
    char *path = fixture_path(folder, name), *json = fixture_path(path, "tokenizer.json");
    char *config_path = fixture_path(path, "tokenizer_config.json"), *data;
    struct err err = { 0 };
    size_t n;

    assert_int_equal(file_make_folders(path, &err), 0);
    assert_int_equal(file_read(GOLDEN "small.json", 1 << 20, ERR_DATA, &data, &n, &err), 0);
    assert_int_equal(file_write(json, data, n, &err), 0);
    if (config)
        assert_int_equal(file_write(config_path, config, strlen(config), &err), 0);
    free(data);
    free(json);
    free(config_path);
    return path;
}

static void test_config(void **state)
{
    static const struct {
        const char *config, *token, *error;
    } cases[] = {
        { NULL, "<|endoftext|>", NULL },
        { "{}", "<|endoftext|>", NULL },
        { "{\"eos_token\": null}", "<|endoftext|>", NULL },
        { "{\"eos_token\": \"ADD\"}", "ADD", NULL },
        { "{\"eos_token\": {\"content\": \"<a>\", \"lstrip\": false}}", "<a>", NULL },
        { "{\"eos_token\": \"<nix>\"}", NULL, "eos_token '<nix>' is not in the vocabulary" },
        { "{\"eos_token\": ", NULL, "tokenizer_config.json: not a JSON object" },
    };
    const char *folder = fixture_folder();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char name[] = { (char)('a' + i), 0 };
        char *path = make_folder(folder, name, cases[i].config);
        struct tokenizer *tokenizer = NULL;
        struct err err = { 0 };
        int rc = tokenizer_open(&tokenizer, path, &err);

        if (cases[i].error) {
            assert_int_equal(rc, -1);
            assert_int_equal(err.code, ERR_DATA);
            assert_non_null(strstr(err.text, cases[i].error));
        } else {
            assert_int_equal(rc, 0);
            assert_int_equal(tokenizer_end_of_text(tokenizer),
                             tokenizer_find(tokenizer, cases[i].token));
        }
        tokenizer_close(tokenizer);
        free(path);
    }
    fixture_remove(folder);
}

static void test_missing(void **state)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(tokenizer_open(&tokenizer, "/nonexistent", &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_int_equal(tokenizer_open(&tokenizer, "test", &err), -1);
    assert_non_null(strstr(err.text, "test/tokenizer.json is not there, nor tokenizer.model"));
    assert_null(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_kjv),      cmocka_unit_test(test_golden_small),
        cmocka_unit_test(test_golden_families), cmocka_unit_test(test_golden_spm),
        cmocka_unit_test(test_parts),           cmocka_unit_test(test_decode_characters),
        cmocka_unit_test(test_names),           cmocka_unit_test(test_bad_utf8),
        cmocka_unit_test(test_long_words),      cmocka_unit_test(test_decode_passes_over_strangers),
        cmocka_unit_test(test_whole_length),    cmocka_unit_test(test_config),
        cmocka_unit_test(test_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
