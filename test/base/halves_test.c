/*
 * halves_test.c - an fp32 in two words: exact there and back, and the upper one is its rounding
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/halves.h"

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void check(uint32_t bits)
{
    float x = float_of(bits);
    uint16_t upper = halves_upper(x), lower = halves_lower(x);
    float back = halves_join(upper, lower);

    if (isnan(x)) {
        assert_true(isnan(bf16_to_float(upper)) && isnan(back));
        assert_int_equal(lower, 0);
        assert_int_equal(bits_of(back) >> 16, bits >> 16 | 0x40);
        return;
    }
    assert_int_equal(bits_of(back), bits);
    assert_int_equal(upper, (bits + 0x8000u) >> 16);
}

/* All upper words with the lower ones around each edge; and numbers in between. */
static void test_there_and_back(void **state)
{
    static const uint32_t lower[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };

    (void)state;
    for (uint32_t upper = 0; upper < 0x10000; upper++)
        for (size_t i = 0; i < sizeof lower / sizeof *lower; i++)
            check(upper << 16 | lower[i]);
    for (uint32_t i = 0, bits = 12345; i < 1000000; i++, bits = bits * 1664525u + 1013904223u)
        check(bits);
}

static void upper_is(uint32_t bits, uint16_t wanted)
{
    assert_int_equal(halves_upper(float_of(bits)), wanted);
}

/* Halves go away from zero; elsewhere, it is what rounding to even gives. */
static void test_rounding(void **state)
{
    (void)state;
    upper_is(0x3f800000, 0x3f80);
    upper_is(0x3f807fff, 0x3f80);
    upper_is(0x3f808000, 0x3f81);
    upper_is(0xbf808000, 0xbf81);
    upper_is(0x3f818000, 0x3f82);
    upper_is(0x00008000, 0x0001); /* subnormal */
    upper_is(0x80000001, 0x8000); /* -0 */
    upper_is(0x7f7f7fff, 0x7f7f);
    upper_is(0x7f7f8000, 0x7f80); /* too large: infinite, as to even */
    upper_is(0xff7fffff, 0xff80);
    upper_is(0x7f800000, 0x7f80);
    upper_is(0x7f800001, 0x7fc0); /* the NaNs whose upper words alone are none, or would be -0 */
    upper_is(0x7fffffff, 0x7fff);
    upper_is(0xffffffff, 0xffff);
    for (uint32_t upper = 0; upper < 0x10000; upper++)
        for (uint32_t low = 1; low < 0x10000; low += 0x7ffe)
            if (low != 0x8000 && !isnan(float_of(upper << 16 | low)))
                assert_int_equal(halves_upper(float_of(upper << 16 | low)),
                                 bf16_from_float(float_of(upper << 16 | low)));
}

/* A finite number whose upper word is infinite is not lost. */
static void test_overflow(void **state)
{
    float x = float_of(0x7f7fffff);

    (void)state;
    assert_true(isinf(bf16_to_float(halves_upper(x))));
    assert_true(halves_join(halves_upper(x), halves_lower(x)) == x);
    assert_true(isinf(halves_join(halves_upper(INFINITY), halves_lower(INFINITY))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
