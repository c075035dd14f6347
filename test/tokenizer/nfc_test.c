/*
 * nfc_test.c - composition by known cases; every code point is test/oracle/tokenizer.py's
 */
#include "data/data_fixture.h"

#include "tokenizer/unicode/nfc.h"

static void expect(const char *text, const char *expected)
{
    struct str out = { 0 };

    nfc_append(&out, text, strlen(text));
    assert_string_equal(str_text(&out), expected);
    str_release(&out);
}

static void test_cases(void **state)
{
    (void)state;
    expect("", "");
    expect("plain \xc3\xa9 \xe4\xb8\x80", "plain \xc3\xa9 \xe4\xb8\x80");
    expect("xe\xcc\x81y", "x\xc3\xa9y");
    expect("s\xcc\x87\xcc\xa3", "\xe1\xb9\xa9");            /* ordered, then composed twice */
    expect("\xe1\xb8\x8b\xcc\xa3", "\xe1\xb8\x8d\xcc\x87"); /* taken apart first */
    expect("a\xcc\x81\xcc\x80", "\xc3\xa1\xcc\x80");        /* the second is blocked */
    expect("\xe2\x84\xab", "\xc3\x85");                     /* a singleton */
    expect("\xef\xac\xac", "\xd7\xa9\xd6\xbc\xd7\x81");     /* excluded from composition */
    expect("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* Hangul */
    expect("\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81");
    expect("\xcc\x81"
           "a",
           "\xcc\x81"
           "a");
}

static void test_length(void **state)
{
    (void)state;
    assert_int_equal(nfc_length("abc\xc3\xa9", 5), 5);
    assert_int_equal(nfc_length("abe\xcc\x81", 5), 2);
    assert_int_equal(nfc_length("\xcc\x81", 2), 0);
}

/* A million marks behind one letter: quadratic ordering would take minutes. */
static void test_many_marks(void **state)
{
    struct str text = { 0 }, out = { 0 };

    (void)state;
    str_add(&text, "a");
    for (int i = 0; i < 500000; i++)
        str_add(&text, "\xcc\x87\xcc\xa3");
    nfc_append(&out, text.data, text.length);
    assert_memory_equal(out.data, "\xe1\xba\xa1\xcc\xa3", 5);
    assert_int_equal(out.length, text.length);
    str_release(&text);
    str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_many_marks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
