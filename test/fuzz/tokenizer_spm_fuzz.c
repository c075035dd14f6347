/*
 * tokenizer_spm_fuzz.c - a SentencePiece model, and text through what came of it
 *
 * The input is a .model file. If it is taken, some text with all that a normalizer and a model look
 * at is encoded with it, and the input's own bytes if they are UTF-8: part by part, with and
 * without a cache, decoding must give the same.
 */
#include "tokenizer_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    if (tokenizer_parse_spm(&tokenizer, "fuzz", (const char *)data, n_bytes, &err) < 0) {
        CHECK(err.code == ERR_DATA);
        return 0;
    }
    use_and_close(tokenizer, data, n_bytes);
    return 0;
}
