/*
 * jsonl_test.c - what is a text, and what is an error
 */
#include "data_fixture.h"

#include "base/json_reader.h"
#include "data/rows/jsonl.h"

static void expect_text(const char *line, size_t n_line, const char *text, size_t n_text)
{
    struct str out = { 0 };
    struct err err = { 0 };

    if (jsonl_text(line, n_line, "text", &out, &err) < 0)
        fail_msg("%s: %s", line, err.text);
    assert_int_equal(out.length, n_text);
    assert_int_equal(memcmp(str_text(&out), text, n_text), 0);
    str_release(&out);
}

#define EXPECT_TEXT(line, text) expect_text(line, strlen(line), text, sizeof(text) - 1)

static void test_texts(void **state)
{
    (void)state;
    EXPECT_TEXT("{\"text\": \"abc\"}", "abc");
    EXPECT_TEXT("  {\"text\":\"\"}\r\n", "");
    EXPECT_TEXT("{\"id\": 17, \"text\": \"x\", \"z\": [1, {\"text\": 2}, [], {}, \"]\"]}", "x");
    EXPECT_TEXT("{\"a\": {\"text\": \"inner\"}, \"text\": \"outer\"}", "outer");
    EXPECT_TEXT("{\"a\": -1.5e+3, \"b\": true, \"c\": false, \"d\": null, \"text\": \"n\"}", "n");
    EXPECT_TEXT("{\"a\": [[[[1,2],3]]], \"b\": {\"c\": {\"d\": []}}, \"text\": \"deep\"}", "deep");
    EXPECT_TEXT("{\"te\\u0078t\": \"key\"}", "key");
    EXPECT_TEXT("{\"text\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t");
    EXPECT_TEXT("{\"text\": \"\\u0041\\u00e9\\u4e00\\ud83d\\ude00\\uFFFF\"}",
                "A\xc3\xa9\xe4\xb8\x80\xf0\x9f\x98\x80\xef\xbf\xbf");
    EXPECT_TEXT("{\"text\": \"a\\u0000b\"}", "a\0b");
    EXPECT_TEXT("{\"text\": \"\xc3\xa9\"}", "\xc3\xa9");
}

static void expect_error(const char *line, const char *text)
{
    struct str out = { 0 };
    struct err err = { 0 };

    if (jsonl_text(line, strlen(line), "text", &out, &err) == 0)
        fail_msg("accepted %s", line);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, text))
        fail_msg("%s: '%s' does not say '%s'", line, err.text, text);
    str_release(&out);
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("", "an object is expected at byte 0");
    expect_error("[\"text\"]", "an object is expected");
    expect_error("{}", "no field 'text'");
    expect_error("{\"a\": {\"text\": \"x\"}}", "no field 'text'");
    expect_error("{\"\": 1, \"\\u001b[31m\": 2, \"c\": []}", "(hint: it has , ");
    expect_error("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1}",
                 "(hint: it has a, b, c, d, e, f, g, h)");
    expect_error("{\"a\": {}", "',' or '}' is expected at byte 8");
    expect_error("{\"text\": 5}", "field 'text' is not a string");
    expect_error("{\"text\": \"a\", \"text\": \"b\"}", "occurs twice");
    expect_error("{\"text\": \"a\"", "',' or '}' is expected at byte 12");
    expect_error("{\"text\": \"a\"} x", "unexpected characters after");
    expect_error("{\"text\": \"a\"}{}", "unexpected characters after");
    expect_error("{\"text\": \"a\",}", "a string is expected");
    expect_error("{text: \"a\"}", "a string is expected");
    expect_error("{\"text\" \"a\"}", "':' is expected");
    expect_error("{\"text\": \"a", "does not end");
    expect_error("{\"text\": \"a\nb\"}", "control character");
    expect_error("{\"text\": \"\\x\"}", "unknown escape");
    expect_error("{\"text\": \"\\", "unknown escape");
    expect_error("{\"text\": \"\\u12g4\"}", "four hex digits");
    expect_error("{\"text\": \"\\u12", "four hex digits");
    expect_error("{\"text\": \"\\ud83d\"}", "surrogate");
    expect_error("{\"text\": \"\\ud83d\\u0041\"}", "surrogate");
    expect_error("{\"text\": \"\\ude00\"}", "surrogate");
    expect_error("{\"a\": }", "a value is expected");
    expect_error("{\"a\": nul, \"text\": \"x\"}", "a value is expected");
    expect_error("{\"a\": [1 2], \"text\": \"x\"}", "',' or ']' is expected");
    expect_error("{\"a\": [1,], \"text\": \"x\"}", "a value is expected");
    expect_error("{\"a\": [1}, \"text\": \"x\"}", "',' or ']' is expected");
    expect_error("{\"a\": {\"b\" 1}, \"text\": \"x\"}", "':' is expected");
    expect_error("{\"a\": {1: 1}, \"text\": \"x\"}", "a string is expected");
    expect_error("{\"a\": 01, \"text\": \"x\"}", "an invalid number at byte 6");
    expect_error("{\"a\": {\"b\": 1,}, \"text\": \"x\"}", "a string is expected");
}

static void test_depth(void **state)
{
    for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
        struct str line = { 0 };

        (void)state;
        str_add(&line, "{\"a\": ");
        for (int i = 0; i < depth; i++)
            str_add_char(&line, '[');
        for (int i = 0; i < depth; i++)
            str_add_char(&line, ']');
        str_add(&line, ", \"text\": \"x\"}");
        if (depth == JSON_DEPTH_MAX)
            EXPECT_TEXT(line.data, "x");
        else
            expect_error(line.data, "too deep");
        str_release(&line);
    }
}

/* No prefix of a line is a line, and none is read beyond its end (asan sees to that). */
static void test_cut_lines(void **state)
{
    static const char line[] =
        "{\"a\": [1, {\"b\": null}], \"text\": \"x\\u0041\\n\", \"c\": true}";

    (void)state;
    for (size_t n = 0; n < sizeof line - 1; n++) {
        char *cut = malloc(n + 1);
        struct str out = { 0 };
        struct err err = { 0 };

        assert_non_null(cut);
        memcpy(cut, line, n);
        assert_int_equal(jsonl_text(cut, n, "text", &out, &err), -1);
        str_release(&out);
        free(cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_cut_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
