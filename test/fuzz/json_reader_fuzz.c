/*
 * json_reader_fuzz.c - JSON by each of its readers
 *
 * They agree about what is JSON, but for the limits that each has; a bracket is closed where
 * json_find_end says; a string is no longer than it is spelled, and is read again as the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json_reader.h"
#include "data/rows/json_value.h"
#include "template/jinja_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static bool is_json(const char *text, size_t n_bytes, bool any_bytes)
{
    struct json_reader reader;

    json_reader_init(&reader, text, n_bytes, NULL);
    reader.any_bytes = any_bytes;
    const char *start = json_skip(&reader), *end = reader.next;
    if (json_end(&reader) < 0) {
        CHECK(reader.problem_at <= n_bytes);
        return false;
    }
    CHECK(start < end);
    if (*start == '{' || *start == '[')
        CHECK(json_find_end(start, text + n_bytes) == end);
    return true;
}

static void read_as_value(const char *text, size_t n_bytes, bool expected)
{
    struct arena arena = { 0 };
    struct json_value *value;
    struct err err;

    if (json_value_parse(&value, text, n_bytes, &arena, &err) == 0)
        CHECK(expected);
    else if (expected)
        CHECK(strstr(err.text, "nested too deep") || strstr(err.text, "there before"));
    arena_release(&arena);
}

static void read_as_jinja(const char *text, size_t n_bytes, bool expected)
{
    struct arena arena = { 0 };
    struct jinja_value value;
    const char *problem;

    if (jinja_read_json(&value, (struct text){ text, n_bytes }, &arena, &problem) == 0)
        CHECK(expected);
    else if (expected)
        CHECK(strstr(problem, "nested too deep") || strstr(problem, "has twice"));
    arena_release(&arena);
}

static void read_string(const char *text, size_t n_bytes)
{
    struct json_reader reader;
    struct str decoded = { 0 }, again = { 0 };

    json_reader_init(&reader, text, n_bytes, NULL);
    struct json_span span = json_string_span(&reader);
    json_add_decoded(&decoded, span);
    CHECK(decoded.length <= span.n_bytes);
    CHECK(json_span_is(span, decoded.data, decoded.length));
    if (!reader.problem && !memchr(decoded.data, 0, decoded.length)) {
        json_add_string(&again, decoded.data);
        json_reader_init(&reader, again.data, again.length, NULL);
        CHECK(json_span_is(json_string_span(&reader), decoded.data, decoded.length));
        CHECK(json_end(&reader) == 0);
    }
    str_release(&decoded);
    str_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    /* A copy of just its size, so that a byte read behind the end is seen. */
    char *text = malloc(n_bytes ? n_bytes : 1);

    if (!text)
        return 0;
    memcpy(text, data, n_bytes);
    bool expected = is_json(text, n_bytes, true);
    CHECK(!is_json(text, n_bytes, false) || expected);
    read_as_value(text, n_bytes, expected);
    read_as_jinja(text, n_bytes, expected);
    read_string(text, n_bytes);
    free(text);
    return 0;
}
