/*
 * consistency_test.c - the first line that differs, with the keys that it stands under
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "base/str.h"
#include "train/consistency.h"

static void check(const char *a, const char *b, const char *in_a, const char *in_b)
{
    struct str found_a = { 0 }, found_b = { 0 };

    consistency_first_difference(a, b, &found_a, &found_b);
    assert_string_equal(str_text(&found_a), in_a);
    assert_string_equal(str_text(&found_b), in_b);
    str_release(&found_a);
    str_release(&found_b);
}

static void test_differences(void **state)
{
    (void)state;
    check("version 1\nlr 2\n", "version 1\nlr 3\n", "lr 2", "lr 3");
    check("1.0", "1.1", "1.0", "1.1");
    check("a: 1\nb:\n  c: 1\n  d:\n    e: 2\nf: 1\n", "a: 1\nb:\n  c: 1\n  d:\n    e: 3\nf: 1\n",
          "b.d.e: 2", "b.d.e: 3");
    check("b:\n  c: 1\n  d: 2\n", "b:\n  c: 1\n  x: 2\n", "b.d: 2", "b.x: 2");
    /* One ends before the other, or has a line more. */
    check("a\n", "a\nb\n", "", "b");
    check("", "a\n", "", "a");
    check("a:\n  b: 1\nc: 1\n", "a:\n  b: 1\n  d: 1\nc: 1\n", "c: 1", "a.d: 1");
    check("a", "ab", "a", "ab");
    /* Deeper than there are keys kept for, and no keys above. */
    check("                        x: 1", "                        x: 2", "x: 1", "x: 2");
    check("same\n", "same\n", "", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_differences) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
