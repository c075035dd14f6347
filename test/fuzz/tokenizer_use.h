/*
 * tokenizer_use.h - what the fuzz targets do with a tokenizer that was taken
 */
#ifndef FUZZ_TOKENIZER_USE_H
#define FUZZ_TOKENIZER_USE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"

static const char use_text[] =
    "  In the  beginning\tWORD <a><b>ADD the \xe2\x96\x81\xe2\x96\x81 1611 "
    "\xe4\xb8\x80\xe4\xba\x8c \xef\xac\x81 \xe2\x84\xab A\xcc\x8a "
    "\xf0\x9f\x98\x80<unk><0x41>\n\n";

static inline void use(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes)
{
    struct tokenizer_cache *cache = tokenizer_cache_create();
    struct token_list ids = { 0 }, cached = { 0 };
    struct str decoded = { 0 }, parts = { 0 };
    struct err err = { 0 };

    CHECK(tokenizer_encode(tokenizer, bytes, n_bytes, &ids, &err) == 0);
    CHECK(tokenizer_encode_cached(tokenizer, cache, bytes, n_bytes, &cached, &err) == 0);
    CHECK(ids.n == cached.n);
    CHECK(ids.n == 0 || memcmp(ids.ids, cached.ids, (size_t)ids.n * sizeof *ids.ids) == 0);
    for (int64_t i = 0; i < ids.n; i++) {
        CHECK((uint32_t)ids.ids[i] < (uint32_t)tokenizer_vocab_size(tokenizer));
        tokenizer_decode(tokenizer, &ids.ids[i], 1, &parts);
    }
    tokenizer_decode(tokenizer, ids.ids, ids.n, &decoded);
    CHECK(decoded.length == parts.length);
    CHECK(memcmp(str_text(&decoded), str_text(&parts), parts.length) == 0);
    str_release(&decoded);
    str_release(&parts);
    token_list_release(&ids);
    token_list_release(&cached);
    tokenizer_cache_destroy(cache);
}

/* Some text with all that a normalizer and a model look at, and the input itself as far as it is
 * UTF-8. */
static inline void use_and_close(struct tokenizer *tokenizer, const uint8_t *data, size_t n_bytes)
{
    use(tokenizer, use_text, sizeof use_text - 1);
    use(tokenizer, (const char *)data, tokenizer_utf8_end((const char *)data, n_bytes));
    CHECK(tokenizer_end_of_text(tokenizer) < tokenizer_vocab_size(tokenizer));
    tokenizer_close(tokenizer);
}

#endif
