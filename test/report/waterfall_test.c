/*
 * waterfall_test.c - bars follow each other and end where the whole does
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "report/waterfall.h"

static void test_bars(void **state)
{
    static const double parts[] = { 50, 25, 0, 0.04, 1, 23.96 };
    /* A half is rounded up: 75 of 100 is 8 of 10. */
    static const char *const bars[] = { "#####", "     ###", "", "", "        #", "        ##" };
    struct waterfall w = { .whole = 100, .width = 10 };
    struct str bar = { 0 };

    (void)state;
    for (int i = 0; i < 6; i++) {
        waterfall_next(&w, parts[i], &bar);
        assert_string_equal(str_text(&bar), bars[i]);
    }
    str_release(&bar);
}

/* Whatever the parts: each has a mark, begins where the one before ends or on its last mark, and
 * none is beyond the whole. */
static void test_shapes(void **state)
{
    struct str bar = { 0 };
    uint32_t dice = 1;

    (void)state;
    for (int round = 0; round < 500; round++) {
        struct waterfall w = { .whole = 1000, .width = 1 + round % 40 };
        size_t last = 0;

        for (int left = 1000; left > 0;) {
            dice = dice * 1664525 + 1013904223;
            int part = 1 + (int)(dice >> 8) % 300;

            part = part < left ? part : left;
            left -= part;
            waterfall_next(&w, part, &bar);
            size_t begin = strspn(str_text(&bar), " "), marks = strspn(str_text(&bar) + begin, "#");
            assert_true(marks >= 1);
            assert_int_equal(begin + marks, bar.length);
            assert_true(bar.length <= (size_t)w.width);
            assert_true(begin <= last && begin + 1 >= last);
            assert_true(bar.length >= last);
            last = bar.length;
        }
        assert_int_equal(last, w.width);
        /* Rounding may leave more than there is. */
        waterfall_next(&w, 10, &bar);
        assert_int_equal(bar.length, w.width);
    }
    str_release(&bar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bars),
        cmocka_unit_test(test_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
