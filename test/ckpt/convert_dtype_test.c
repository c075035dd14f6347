/*
 * convert_dtype_test.c - every pair of types
 */
#include "ckpt_fixture.h"

#include <math.h>

#include "base/rng.h"
#include "ckpt/convert_dtype.h"

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
        cmocka_unit_test(every_pair_of_types),
        cmocka_unit_test(long_arrays_are_as_single_numbers),
        cmocka_unit_test(bad_numbers_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
