/*
 * json_reader_test.c - the pull parser: what is JSON and what is not
 *
 * More of it is in the tests of the formats: safetensors_test.c, jsonl_test.c, value_test.c.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json_reader.h"

static struct arena arena;
static char *copies[1024]; /* of texts, of their size: what reads behind one is found by ASan */
static int n_copies;

static int teardown(void **state)
{
    (void)state;
    arena_release(&arena);
    while (n_copies > 0)
        free(copies[--n_copies]);
    return 0;
}

static int is_json(const char *text, size_t n_bytes)
{
    struct json_reader reader;

    json_reader_init(&reader, text, n_bytes, &arena);
    json_skip(&reader);
    return json_end(&reader) == 0;
}

static const char *const good[] = {
    "0",
    "-0",
    "1.5",
    "-12.25e+7",
    "1E-2",
    "true",
    "false",
    "null",
    "\"\"",
    "\"\\u20ac\\n\"",
    "[]",
    "{}",
    " [ ] ",
    "[1,2]",
    "[[],[[]],{}]",
    "{\"a\":1}",
    "{\"a\":{\"b\":[1,{\"c\":2}]},\"d\":[]}",
    "\t\r\n[1 , 2]\n",
    "\"\xe2\x82\xac\"",
};
static const char *const bad[] = {
    "",
    " ",
    "+1",
    "01",
    ".5",
    "1.",
    "1e",
    "--1",
    "0x1",
    "1 2",
    "nul",
    "nulls",
    "True",
    "NaN",
    "'a'",
    "\"a",
    "\"\t\"",
    "\"\\'\"",
    "[",
    "]",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[1}",
    "{",
    "{]",
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\":1,}",
    "{a:1}",
    "{\"a\":1 \"b\":2}",
    "{1:2}",
    "[]]",
    "{}{}",
    "\"\xff\"",
    "\"\xed\xa0\x80\"",
    "\"\\ud83d\"",
    "\"\\ud83dxx\"",
    "\"\\u12\"",
    "[1,\v2]",
};

static void whole_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!is_json(good[i], strlen(good[i])))
            fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (is_json(bad[i], strlen(bad[i])))
            fail_msg("taken: %s", bad[i]);
    assert_false(is_json("1\0", 2));
    assert_false(is_json("[1\0]", 4));
}

static void depth_has_a_limit_and_costs_no_stack(void **state)
{
    struct str text = { 0 };

    (void)state;
    for (int i = 0; i < JSON_DEPTH_MAX; i++)
        str_add_char(&text, '[');
    for (int i = 0; i < JSON_DEPTH_MAX; i++)
        str_add_char(&text, ']');
    assert_true(is_json(text.data, text.length));
    str_clear(&text);
    for (int i = 0; i < 1000000; i++)
        str_add(&text, "{\"\":");
    assert_false(is_json(text.data, text.length));
    str_release(&text);
}

static void strings_come_back_as_they_went(void **state)
{
    char all[256];
    struct json_reader reader;
    struct str text = { 0 };

    (void)state;
    for (int i = 1; i < 128; i++)
        all[i - 1] = (char)i;
    memcpy(all + 127, "\xc3\xa9\xf0\x9f\x98\x80", 7);
    json_add_string(&text, all);
    json_reader_init(&reader, text.data, text.length, &arena);
    assert_string_equal(json_string(&reader), all);
    assert_int_equal(json_end(&reader), 0);
    str_release(&text);
}

static void counts_are_exact(void **state)
{
    static const char text[] = "[9223372036854775807,9007199254740993,0,5]";
    struct json_reader reader;
    int64_t numbers[4] = { 0 };

    (void)state;
    json_reader_init(&reader, text, sizeof text - 1, &arena);
    json_open(&reader, '[');
    for (int i = 0; json_next(&reader, ']'); i++)
        numbers[i] = json_count(&reader, INT64_MAX);
    assert_int_equal(json_end(&reader), 0);
    assert_true(numbers[0] == INT64_MAX && numbers[1] == 9007199254740993);
    assert_true(numbers[2] == 0 && numbers[3] == 5);
    json_reader_init(&reader, "6", 1, &arena);
    assert_int_equal(json_count(&reader, 5), 0);
    assert_string_equal(reader.problem, "a number is out of range");
}

