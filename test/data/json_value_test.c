/*
 * json_value_test.c - JSON to trees and back, strictly
 */
#include "data_fixture.h"

#include "data/rows/json_value.h"

/* What parses prints as `expected` ("" where it is refused with `text`). */
static const struct parsed {
    const char *json, *expected, *text;
} cases[] = {
    { " {\"a\" : [1, -2.5e3, true , null, \"x\\n\\u00e9\\ud83d\\ude00\"], \"b\":{} } ",
      "{\"a\":[1,-2.5e3,true,null,\"x\\n\xc3\xa9\xf0\x9f\x98\x80\"],\"b\":{}}", NULL },
    { "[[],[[]],{}]", "[[],[[]],{}]", NULL },
    { "\"\\u0001\\\\\\\"\\/\"", "\"\\u0001\\\\\\\"/\"", NULL },
    { "0", "0", NULL },
    { "-0.5E+10", "-0.5E+10", NULL },
    { "", "", "a value is expected at byte 0" },
    { "01", "", "an invalid number at byte 0" },
    { "1.", "", "an invalid number" },
    { ".5", "", "an invalid number" },
    { "+1", "", "an invalid number" },
    { "1e", "", "an invalid number" },
    { "[1,]", "", "a value is expected at byte 3" },
    { "[1 2]", "", "',' or ']' is expected at byte 3" },
    { "{\"a\"}", "", "':' is expected" },
    { "{\"a\":1,\"a\":2}", "", "a key that was there before" },
    { "{a:1}", "", "a string is expected" },
    { "[1}", "", "',' or ']' is expected" },
    { "[", "", "a value is expected at byte 1" },
    { "{} x", "", "unexpected characters after the value at byte 3" },
    { "\"\n\"", "", "a control character in a string" },
    { "\"\\ud800x\"", "", "an unpaired surrogate" },
    { "nul", "", "a value is expected" },
};

static void test_parse(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = { 0 };
        struct str out = { 0 };
        struct json_value *value;
        struct err err = { 0 };
        int rc = json_value_parse(&value, cases[i].json, strlen(cases[i].json), &arena, &err);

        if (rc == 0)
            json_value_print(value, &out);
        assert_string_equal(str_text(&out), cases[i].expected);
        assert_int_equal(rc, cases[i].text ? -1 : 0);
        if (cases[i].text && !strstr(err.text, cases[i].text))
            fail_msg("'%s': '%s' does not say '%s'", cases[i].json, err.text, cases[i].text);
        str_release(&out);
        arena_release(&arena);
    }
}

static void test_get(void **state)
{
    static const char json[] = "{\"a\": {\"b\": \"x\\u0000y\"}, \"n\": null}";
    struct arena arena = { 0 };
    struct json_value *value;
    struct err err;

    (void)state;
    assert_int_equal(json_value_parse(&value, json, sizeof json - 1, &arena, &err), 0);
    const struct json_value *b = json_value_get(json_value_get(value, "a"), "b");
    assert_int_equal(b->n_bytes, 3);
    assert_memory_equal(b->text, "x\0y", 4);
    assert_null(json_value_get(value, "n"));
    assert_null(json_value_get(value, "c"));
    assert_null(json_value_get(b, "c"));
    assert_string_equal(json_value_kind_name(b), "a string");
    assert_string_equal(json_value_kind_name(NULL), "missing");
    arena_release(&arena);
}

/* Depth and number are bounded, and no stack is used up before. */
static void test_bounds(void **state)
{
    struct str deep = { 0 }, many = { 0 };
    struct arena arena = { 0 };
    struct json_value *value;
    struct err err;

    (void)state;
    for (int i = 0; i < 100000; i++)
        str_add_char(&deep, '[');
    assert_int_equal(json_value_parse(&value, deep.data, deep.length, &arena, &err), -1);
    assert_non_null(strstr(err.text, "nested too deep"));
    assert_int_equal(json_value_parse(&value, deep.data + 100000 - JSON_VALUE_DEPTH_MAX,
                                      JSON_VALUE_DEPTH_MAX, &arena, &err),
                     -1);
    assert_non_null(strstr(err.text, "a value is expected"));
    str_add(&many, "[0");
    for (int i = 0; i < JSON_VALUE_COUNT_MAX; i++)
        str_add(&many, ",0");
    str_add_char(&many, ']');
    assert_int_equal(json_value_parse(&value, many.data, many.length, &arena, &err), -1);
    assert_non_null(strstr(err.text, "more than a million values"));
    str_release(&deep);
    str_release(&many);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_parse), cmocka_unit_test(test_get),
                                        cmocka_unit_test(test_bounds) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
