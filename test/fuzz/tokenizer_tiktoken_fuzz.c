/*
 * tokenizer_tiktoken_fuzz.c - a file of ranks, and text through what came of it
 *
 * The input is the file's lines. As no file has all bytes by chance, those of single bytes that it
 * lacks are put behind it; so is the pattern that ranks of an unknown number need.
 */
#include "tokenizer_use.h"

#include <cjson/cJSON.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Two characters of base64 for one byte. */
static void add_byte(struct str *out, int byte)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    str_printf(out, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    cJSON *config = cJSON_CreateObject();
    struct tokenizer *tokenizer = NULL;
    struct str file = { 0 };
    struct err err = { 0 };

    cJSON_AddStringToObject(config, "pat_str", "\\s?\\p{L}+|\\p{N}|.|\\n");
    for (int byte = 0; byte < 256; byte++)
        add_byte(&file, byte);
    str_add_bytes(&file, data, n_bytes);
    if (tokenizer_parse_tiktoken(&tokenizer, "fuzz", str_text(&file), file.length, config, &err) ==
        0)
        use_and_close(tokenizer, data, n_bytes);
    else
        CHECK(err.code == ERR_DATA);
    err = (struct err){ 0 };
    tokenizer_is_tiktoken((const char *)data, n_bytes);
    CHECK(tokenizer_parse_tiktoken(&tokenizer, "fuzz", (const char *)data, n_bytes, NULL, &err) <
          0);
    str_release(&file);
    cJSON_Delete(config);
    return 0;
}
