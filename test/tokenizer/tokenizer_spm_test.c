/*
 * tokenizer_spm_test.c - a .model that is cut off or says what isn't supported is refused; one with
 * unused pieces
 */
#include <math.h>

#include "data/data_fixture.h"

#include "tokenizer/tokenizer_impl.h"

static void expect_refused(const char *data, size_t n, const char *error)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    if (tokenizer_parse_spm(&tokenizer, "M", data, n, &err) == 0)
        fail_msg("taken, but should say '%s'", error);
    assert_null(tokenizer);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, error))
        fail_msg("'%s' does not say '%s'", err.text, error);
}

/* A model of `pieces`, made of "text", type and score, and a trainer_spec. */
struct made {
    char bytes[4096];
    size_t n;
};

static void add_piece(struct made *made, const char *text, int type, float score)
{
    size_t n = strlen(text);
    char *at = made->bytes + made->n;

    *at++ = 0x0a;
    *at++ = (char)(2 + n + 5 + 2);
    *at++ = 0x0a;
    *at++ = (char)n;
    memcpy(at, text, n);
    at += n;
    *at++ = 0x15;
    memcpy(at, &score, 4);
    at += 4;
    *at++ = 0x18;
    *at++ = (char)type;
    made->n = (size_t)(at - made->bytes);
}

static void add_trainer(struct made *made, int model_type)
{
    const char bytes[] = { 0x12, 2, 0x18, (char)model_type };

    memcpy(made->bytes + made->n, bytes, sizeof bytes);
    made->n += sizeof bytes;
}

static void test_made(void **state)
{
    struct made made = { .n = 0 };

    (void)state;
    expect_refused("", 0, "it has 0 pieces");
    expect_refused("\x0a\x7f", 2, "the file is cut off or broken");
    expect_refused("\x0a\x02\x0a\x09", 4, "a piece is cut off or broken");
    expect_refused("\x0a\x02\x18\x01", 4, "piece 0 is empty");
    add_piece(&made, "a", 1, 0);
    expect_refused(made.bytes, made.n, "there is no unknown piece");
    add_piece(&made, "?", 2, 0);
    size_t good = made.n;
    add_trainer(&made, 3);
    expect_refused(made.bytes, made.n, "model type 3 is not supported");
    made.n = good;
    add_piece(&made, "a", 1, 0);
    expect_refused(made.bytes, made.n, "piece 2 occurs twice");
    made.n = good;
    add_piece(&made, "!", 2, 0);
    expect_refused(made.bytes, made.n, "pieces 1 and 2 are both unknown");
    made.n = good;
    add_piece(&made, "b", 7, 0);
    expect_refused(made.bytes, made.n, "an unknown type");
    made.n = good;
    add_piece(&made, "b", 1, NAN);
    expect_refused(made.bytes, made.n, "a non-finite score");
    made.n = good;
    add_piece(&made, "\xff", 1, 0);
    expect_refused(made.bytes, made.n, "not valid UTF-8");
    made.n = good;
    add_piece(&made, "b", 6, 0);
    expect_refused(made.bytes, made.n, "piece 2 is a byte, but byte_fallback is off");
}

/* As sentencepiece 0.2.3 has it: what is unused is merged and comes out as what it was merged of; a
 * character that is unused is unknown. */
