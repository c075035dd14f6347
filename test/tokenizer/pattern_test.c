/*
 * pattern_test.c - matches are Oniguruma's, and what cannot be read is named; the whole of Unicode
 * is test/oracle/tokenizer.py's
 */
#include "data/data_fixture.h"

#include "base/str.h"
#include "tokenizer/pattern.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Text with '|' where matches begin and end; what lies between matches is in braces. */
static void expect(const char *pattern_text, const char *expected)
{
    struct arena arena = { 0 };
    struct str text = { 0 }, joined = { 0 };
    struct pattern pattern;
    size_t n_vain = 0;
    struct err err = { 0 };

    if (pattern_compile(&pattern, pattern_text, &arena, &err) < 0)
        fail_msg("%s", err.text);
    for (const char *c = expected; *c; c++)
        if (!strchr("|{}", *c))
            str_add_char(&text, *c);
    for (size_t at = 0, n; at < text.length; at += n) {
        size_t matched = pattern_match(&pattern, text.data + at, text.length - at, &n_vain);

        n = matched ? matched : 1;
        if (at > 0)
            str_add_char(&joined, '|');
        str_add(&joined, matched ? "" : "{");
        str_add_bytes(&joined, text.data + at, n);
        str_add(&joined, matched ? "" : "}");
    }
    assert_string_equal(str_text(&joined), expected);
    str_release(&text);
    str_release(&joined);
    arena_release(&arena);
}

static void test_gpt2(void **state)
{
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(GPT2, cases[i]);
}

static void test_llama3(void **state)
{
    (void)state;
    expect(LLAMA3, "I|'M| here|,| THEY|'LL| go|!\n\n|a");
    expect(LLAMA3, "it|'\xc5\xbf|.|123|456|7|\tx"); /* the long s is an s without case */
    expect(LLAMA3, "a| | b|  \n\n|  | c|   ");
}

static void test_operators(void **state)
{
    (void)state;
    expect("a|ab", "a|{b}"); /* the first alternative that fits, not the longest */
    expect("ab|a", "ab|a");
    expect("a(?:b|c)*d", "abcbd|ad|{a}|{x}");
    expect("(ab)+c?", "ababc|ab|{a}");
    expect("x{2}", "xx|xx|{x}");
    expect("x{2,}y", "xxxxy|{x}|{y}");
    expect("x{0,2}y", "{x}|xxy|y");
    expect("(?:|b)c", "bc|c");
    expect("[a-c[x-z]]+", "abxz|{d}|c");
    expect("[^a-c[x-z]]+", "{a}|defg|{x}");
    expect("[\\]\\-]+.", "]-]q|{a}|-]z");
    expect("\\S+", "ab|{ }|c!");
    expect("[\\S\n]+", "ab\nc|{ }|d");
    expect("\\D", "a|{1}|b");
    expect("\\P{Lu}+|\\p{^Ll}", "abc|A|d");
    expect("a(?=b)|b$", "a|{b}|a|{b}|{x}|a|b");
    expect("a$", "a|{\n}|a");
    expect("\\x{4e00}\\u4e8c\\x41", "\xe4\xb8\x80\xe4\xba\x8c"
                                    "A");
    expect("(?i:k)a", "ka|Ka|{k}|{A}|\xe2\x84\xaa"
                      "a");
    expect("a.b", "axb|{a}|{\n}|{b}");
}

static void test_refusals(void **state)
{
    static const char *const cases[] = {
        "a*?b",        "a++",     "a(?<=b)",  "(?>a)",  "\\w",          "\\bx",
        "[[:alpha:]]", "[a&&b]",  "\\p{Han}", "a{3,2}", "(ab){2}",      "(?i:\xc3\xa9)",
        "^a",          "a**",     "(a",       "a)",     "[a",           "*a",
        "\\",          "x{65}",   "[z-a]",    "\\p{L",  "(?i:\\p{Lu})", "\\1",
        "[a-\\d]",     "(?!ab)c", "[^a[^b]]", "",       "a*",           "b|",
        "\\s*$",
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = { 0 };
        struct pattern pattern;
        struct err err = { 0 };
        struct str quoted = { 0 };

        str_printf(&quoted, "pattern '%s'", cases[i]);
        if (pattern_compile(&pattern, cases[i], &arena, &err) == 0)
            fail_msg("'%s' is taken", cases[i]);
        assert_int_equal(err.code, ERR_DATA);
        assert_non_null(strstr(err.text, str_text(&quoted)));
        str_release(&quoted);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_operators),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
