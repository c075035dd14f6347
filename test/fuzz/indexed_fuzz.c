/*
 * indexed_fuzz.c - indices of token files
 *
 * The input is two bytes that say how long .bin is, and an .idx. Whatever is taken must have
 * documents that tile the tokens, and every token must be readable.
 */
#include "data/stream/indexed_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static unsigned char bin[1 << 16];

static void use(const struct indexed *indexed)
{
    static int32_t tokens[1 << 16];
    int64_t end = 0;
    struct err err;

    for (int64_t d = 0; d < indexed->n_documents; d++) {
        CHECK(indexed_document_start(indexed, d) >= end);
        end = indexed_document_start(indexed, d);
    }
    CHECK(indexed_document_start(indexed, indexed->n_documents) == indexed->n_tokens);
    CHECK(indexed->n_tokens * (int64_t)indexed->token_bytes == (int64_t)indexed->bin.n_bytes);
    CHECK(indexed_read(indexed, 0, indexed->n_tokens, 1, tokens, &err) == 0);
    indexed_fingerprint(indexed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char prefix[] = "fuzz";
    struct err err = { 0 };

    if (n_bytes < 2)
        return 0;
    struct indexed indexed = {
        .prefix = prefix,
        .bin = { bin, (size_t)data[0] | (size_t)data[1] << 8 },
        .idx = { data + 2, n_bytes - 2 },
    };
    if (indexed_check(&indexed, &err) == 0)
        use(&indexed);
    return 0;
}
