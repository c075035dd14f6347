/*
 * convert_test.c - fp16 against its definition; every pair of types
 */
#include "fixture.h"

#include <math.h>

#include "base/rng.h"
#include "ckpt/convert.h"

/* What the bits mean, by the definition of binary16. */
static double f16_value(uint16_t x)
{
    int exponent = x >> 10 & 31, fraction = x & 1023;
    double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                       : exponent == 0 ? ldexp(fraction, -24)
                                       : ldexp(1024 + fraction, exponent - 25);

    return x & 0x8000 ? -magnitude : magnitude;
}

static void all_of_f16_goes_there_and_back(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t x = (uint16_t)i;
        float wide = f16_to_float(x);

        if (isnan(f16_value(x))) {
            assert_true(isnan(wide));
            assert_true(isnan(f16_to_float(f16_from_float(wide))));
            continue;
        }
        assert_true((double)wide == f16_value(x));
        assert_int_equal(signbit(wide) != 0, x >> 15);
        assert_int_equal(f16_from_float(wide), x);
    }
}

/* The nearest f16, ties to even, found by comparing with both neighbours. */
static void check_rounding(float x)
{
    uint16_t got = f16_from_float(x);
    uint16_t magnitude = got & 0x7fff;
    double value = fabs((double)x), here = f16_value(magnitude);

    assert_int_equal(signbit(x) != 0, got >> 15);
    if (magnitude == 0x7c00) {
        assert_true(value >= 65520);
        return;
    }
    assert_true(magnitude < 0x7c00);
    /* Above the largest lies 65536, which is not there: it is infinite. */
    double above = magnitude == 0x7bff ? 65536 : f16_value((uint16_t)(magnitude + 1));
    double below = magnitude ? f16_value((uint16_t)(magnitude - 1)) : -1;
    double distance = fabs(value - here);
    assert_true(distance < above - value || (distance == above - value && !(magnitude & 1)));
    assert_true(distance < value - below || (distance == value - below && !(magnitude & 1)));
}

static void floats_round_to_the_nearest_f16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7c00; i++) {
        float here = f16_to_float((uint16_t)i), next = f16_to_float((uint16_t)(i + 1));
        float middle = i == 0x7bff ? 65520.0f : (here + next) / 2;

        check_rounding(middle);
        check_rounding(nextafterf(middle, 0));
        check_rounding(nextafterf(middle, INFINITY));
        check_rounding(-middle);
    }
    for (uint64_t i = 0; i < 200000; i++) {
        uint32_t bits = rng_at(1, RNG_TEST, 0, i).word[0];
        float x;

        memcpy(&x, &bits, sizeof x);
        if (!isnan(x))
            check_rounding(x);
    }
    assert_int_equal(f16_from_float(-INFINITY), 0xfc00);
    assert_int_equal(f16_from_float(1e-30f), 0);
    assert_int_equal(f16_from_float(-1e-30f), 0x8000);
}

static void every_pair_of_types(void **state)
{
    static const enum dtype kinds[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
    /* Odd addresses on purpose. */
    unsigned char from[33], to[33], wide[33];
    static const float values[8] = { 1, -2.5f, 0, 1.0f / 3, 65504, 1e-3f, -0.0f, 7 };

    (void)state;
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
            assert_true(convert_supported(kinds[b], kinds[a]));
            convert(kinds[a], from + 1, DTYPE_F32, values, 8);
            convert(kinds[b], to + 1, kinds[a], from + 1, 8);
            /* In two steps by way of float the same must come out. */
            convert(DTYPE_F32, wide + 1, kinds[a], from + 1, 8);
            unsigned char again[33];
            convert(kinds[b], again + 1, DTYPE_F32, wide + 1, 8);
            assert_memory_equal(to + 1, again + 1, (size_t)8 * dtype_bytes(kinds[b]));
            if (a == b)
                assert_memory_equal(to + 1, from + 1, (size_t)8 * dtype_bytes(kinds[b]));
        }
    assert_true(convert_supported(DTYPE_I64, DTYPE_I64));
    assert_false(convert_supported(DTYPE_I64, DTYPE_F32));
    assert_false(convert_supported(DTYPE_F32, DTYPE_F64));
}

/* Long arrays go through vector code, whose every lane must do what one number gets. */
static void long_arrays_are_as_single_numbers(void **state)
{
    static const enum dtype kinds[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
    enum { MANY = 5000 };
    static float from[MANY];
    static unsigned char narrow[4 * MANY + 1], many[4 * MANY + 1];

    (void)state;
    for (uint64_t i = 0; i < MANY; i++) {
        uint32_t bits = rng_at(2, RNG_TEST, 0, i).word[0];

        /* Half of them where fp16 has numbers. */
        bits = i % 2 ? (bits & 0x8fffffffu) + 0x30000000u : bits;
        memcpy(&from[i], &bits, sizeof bits);
    }
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
            size_t in = dtype_bytes(kinds[a]), out = dtype_bytes(kinds[b]);

            convert(kinds[a], narrow + 1, DTYPE_F32, from, MANY);
            convert(kinds[b], many + 1, kinds[a], narrow + 1, MANY);
            for (size_t i = 0; i < MANY; i++) {
                unsigned char one[4];

                convert(kinds[b], one, kinds[a], narrow + 1 + i * in, 1);
                assert_memory_equal(one, many + 1 + i * out, out);
            }
        }
}

static void bad_numbers_are_found(void **state)
{
    static const enum dtype kinds[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    enum { MANY = 9001 };
    static float from[MANY];
    static unsigned char data[4 * MANY];

    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < 3; i++)
            for (int at = 0; at < MANY; at += 1125) {
                for (int k = 0; k < MANY; k++)
                    from[k] = k % 2 ? 65504.0f : -1e-7f;
                convert(kinds[kind], data, DTYPE_F32, from, MANY);
                assert_int_equal(convert_first_bad(kinds[kind], data, MANY), -1);
                from[at] = bad[i];
                from[MANY - 1] = bad[i];
                convert(kinds[kind], data, DTYPE_F32, from, MANY);
                assert_int_equal(convert_first_bad(kinds[kind], data, MANY), at);
            }
    assert_int_equal(convert_first_bad(DTYPE_F32, data, 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_f16_goes_there_and_back),
        cmocka_unit_test(floats_round_to_the_nearest_f16),
        cmocka_unit_test(every_pair_of_types),
        cmocka_unit_test(long_arrays_are_as_single_numbers),
        cmocka_unit_test(bad_numbers_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
