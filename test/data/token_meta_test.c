/*
 * token_meta_test.c - which tokenizer a token file is of: written, read, compared, and never
 * another's file
 */
#include "data_fixture.h"

#include "data/stream/corpus.h"
#include "data/stream/token_meta.h"

static const char *folder;

static const struct token_meta sample = { .tokenizer = "1-0123456789abcdef-01234567",
                                          .vocab_size = 300,
                                          .end_of_text = 2,
                                          .n_documents = 3,
                                          .n_tokens = 12 };

static void put(const char *name, const char *text)
{
    char *path = fixture_path(folder, name);
    struct err err;

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    free(path);
}

static void test_round_trip(void **state)
{
    char *prefix = fixture_counting(folder, "a", 0, 12, 4, 300);
    struct token_meta meta = sample, got;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(token_meta_read(prefix, &got, &err), 0);
    assert_int_equal(token_meta_check_place(prefix, &err), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(token_meta_write(prefix, &meta, &err), 0);
        assert_int_equal(token_meta_read(prefix, &got, &err), 1);
        assert_string_equal(got.tokenizer, meta.tokenizer);
        assert_int_equal(got.vocab_size, meta.vocab_size);
        assert_int_equal(got.end_of_text, meta.end_of_text);
        assert_int_equal(got.n_documents, meta.n_documents);
        assert_int_equal(got.n_tokens, meta.n_tokens);
        meta.end_of_text = -1;
    }
    assert_int_equal(token_meta_check_place(prefix, &err), 0);
    token_meta_remove(prefix);
    assert_int_equal(token_meta_read(prefix, &got, &err), 0);
    free(prefix);
}

static void test_compare(void **state)
{
    char *prefix = fixture_counting(folder, "b", 0, 12, 4, 300);
    struct err err = { 0 };

    (void)state;
    assert_int_equal(token_meta_compare(prefix, "1-f", "x", "y", &err), 0);
    assert_int_equal(token_meta_write(prefix, &sample, &err), 0);
    assert_int_equal(token_meta_compare(prefix, NULL, "x", "y", &err), 0);
    assert_int_equal(token_meta_compare(prefix, "", "x", "y", &err), 0);
    assert_int_equal(token_meta_compare(prefix, sample.tokenizer, "x", "y", &err), 0);
    assert_int_equal(token_meta_compare(prefix, "1-0123456789abcdef-11234567", "x", "y", &err), 0);
    /* Of another version of the hash nothing can be said. */
    assert_int_equal(token_meta_compare(prefix, "2-0123456789abcdef-01234567", "x", "y", &err), 0);
    assert_int_equal(
        token_meta_compare(prefix, "1-1123456789abcdef-01234567", "the model's", "do so", &err),
        -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "/b was made with another tokenizer than the model's: "));
    assert_non_null(strstr(err.text, "b.json with 1-0123456789abcdef-01234567, of 300 tokens, not "
                                     "1-1123456789abcdef-01234567 (hint: do so)"));
    free(prefix);
}

static void test_what_is_not_read(void **state)
{
    static const char *const strangers[] = {
        "",
        "{",
        "[1]",
        "{\"text\": \"a\"}",
        "{\"format\": \"other\", \"version\": 1}",
        "{\"format\": \"lmtrain tokens\", \"version\": 2, \"tokenizer\": 5}",
        "{\"format\": \"lmtrain tokens\", \"version\": 1, \"tokenizer\": \"1-a\", \"vocab_size\": "
        "9, "
        "\"documents\": 1, \"tokens\": 13}",
    };
    static const char *const damaged[] = {
        "{\"format\": \"lmtrain tokens\", \"version\": 1}",
        "{\"format\": \"lmtrain tokens\", \"version\": 1, \"tokenizer\": \"1-a\", \"vocab_size\": "
        "0, "
        "\"documents\": 1, \"tokens\": 12}",
        "{\"format\": \"lmtrain tokens\", \"version\": 1, \"tokenizer\": "
        "\"1-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\", \"vocab_size\": 9, \"documents\": 1, "
        "\"tokens\": 12}",
        "{\"format\": \"lmtrain tokens\", \"version\": 1, \"tokenizer\": \"1-a\", \"vocab_size\": "
        "9, "
        "\"documents\": -1, \"tokens\": 1e300}",
    };
    char *prefix = fixture_counting(folder, "c", 0, 12, 4, 300);
    struct token_meta meta;
    struct err err = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        put("c.json", strangers[i]);
        assert_int_equal(token_meta_read(prefix, &meta, &err), 0);
        assert_int_equal(token_meta_check_place(prefix, &err), i < 5 ? -1 : 0);
        assert_true(i >= 5 || err.code == ERR_CONFIG);
    }
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put("c.json", damaged[i]);
        assert_int_equal(token_meta_read(prefix, &meta, &err), -1);
        assert_int_equal(err.code, ERR_DATA);
        assert_non_null(strstr(err.text, "c.json is damaged"));
    }
    free(prefix);
}

/* data tokenize writes it, and an interrupted one leaves none beside tokens that it is not of. */
static void test_corpus(void **state)
{
    char *prefix = fixture_path(folder, "d"), *input = fixture_path(folder, "in.txt");
    const char *inputs[] = { input };
    struct corpus_options options = {
        .inputs = inputs, .n_inputs = 1, .column = "text", .prefix = prefix
    };
    struct corpus_counts counts;
    struct token_meta meta;
    struct tokenizer *tokenizer;
    struct err err = { 0 };

    (void)state;
    put("in.txt", "In the beginning");
    assert_int_equal(tokenizer_open(&tokenizer, "data/kjv-tokenizer", &err), 0);
    assert_int_equal(corpus_tokenize(tokenizer, &options, &counts, &err), 0);
    assert_int_equal(token_meta_read(prefix, &meta, &err), 1);
    assert_int_equal(meta.n_tokens, counts.n_tokens);
    assert_int_equal(meta.n_documents, 1);
    assert_int_equal(meta.vocab_size, 4096);
    assert_int_equal(meta.end_of_text, 0);
    put("d.json", "{\"mine\": 1}");
    assert_int_equal(corpus_tokenize(tokenizer, &options, &counts, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "d.json exists but does not belong to a token file"));
    tokenizer_close(tokenizer);
    free(prefix);
    free(input);
}

static int open_folder(void **state)
{
    (void)state;
    folder = fixture_folder();
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    fixture_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_what_is_not_read),
        cmocka_unit_test(test_corpus),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
