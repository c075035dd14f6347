/*
 * split_test.c - word by word; the whole of Unicode is test/oracle/tokenizer.py's
 */
#include "data/fixture.h"

#include "base/str.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode.h"

static void test_words(void **state)
{
    /* Text with '|' where words end. */
    static const char *const cases[] = {
        "I|'m| here|,| they|'ll| go|,| don|'t| they|'ve|'d|'s|'re",
        "'|S| '|T| '|s", /* upper case is no contraction; " '" is punctuation that takes its space
                          */
        "''|s",
        "'|l|'|v|'|r",
        "a| | b| 12| !?...|\n|c",
        "x|\n\n|\n|y",
        "   ",
        "  | x|\t\n",
        "1611|AD| 2\xc2\xbd",
        "\xc3\xa9t\xc3\xa9| \xe4\xb8\x80\xe4\xba\x8c|\xef\xbc\x81",
        "a|\xc2\xa0|b|\xc2\xa0| b|\xe3\x80\x80",
        "a| \xe3\x80\x80|\xe3\x80\x80|b", /* the space given back may be three bytes long */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str text = { 0 }, joined = { 0 };

        for (const char *c = cases[i]; *c; c++)
            if (*c != '|')
                str_add_char(&text, *c);
        for (size_t at = 0, n; at < text.length; at += n) {
            n = split_word(text.data + at, text.length - at);
            assert_in_range(n, 1, text.length - at);
            if (at > 0)
                str_add_char(&joined, '|');
            str_add_bytes(&joined, text.data + at, n);
        }
        assert_string_equal(joined.data, cases[i]);
        str_release(&text);
        str_release(&joined);
    }
}

static void test_classes(void **state)
{
    (void)state;
    assert_int_equal(unicode_class('a'), UNICODE_LETTER);
    assert_int_equal(unicode_class(0xe9), UNICODE_LETTER);
    assert_int_equal(unicode_class(0x4e00), UNICODE_LETTER);
    assert_int_equal(unicode_class(0x20000), UNICODE_LETTER);
    assert_int_equal(unicode_class('7'), UNICODE_NUMBER);
    assert_int_equal(unicode_class(0xbd), UNICODE_NUMBER);
    assert_int_equal(unicode_class(0x2167), UNICODE_NUMBER);
    assert_int_equal(unicode_class(0x3000), UNICODE_SPACE);
    assert_int_equal(unicode_class(0x85), UNICODE_SPACE);
    assert_int_equal(unicode_class(0x200b), UNICODE_OTHER);
    assert_int_equal(unicode_class(0x301), UNICODE_OTHER);
    assert_int_equal(unicode_class(0x10ffff), UNICODE_OTHER);
    int n[4] = { 0 };
    for (uint32_t code = 0; code < 0x110000; code++)
        n[unicode_class(code)]++;
    assert_int_equal(n[UNICODE_LETTER], 141028);
    assert_int_equal(n[UNICODE_NUMBER], 1911);
    assert_int_equal(n[UNICODE_SPACE], 25);
}

static void test_decode(void **state)
{
    static const struct {
        const char *text;
        uint32_t code;
    } cases[] = { { "z", 'z' },
                  { "\xc3\xa9", 0xe9 },
                  { "\xdf\xbf", 0x7ff },
                  { "\xe0\xa0\x80", 0x800 },
                  { "\xef\xbf\xbf", 0xffff },
                  { "\xf0\x90\x80\x80", 0x10000 },
                  { "\xf4\x8f\xbf\xbf", 0x10ffff } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;

        assert_int_equal(unicode_decode((const unsigned char *)cases[i].text, &n), cases[i].code);
        assert_int_equal(n, strlen(cases[i].text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_decode),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
