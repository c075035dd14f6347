/*
 * tokenizer_text_fuzz.c - any bytes through a tokenizer of 4096 tokens
 *
 * What is not valid UTF-8 is refused; of all else the bytes come back, with a cache and without,
 * whole and in two halves of ids.
 */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static struct tokenizer *tokenizer;
static struct tokenizer_cache *cache;

static void open_once(void)
{
    const char *path = getenv("FUZZ_TOKENIZER");
    struct err err = { 0 };

    if (tokenizer)
        return;
    CHECK(tokenizer_open(&tokenizer, path ? path : "data/kjv-tokenizer", &err) == 0);
    cache = tokenizer_cache_create();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct token_list plain = { 0 }, cached = { 0 };
    struct str text = { 0 };
    struct err err = { 0 };

    open_once();
    char *copy = malloc(n_bytes ? n_bytes : 1);
    CHECK(copy);
    memcpy(copy, data, n_bytes);
    int is_utf8 = tokenizer_utf8_end(copy, n_bytes) == n_bytes;
    int status = tokenizer_encode(tokenizer, copy, n_bytes, &plain, &err);
    CHECK((status == 0) == is_utf8);
    CHECK(tokenizer_encode_cached(tokenizer, cache, copy, n_bytes, &cached, &err) == status);
    if (status < 0) {
        CHECK(err.code == ERR_DATA);
        CHECK(plain.n == 0);
    } else {
        CHECK(plain.n == cached.n);
        CHECK(!plain.n || !memcmp(plain.ids, cached.ids, (size_t)plain.n * sizeof *plain.ids));
        for (int64_t i = 0; i < plain.n; i++)
            CHECK((uint32_t)plain.ids[i] < (uint32_t)tokenizer_vocab_size(tokenizer));
        int64_t half = plain.n / 2;
        tokenizer_decode(tokenizer, plain.ids, half, &text);
        CHECK(tokenizer_whole_length(str_text(&text), text.length) <= text.length);
        if (plain.n)
            tokenizer_decode(tokenizer, plain.ids + half, plain.n - half, &text);
        CHECK(text.length == n_bytes);
        CHECK(!n_bytes || !memcmp(str_text(&text), copy, n_bytes));
    }
    token_list_release(&plain);
    token_list_release(&cached);
    str_release(&text);
    free(copy);
    return 0;
}
