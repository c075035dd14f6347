/*
 * encode_words_test.c - the cache of words changes no id
 *
 * Texts of a vocabulary's own pieces, good words and nonsense, long enough for words to come again,
 * to push each other out and, of a unigram model, for the sum of scores to grow until it begins
 * anew.
 */
#include "data/data_fixture.h"

#include "base/rng.h"
#include "tokenizer/tokenizer_impl.h"

#define GOLDEN "test/tokenizer/golden/"

enum { N_BYTES = 300000 };

struct numbers {
    uint64_t seed, n;
};

static uint32_t below(struct numbers *numbers, uint32_t n)
{
    return rng_at(numbers->seed, RNG_TEST, 0, numbers->n++).word[0] % n;
}

/* Pieces of few or of many, with spaces, marks, what is in no piece, and long words. */
static void make_text(const struct tokenizer *t, struct numbers *numbers, struct str *text)
{
    static const char *const others[] = { " ",  "  ",           BPE_SPACE,
                                          "\n", "\xe4\xba\xba", "\xf0\x9f\x98\x80",
                                          "Z" };

    while (text->length < N_BYTES) {
        uint32_t kind = below(numbers, 16);
        int32_t id = (int32_t)below(numbers, (uint32_t)t->bpe.n_ids >> (kind < 8));
        const struct bpe_token *token = &t->bpe.tokens[id];

        if (kind == 0)
            str_add(text, others[below(numbers, 7)]);
        else if (kind < 6)
            str_add(text, " ");
        if (token->spelling && token->spelling[0] != '<' &&
            tokenizer_utf8_end(token->bytes, token->n_bytes) == token->n_bytes)
            str_add_bytes(text, token->bytes, token->n_bytes);
    }
}

static void check(const char *path, uint64_t seed)
{
    struct tokenizer_cache *cache = tokenizer_cache_create();
    struct token_list cached = { 0 }, plain = { 0 };
    struct tokenizer *tokenizer;
    struct str text = { 0 };
    struct err err = { 0 };
    struct numbers numbers = { seed, 0 };

    assert_non_null(cache);
    if (tokenizer_open(&tokenizer, path, &err) < 0)
        fail_msg("%s", err.text);
    make_text(tokenizer, &numbers, &text);
    assert_int_equal(tokenizer_encode(tokenizer, text.data, text.length, &plain, &err), 0);
    for (int again = 0; again < 2; again++) {
        cached.n = 0;
        assert_int_equal(
            tokenizer_encode_cached(tokenizer, cache, text.data, text.length, &cached, &err), 0);
        assert_int_equal(cached.n, plain.n);
        for (int64_t i = 0; i < plain.n; i++)
            if (cached.ids[i] != plain.ids[i])
                fail_msg("%s: id %d is %d, not %d", path, (int)i, cached.ids[i], plain.ids[i]);
    }
    str_release(&text);
    token_list_release(&cached);
    token_list_release(&plain);
    tokenizer_close(tokenizer);
    tokenizer_cache_destroy(cache);
}

static void test_cache(void **state)
{
    static const char *const paths[] = { GOLDEN "unigram.model", GOLDEN "bpe.model",
                                         GOLDEN "llama.json", GOLDEN "small.json" };

    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++)
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
            check(paths[i], seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cache) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
