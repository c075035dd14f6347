/*
 * json_reader_test.c - the pull parser: what is JSON and what is not
 *
 * Refused strings and numbers of headers are in safetensors_test.c; here json_skip decides on whole
 * texts.
 */
#include "ckpt_fixture.h"

#include "ckpt/json_reader.h"

static int is_json(const char *text, size_t n_bytes)
{
    struct json_reader reader;

    json_reader_init(&reader, text, n_bytes, &fixture_arena);
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
    json_reader_init(&reader, text.data, text.length, &fixture_arena);
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
    json_reader_init(&reader, text, sizeof text - 1, &fixture_arena);
    json_open(&reader, '[');
    for (int i = 0; json_next(&reader, ']'); i++)
        numbers[i] = json_count(&reader, INT64_MAX);
    assert_int_equal(json_end(&reader), 0);
    assert_true(numbers[0] == INT64_MAX && numbers[1] == 9007199254740993);
    assert_true(numbers[2] == 0 && numbers[3] == 5);
    json_reader_init(&reader, "6", 1, &fixture_arena);
    assert_int_equal(json_count(&reader, 5), 0);
    assert_string_equal(reader.problem, "a number is out of range");
}

/* After the first problem nothing moves, and the first is the one that is told. */
static void the_first_problem_stays(void **state)
{
    static const char text[] = "{\"a\" 1}";
    struct json_reader reader;

    (void)state;
    json_reader_init(&reader, text, sizeof text - 1, &fixture_arena);
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

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(whole_texts),
        TEST(depth_has_a_limit_and_costs_no_stack),
        TEST(strings_come_back_as_they_went),
        TEST(counts_are_exact),
        TEST(the_first_problem_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
