/*
 * dtype_test.c - fp16 against its definition, and against the processor's
 */
#include "base/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"

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
        float wide = fp16_to_float(x);

        if (isnan(f16_value(x))) {
            assert_true(isnan(wide));
            assert_true(isnan(fp16_to_float(fp16_from_float(wide))));
            continue;
        }
        assert_true((double)wide == f16_value(x));
        assert_int_equal(signbit(wide) != 0, x >> 15);
        assert_int_equal(fp16_from_float(wide), x);
    }
}

/* The nearest f16, ties to even, found by comparing with both neighbours. */
static void check_rounding(float x)
{
    uint16_t got = fp16_from_float(x);
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
        float here = fp16_to_float((uint16_t)i), next = fp16_to_float((uint16_t)(i + 1));
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
    assert_int_equal(fp16_from_float(-INFINITY), 0xfc00);
    assert_int_equal(fp16_from_float(1e-30f), 0);
    assert_int_equal(fp16_from_float(-1e-30f), 0x8000);
}

/* ---- the processor's ---- */

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("f16c"))) static uint16_t theirs_from(float x)
{
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}

__attribute__((target("f16c"))) static float theirs_to(uint16_t x)
{
    return _cvtsh_ss(x);
}

static void same_from_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    if (fp16_from_float_portable(x) != theirs_from(x))
        fail_msg("%08x: %04x, the processor's %04x", bits, fp16_from_float_portable(x),
                 theirs_from(x));
}

/* All of fp16, NaN with their payloads; floats of all exponents, and all around where it
 * changes. */
static void the_processor_has_the_same_bits(void **state)
{
    static const uint32_t edges[] = { 0x33000000, 0x38800000, 0x477ff000, 0x47800000, 0x7f800000 };

    (void)state;
    if (!__builtin_cpu_supports("avx2"))
        skip();
    for (uint32_t i = 0; i < 65536; i++) {
        float ours = fp16_to_float_portable((uint16_t)i), theirs = theirs_to((uint16_t)i);

        assert_memory_equal(&ours, &theirs, sizeof ours);
        assert_int_equal(fp16_from_float_portable(ours), theirs_from(ours));
    }
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 61)
        same_from_float((uint32_t)bits);
    for (int e = 0; e < (int)(sizeof edges / sizeof *edges); e++)
        for (uint32_t i = 0; i < 20000; i++) {
            same_from_float(edges[e] - 10000 + i);
            same_from_float((edges[e] - 10000 + i) | 0x80000000u);
        }
}
#else
static void the_processor_has_the_same_bits(void **state)
{
    (void)state;
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_f16_goes_there_and_back),
        cmocka_unit_test(floats_round_to_the_nearest_f16),
        cmocka_unit_test(the_processor_has_the_same_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
