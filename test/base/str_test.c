/*
 * str_test.c - text that grows, names that are near, numbers that are whole
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "base/str.h"

static void test_growing(void **state)
{
    struct str text = { 0 };

    (void)state;
    assert_string_equal(str_text(&text), "");
    for (int i = 0; i < 1000; i++)
        str_printf(&text, "%d,", i);
    assert_int_equal(text.length, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strlen(text.data), text.length);
    assert_memory_equal(text.data, "0,1,2,", 6);
    str_clear(&text);
    assert_string_equal(str_text(&text), "");
    str_add_char(&text, 'a');
    str_add_bytes(&text, "bcd", 2);
    str_add(&text, "");
    assert_string_equal(str_text(&text), "abc");
    str_release(&text);
    assert_null(text.data);
}

static void test_units(void **state)
{
    char b[40];

    (void)state;
    assert_string_equal(str_bytes(b, sizeof b, 0), "0 B");
    assert_string_equal(str_bytes(b, sizeof b, 1023), "1023 B");
    assert_string_equal(str_bytes(b, sizeof b, 1536), "1.5 KiB");
    assert_string_equal(str_bytes(b, sizeof b, (uint64_t)200 << 30), "200 GiB");
    assert_string_equal(str_duration(b, sizeof b, 4.21), "4.2 s");
    assert_string_equal(str_duration(b, sizeof b, 187), "3:07");
    assert_string_equal(str_duration(b, sizeof b, 3765), "1:02:45");
    assert_string_equal(str_duration(b, sizeof b, 2 * 86400 + 3 * 3600 + 600), "2d 03:10");
    assert_string_equal(str_duration(b, sizeof b, -1), "-");
    assert_string_equal(str_count(b, sizeof b, 124439808), "124,439,808");
    assert_string_equal(str_count(b, sizeof b, 999), "999");
    assert_string_equal(str_s(1), "");
    assert_string_equal(str_s(0), "s");
    assert_string_equal(str_s(-1), "s");
    assert_string_equal(str_es(1), "");
    assert_string_equal(str_es(2), "es");
    assert_string_equal(str_count(b, sizeof b, -1000), "-1,000");
    assert_string_equal(str_count(b, sizeof b, -100), "-100");
    assert_string_equal(str_count(b, sizeof b, INT64_MIN), "-9,223,372,036,854,775,808");
}

static void test_distance(void **state)
{
    static const struct {
        const char *a, *b;
        int distance;
    } rows[] = { { "", "", 0 },           { "", "abc", 3 },   { "abc", "abc", 0 },
                 { "abc", "acb", 1 },     { "abc", "ab", 1 }, { "kitten", "sitting", 3 },
                 { "steps", "stesp", 1 }, { "ca", "abc", 3 } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(str_distance(rows[i].a, rows[i].b), rows[i].distance);
        assert_int_equal(str_distance(rows[i].b, rows[i].a), rows[i].distance);
    }
}

static void test_nearest(void **state)
{
    static const char *const names[] = { "steps", "global_batch", "micro_batch", "seed", "lr" };

    (void)state;
    assert_string_equal(str_nearest("step", names, 5), "steps");
    assert_string_equal(str_nearest("stesp", names, 5), "steps");
    assert_string_equal(str_nearest("microbatch", names, 5), "micro_batch");
    assert_string_equal(str_nearest("global", names, 5), "global_batch");
    assert_string_equal(str_nearest("lr", names, 5), "lr");
    assert_null(str_nearest("zzzzzz", names, 5));
    assert_null(str_nearest("steps", names, 0));
    char long_one[1001];
    memset(long_one, 'z', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = '\0';
    assert_null(str_nearest(long_one, names, 5));
    memcpy(long_one, "seed", 4);
    assert_string_equal(str_nearest(long_one, names, 5), "seed");
}

static void test_integers(void **state)
{
    static const char *const bad[] = { "",
                                       "-",
                                       "+",
                                       "1x",
                                       "x1",
                                       "1.0",
                                       " 1",
                                       "1 ",
                                       "1__0",
                                       "_1",
                                       "1_",
                                       "0x10",
                                       "1e3",
                                       "--1",
                                       "9223372036854775808",
                                       "-9223372036854775809" };
    int64_t value = 7;

    (void)state;
    assert_int_equal(str_to_i64("1_000_000", &value), 0);
    assert_int_equal(value, 1000000);
    assert_int_equal(str_to_i64("-9223372036854775808", &value), 0);
    assert_true(value == INT64_MIN);
    assert_int_equal(str_to_i64("+007", &value), 0);
    assert_int_equal(value, 7);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!str_to_i64(bad[i], &value))
            fail_msg("\"%s\" was taken for %lld", bad[i], (long long)value);
        assert_int_equal(value, 7);
    }
}

static void test_floats(void **state)
{
    static const char *const bad[] = { "",    "-",     ".",  "e5", "1e",    "1x",  "nan",
                                       "inf", "0x1p3", " 1", "1 ", "1e999", "1,5", "1_0" };
    double value = 7;

    (void)state;
    assert_int_equal(str_to_f64("3e-4", &value), 0);
    assert_true(value == 3e-4);
    assert_int_equal(str_to_f64("-.5", &value), 0);
    assert_true(value == -0.5);
    assert_int_equal(str_to_f64("7", &value), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!str_to_f64(bad[i], &value))
            fail_msg("\"%s\" was taken for %g", bad[i], value);
        assert_true(value == 7);
    }
}

static int utf8(const char *text)
{
    return str_utf8_length((const unsigned char *)text, strlen(text));
}

static void test_utf8(void **state)
{
    (void)state;
    assert_int_equal(utf8(""), 0);
    assert_int_equal(utf8("a"), 1);
    assert_int_equal(utf8("é"), 2);
    assert_int_equal(utf8("€"), 3);
    assert_int_equal(utf8("😀"), 4);
    assert_int_equal(utf8("\xc3"), 0);             /* cut */
    assert_int_equal(utf8("\xe2\x82"), 0);         /* cut */
    assert_int_equal(utf8("\xf0\x9f\x98"), 0);     /* cut */
    assert_int_equal(utf8("\x80"), 0);             /* a tail alone */
    assert_int_equal(utf8("\xc0\xaf"), 0);         /* longer than needed */
    assert_int_equal(utf8("\xe0\x80\xaf"), 0);     /* longer than needed */
    assert_int_equal(utf8("\xf0\x80\x80\xaf"), 0); /* longer than needed */
    assert_int_equal(utf8("\xed\xa0\x80"), 0);     /* a surrogate */
    assert_int_equal(utf8("\xf4\x90\x80\x80"), 0); /* above U+10FFFF */
    assert_int_equal(utf8("\xff"), 0);
}