/* After the first problem nothing moves, and the first is the one that is told. */
static void the_first_problem_stays(void **state)
{
    static const char text[] = "{\"a\" 1}";
    struct json_reader reader;

    (void)state;
    json_reader_init(&reader, text, sizeof text - 1, &arena);
    json_open(&reader, '{');
    assert_true(json_next(&reader, '}'));
    assert_string_equal(json_key(&reader), "");
    size_t at = reader.problem_at;
    assert_int_equal(at, 5);
    assert_string_equal(json_string(&reader), "");
    assert_int_equal(json_count(&reader, 9), 0);
    assert_false(json_next(&reader, '}'));
    json_open(&reader, '[');
    json_skip(&reader);
    json_fail(&reader, "another");
    assert_int_equal(json_end(&reader), -1);
    assert_string_equal(reader.problem, "':' is expected");
    assert_int_equal(reader.problem_at, at);
}

static struct json_reader reader_of(const char *text, size_t n_bytes)
{
    struct json_reader reader;
    char *copy = malloc(n_bytes ? n_bytes : 1);

    assert_non_null(copy);
    assert_true(n_copies < (int)(sizeof copies / sizeof *copies));
    copies[n_copies++] = copy;
    memcpy(copy, text, n_bytes);
    json_reader_init(&reader, copy, n_bytes, &arena);
    return reader;
}

/* A byte that means something is found wherever it stands, and none before it is taken for one. */
static void strings_end_at_any_place(void **state)
{
    static const char marks[] = "\"\\\x01\x1f\xff";

    (void)state;
    for (size_t length = 0; length < 40; length++)
        for (size_t m = 0; m < sizeof marks - 1; m++) {
            char text[64] = "\"";

            for (size_t i = 0; i < length; i++)
                text[1 + i] = "a !#[]\x7f~"[(i + length) % 8];
            text[1 + length] = marks[m];
            memset(text + 2 + length, 'z', 10);
            struct json_reader reader = reader_of(text, length + 12);
            struct json_span span = json_string_span(&reader);
            if (m == 0) {
                assert_null(reader.problem);
                assert_int_equal(span.n_bytes, length);
                assert_memory_equal(span.text, text + 1, length);
                assert_false(span.has_escapes);
            } else {
                assert_non_null(reader.problem);
                assert_int_equal(reader.problem_at, length + 1);
                assert_int_equal(span.n_bytes, 0);
            }
            reader = reader_of(text, length + 1);
            json_string_span(&reader);
            assert_string_equal(reader.problem, "a string does not end");
        }
}

static const struct decoded {
    const char *json, *text;
    size_t n;
} decoded[] = {
    { "\"\"", "", 0 },
    { "\"abc\"", "abc", 3 },
    { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8 },
    { "\"\\u0041\\u00e9\\u4E00\\ud83d\\uDE00\\uFFFF\"",
      "A\xc3\xa9\xe4\xb8\x80\xf0\x9f\x98\x80\xef\xbf\xbf", 13 },
    { "\"a\\u0000b\"", "a\0b", 3 },
    { "\"\\u07ff\\u0800\\u007f\\u0080\\ud800\\udc00\\udbff\\udfff\"",
      "\xdf\xbf\xe0\xa0\x80\x7f\xc2\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 16 },
    { "\"plain text before \\n and plain text behind it\"",
      "plain text before \n and plain text behind it", 44 },
};

static void spans_are_decoded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof decoded / sizeof *decoded; i++) {
        const struct decoded *d = &decoded[i];
        struct json_reader reader = reader_of(d->json, strlen(d->json));
        struct json_span span = json_string_span(&reader);
        char *out = arena_alloc(&arena, span.n_bytes);
        struct str text = { 0 };

        assert_int_equal(json_end(&reader), 0);
        assert_int_equal(json_decode(span, out), d->n);
        assert_memory_equal(out, d->text, d->n);
        str_add(&text, "-");
        json_add_decoded(&text, span);
        assert_int_equal(text.length, d->n + 1);
        assert_memory_equal(text.data + 1, d->text, d->n + 1);
        str_release(&text);
        assert_true(json_span_is(span, d->text, d->n));
        assert_false(json_span_is(span, "plain text before \n", d->n + 1));
        if (d->n > 0) {
            assert_false(json_span_is(span, d->text, d->n - 1));
            assert_false(json_span_is(span, "?????????????????????????????????????????????", d->n));
        }
    }
    struct json_reader reader = reader_of("\"a\\u0000\"", 9);
    assert_string_equal(json_string(&reader), "");
    assert_string_equal(reader.problem, "\\u0000 in a string that cannot have it");
}

