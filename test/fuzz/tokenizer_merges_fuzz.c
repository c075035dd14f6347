/*
 * tokenizer_merges_fuzz.c - vocab.json, merges.txt and tokenizer_config.json, and text through what
 * came of them
 *
 * The input is the three, parted by bytes of 0. The vocabulary gets the 256 characters of bytes,
 * for without them none is taken.
 */
#include "tokenizer_use.h"

#include <cjson/cJSON.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* The characters that spell bytes, with ids from 1000 on. */
static char *add_bytes(cJSON *vocab)
{
    char key[8];
    int id = 1000;

    for (int code = '!'; code <= 0x143; code++) {
        if ((code > '~' && code < 0xa1) || code == 0xad)
            continue;
        int n = code < 0x80 ? 1 : 2;
        key[0] = (char)(n == 1 ? code : 0xc0 | code >> 6);
        key[1] = (char)(0x80 | (code & 0x3f));
        key[n] = 0;
        cJSON_AddNumberToObject(vocab, key, id++);
    }
    return cJSON_PrintUnformatted(vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const char *text = (const char *)data, *parts[3] = { "", "", "" };
    size_t lengths[3] = { 0 }, at = 0;
    struct tokenizer *tokenizer = NULL;
    struct err err = { 0 };

    for (int i = 0; i < 3 && at < n_bytes; i++) {
        const char *end = i < 2 ? memchr(text + at, 0, n_bytes - at) : NULL;

        parts[i] = text + at;
        lengths[i] = end ? (size_t)(end - parts[i]) : n_bytes - at;
        at += lengths[i] + 1;
    }
    cJSON *vocab = cJSON_ParseWithLength(parts[0], lengths[0]);
    cJSON *config = cJSON_ParseWithLength(parts[2], lengths[2]);
    char *merges = strndup(parts[1], lengths[1]);
    if (!cJSON_IsObject(vocab)) {
        cJSON_Delete(vocab);
        vocab = cJSON_CreateObject();
    }
    char *json = add_bytes(vocab);
    struct tokenizer_side side = { config, NULL, vocab };
    if (tokenizer_parse_merges(&tokenizer, "fuzz", json, strlen(json), merges, strlen(merges),
                               &side, &err) == 0)
        use_and_close(tokenizer, data, n_bytes);
    else
        CHECK(err.code == ERR_DATA);
    free(json);
    free(merges);
    cJSON_Delete(vocab);
    cJSON_Delete(config);
    return 0;
}