static void test_unused(void **state)
{
    static const struct {
        const char *text;
        int n, ids[9];
    } rows[] = {
        { "ab", 1, { 10 } },
        { "abb", 4, { 1, 2, 3, 3 } },
        { "abba", 2, { 1, 8 } },
        { "c", 2, { 1, 0 } },
        { "a ca", 5, { 1, 2, 1, 0, 2 } },
        { "abbc", 5, { 1, 2, 3, 3, 0 } },
        { "abbb bb", 7, { 1, 2, 3, 3, 3, 1, 7 } },
        { "abcab", 4, { 10, 0, 2, 3 } },
    };
    struct made made = { .n = 0 };
    struct tokenizer *tokenizer;
    struct err err = { 0 };

    (void)state;
    add_piece(&made, "<unk>", 2, 0);
    add_piece(&made, BPE_SPACE, 1, -9);
    add_piece(&made, "a", 1, -9);
    add_piece(&made, "b", 1, -9);
    add_piece(&made, "c", 5, -9);
    add_piece(&made, "ab", 5, -1);
    add_piece(&made, "abb", 5, -2);
    add_piece(&made, "bb", 1, -3);
    add_piece(&made, "abba", 1, -4);
    add_piece(&made, "ca", 5, -5);
    add_piece(&made, BPE_SPACE "ab", 1, -6);
    add_piece(&made, "abbc", 5, -7);
    add_trainer(&made, 2);
    if (tokenizer_parse_spm(&tokenizer, "M", made.bytes, made.n, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct token_list ids = { 0 };

        assert_int_equal(
            tokenizer_encode(tokenizer, rows[i].text, strlen(rows[i].text), &ids, &err), 0);
        assert_int_equal(ids.n, rows[i].n);
        for (int at = 0; at < rows[i].n; at++)
            assert_int_equal(ids.ids[at], rows[i].ids[at]);
        token_list_release(&ids);
    }
    tokenizer_close(tokenizer);
}

/* Ways that differ by less than rounding far from a text's start: the same word has other ids
 * there, and the cache must know. */
static void test_near_ties(void **state)
{
    struct tokenizer_cache *cache = tokenizer_cache_create();
    struct token_list cached = { 0 }, plain = { 0 };
    int n_pairs = 0, n_wholes = 0, n_sure = 0;
    struct tokenizer *tokenizer;
    struct made made = { .n = 0 };
    struct str text = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_non_null(cache);
    add_piece(&made, "<unk>", 2, 0);
    add_piece(&made, BPE_SPACE, 1, -2.1f);
    add_piece(&made, "a", 1, -3.3f);
    add_piece(&made, "b", 1, -4.7f);
    add_piece(&made, "ab", 1, -8.0005f);
    add_piece(&made, "ba", 1, -5.3f);
    add_trainer(&made, 1);
    if (tokenizer_parse_spm(&tokenizer, "M", made.bytes, made.n, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < 120000; i++)
        str_add(&text, i % 3 == 0 ? "ba " : i % 7 == 0 ? "a " : "ab ");
    assert_int_equal(tokenizer_encode(tokenizer, text.data, text.length, &plain, &err), 0);
    for (int i = 0; i < 2; i++) {
        cached.n = 0;
        assert_int_equal(
            tokenizer_encode_cached(tokenizer, cache, text.data, text.length, &cached, &err), 0);
        assert_int_equal(cached.n, plain.n);
        assert_memory_equal(cached.ids, plain.ids, (size_t)plain.n * sizeof *plain.ids);
    }
    for (int64_t i = 0; i < plain.n; i++) {
        n_pairs += plain.ids[i] == 3;
        n_wholes += plain.ids[i] == 4;
        n_sure += plain.ids[i] == 5;
    }
    assert_true(n_pairs > 1000);
    assert_true(n_wholes > 1000);
    assert_int_equal(n_sure, 40000);
    str_release(&text);
    token_list_release(&cached);
    token_list_release(&plain);
    tokenizer_close(tokenizer);
    tokenizer_cache_destroy(cache);
}

/* Every way to cut a real model off: most are refused, none does harm. */
static void test_cut(void **state)
{
    static const char *const models[] = { "bpe", "unigram" };
    struct err err = { 0 };

    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[64], *data;
        size_t n_bytes;

        snprintf(path, sizeof path, "test/tokenizer/golden/%s.model", models[i]);
        assert_int_equal(file_read(path, 1 << 20, ERR_DATA, &data, &n_bytes, &err), 0);
        for (size_t n = 0; n < n_bytes; n += 61) {
            struct tokenizer *tokenizer = NULL;
            char *cut = malloc(n + 1);

            assert_non_null(cut);
            memcpy(cut, data, n);
            if (tokenizer_parse_spm(&tokenizer, "M", cut, n, &err) == 0)
                tokenizer_close(tokenizer);
            free(cut);
        }
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_unused),
        cmocka_unit_test(test_near_ties),
        cmocka_unit_test(test_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