/* What is wrong, and at which byte. */
static const struct problem {
    const char *json, *problem;
    size_t at;
} problems[] = {
    { "", "a value is expected", 0 },
    { " [", "a value is expected", 2 },
    { "[1,]", "a value is expected", 3 },
    { "[nul]", "a value is expected", 1 },
    { "NaN", "a value is expected", 0 },
    { "[-Infinity]", "an invalid number", 1 },
    { "[01]", "an invalid number", 1 },
    { "1.", "an invalid number", 0 },
    { "1.5.2", "an invalid number", 0 },
    { "1e+", "an invalid number", 0 },
    { "+1", "an invalid number", 0 },
    { "[1 2]", "',' or ']' is expected", 3 },
    { "{\"a\":1]", "',' or '}' is expected", 6 },
    { "{\"a\" 1}", "':' is expected", 5 },
    { "{1:2}", "a string is expected", 1 },
    { "\"a", "a string does not end", 2 },
    { "\"\\", "unknown escape in a string", 1 },
    { "\"\\x\"", "unknown escape in a string", 1 },
    { "\"\\u12g4\"", "\\u without four hex digits", 1 },
    { "\"\\u12", "\\u without four hex digits", 1 },
    { "\"\\ud83d\"", "an unpaired surrogate", 7 },
    { "\"\\ud83d\\u0041\"", "an unpaired surrogate", 7 },
    { "\"\\ude00\\ud83d\"", "an unpaired surrogate", 7 },
    { "\"\\ud83d\\ud83d\"", "an unpaired surrogate", 7 },
    { "\"a\nb\"", "a control character in a string", 2 },
    { "\"a\xc0\x80\"", "broken UTF-8 in a string", 2 },
    { "{} x", "unexpected characters after the value", 3 },
};

static void problems_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        struct json_reader reader = reader_of(problems[i].json, strlen(problems[i].json));

        json_skip(&reader);
        assert_int_equal(json_end(&reader), -1);
        if (strcmp(reader.problem, problems[i].problem) != 0 || reader.problem_at != problems[i].at)
            fail_msg("%s: %s at byte %zu", problems[i].json, reader.problem, reader.problem_at);
    }
    struct json_reader reader = reader_of("\"a\xff\xc3\"", 5);
    reader.any_bytes = true;
    struct json_span span = json_string_span(&reader);
    assert_int_equal(json_end(&reader), 0);
    assert_true(json_span_is(span, "a\xff\xc3", 3));
}

static void scalars_are_as_spelled(void **state)
{
    static const char text[] = " [null , true,false, -0.50E+010,123456789012345678901234567890,"
                               "\"s\",{}, []]";
    static const char *const spelled[] = { "null", "true", "false", "-0.50E+010",
                                           "123456789012345678901234567890" };
    static const enum json_kind kinds[] = { JSON_NULL,   JSON_BOOL,   JSON_BOOL,   JSON_NUMBER,
                                            JSON_NUMBER, JSON_STRING, JSON_OBJECT, JSON_ARRAY };
    struct json_reader reader = reader_of(text, sizeof text - 1);
    int n = 0;

    (void)state;
    json_open(&reader, '[');
    for (; json_next(&reader, ']'); n++) {
        assert_int_equal(json_peek(&reader), kinds[n]);
        if (n < 5)
            assert_true(json_span_is(json_scalar(&reader), spelled[n], strlen(spelled[n])));
        else
            json_skip(&reader);
    }
    assert_int_equal(n, 8);
    assert_int_equal(json_peek(&reader), JSON_NONE);
    assert_int_equal(json_end(&reader), 0);
    assert_int_equal(json_scalar(&reader).n_bytes, 0);
    assert_string_equal(reader.problem, "a value is expected");
}

static void ends_are_found(void **state)
{
    static const char text[] = "{\"a]}\\\"}\": [1, {}], x}{";
    size_t n = sizeof text - 1;

    (void)state;
    for (size_t cut = 0; cut <= n; cut++) {
        struct json_reader reader = reader_of(text, cut);
        const char *end = json_find_end(reader.begin, reader.end);

        assert_ptr_equal(end, cut < n - 1 ? NULL : reader.begin + n - 1);
    }
}

int main(void)
{
#define TEST(function) cmocka_unit_test_teardown(function, teardown)
    const struct CMUnitTest tests[] = {
        TEST(whole_texts),
        TEST(depth_has_a_limit_and_costs_no_stack),
        TEST(strings_come_back_as_they_went),
        TEST(counts_are_exact),
        TEST(the_first_problem_stays),
        TEST(strings_end_at_any_place),
        TEST(spans_are_decoded),
        TEST(problems_are_named),
        TEST(scalars_are_as_spelled),
        TEST(ends_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
