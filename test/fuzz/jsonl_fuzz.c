/*
 * jsonl_fuzz.c - lines of JSONL
 *
 * What is taken is no longer than it was spelled, and is taken again in the same way.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/rows/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    /* A copy of just its size, so that a byte read behind the end is seen. */
    char *line = malloc(n_bytes ? n_bytes : 1);
    struct str text = { 0 }, again = { 0 };
    struct err err = { 0 };

    if (!line)
        return 0;
    memcpy(line, data, n_bytes);
    if (jsonl_text(line, n_bytes, "text", &text, &err) == 0) {
        CHECK(text.length < n_bytes);
        CHECK(jsonl_text(line, n_bytes, "text", &again, &err) == 0);
        CHECK(again.length == text.length);
        CHECK(memcmp(str_text(&again), str_text(&text), text.length) == 0);
    }
    str_release(&text);
    str_release(&again);
    free(line);
    return 0;
}
