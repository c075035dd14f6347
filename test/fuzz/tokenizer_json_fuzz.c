/*
 * tokenizer_json_fuzz.c - tokenizer.json, and text through what came of it
 *
 * The input is a tokenizer.json. If it is taken, the input itself is encoded with it, if it is
 * UTF-8: the bytes must come back, if nothing in the tokenizer may change or drop any.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Whether ids stand for all bytes of a text, as they are. */
static int is_lossless(const struct tokenizer *t)
{
    int is = t->bpe.is_byte_level && t->n_normal == 0 && !t->add_prefix_space && !t->marks_spaces;

    for (int i = 0; i < 256; i++) /* rare bytes may have no token, and are lost */
        is &= t->bpe.byte_ids[i] >= 0;
    for (int i = 0; i < t->n_splits; i++)
        is &= t->splits[i].behavior != SPLIT_REMOVED;
    for (int i = 0; i < t->n_added; i++)
        is &= !t->added[i].takes_left && !t->added[i].takes_right;
    return is;
}

static void use(struct tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    struct token_list ids = { 0 };
    struct str decoded = { 0 };
    struct err err = { 0 };

    CHECK(tokenizer_encode(tokenizer, text, n_bytes, &ids, &err) == 0);
    for (int64_t i = 0; i < ids.n; i++)
        CHECK((uint32_t)ids.ids[i] < (uint32_t)tokenizer_vocab_size(tokenizer));
    tokenizer_decode(tokenizer, ids.ids, ids.n, &decoded);
    if (is_lossless(tokenizer)) {
        CHECK(decoded.length == n_bytes);
        CHECK(memcmp(str_text(&decoded), text, n_bytes) == 0);
    }
    CHECK(tokenizer_whole_length(str_text(&decoded), decoded.length) <= decoded.length);
    CHECK(tokenizer_end_of_text(tokenizer) < tokenizer_vocab_size(tokenizer));
    token_list_release(&ids);
    str_release(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char *json = malloc(n_bytes + 1);
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    if (!json)
        return 0;
    memcpy(json, data, n_bytes);
    json[n_bytes] = 0;
    if (tokenizer_parse(&tokenizer, "fuzz", json, n_bytes, &err) == 0) {
        use(tokenizer, json, n_bytes);
        if (tokenizer_parse_config(tokenizer, "fuzz", json, n_bytes, &err) == 0)
            use(tokenizer, json,
                n_bytes / 2 < tokenizer_utf8_end(json, n_bytes / 2)
                    ? n_bytes / 2
                    : tokenizer_utf8_end(json, n_bytes / 2));
        tokenizer_close(tokenizer);
    }
    free(json);
    return 0;
}