static void test_ends(void **state)
{
    (void)state;
    assert_true(str_starts_with("model.name", "model."));
    assert_false(str_starts_with("mod", "model."));
    assert_true(str_ends_with("a.yaml", ".yaml"));
    assert_false(str_ends_with("yaml", ".yaml"));
    assert_true(str_ends_with("x", ""));
}

static void test_printable(void **state)
{
    static const char *const rows[][2] = {
        { "", "" },
        { "plain \xc3\xa9 \xf0\x9f\x98\x80\n\tline", "plain \xc3\xa9 \xf0\x9f\x98\x80\n\tline" },
        { "\x1b[2J\r\x07\x7f", "?[2J???" },
        { "\xc2\x9b"
          "2J",
          "??2J" },
        { "a\xffz\xc3", "a?z?" },
        { "\xe2\x82", "??" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64];

        snprintf(text, sizeof text, "%s", rows[i][0]);
        str_make_printable(text);
        assert_string_equal(text, rows[i][1]);
    }
}

/* As Python's decode(errors="replace"). */
static void test_lossy(void **state)
{
    static const char *const rows[][2] = {
        { "", "" },
        { "plain \xc3\xa9 \xf0\x9f\x98\x80", "plain \xc3\xa9 \xf0\x9f\x98\x80" },
        { "a\xf0\x9f\x98", "a\xef\xbf\xbd" },
        { "\xf0\x9f\x98z", "\xef\xbf\xbdz" },
        { "\x80\xff", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac" },
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xe0\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf4\x90\xc1z", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct str out = { 0 };

        str_add_utf8(&out, rows[i][0], strlen(rows[i][0]));
        assert_string_equal(str_text(&out), rows[i][1]);
        str_release(&out);
    }
}

static void test_json_nul(void **state)
{
    static const struct {
        const char *json;
        int has;
    } rows[] = {
        { "", 0 },
        { "\"u0000\"", 0 },
        { "\"\\u0000\"", 1 },
        { "\"\\\\u0000\"", 0 },
        { "\"\\\\\\u0000\"", 1 },
        { "\"\\u0001\\u000\"", 0 },
        { "\\u000", 0 },
        { "\\", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (str_has_json_nul(rows[i].json, strlen(rows[i].json)) != rows[i].has)
            fail_msg("%s", rows[i].json);
    assert_int_equal(str_has_json_nul("\\u0000", 5), 0); /* n_bytes, not the end of the string */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printable), cmocka_unit_test(test_growing),
        cmocka_unit_test(test_units),     cmocka_unit_test(test_distance),
        cmocka_unit_test(test_nearest),   cmocka_unit_test(test_integers),
        cmocka_unit_test(test_floats),    cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_ends),      cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_json_nul),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
