/*
 * vec_math_test.c - the errors that vec_math.h promises, over the whole range
 */
#include "kernels/cpu/vec_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Every STEP-th float: a prime, so that all exponents and many mantissas come. */
#define STEP 9973u

/* Distance in units of the last place of the exact value, of the smallest denormal below. */
static double ulps(float got, double exact)
{
    int exponent;

    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
}

static double worst_of(float (*got)(float), double (*exact)(double), float low, float high)
{
    double worst = 0;

    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += STEP) {
        float x = vec_from_bits((uint32_t)bits);

        if (x >= low && x <= high)
            worst = fmax(worst, ulps(got(x), exact((double)x)));
    }
    return worst;
}

static float got_exp(float x)
{
    return vec_exp(x);
}

static float got_sigmoid(float x)
{
    return vec_sigmoid(x);
}

static float got_tanh(float x)
{
    return vec_tanh(x);
}

static double exact_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static void assert_below(double worst, double limit)
{
    if (!(worst <= limit))
        fail_msg("errs by %.3f ulp, promised %.3f", worst, limit);
}

static void test_exp(void **state)
{
    (void)state;
    assert_below(worst_of(got_exp, exp, -104.0f, 88.722f), 1.1);
    assert_true(vec_exp(0.0f) == 1.0f);
    assert_true(vec_exp(-INFINITY) == 0.0f);
    assert_true(vec_exp(-1e30f) == 0.0f);
    assert_true(vec_exp(INFINITY) == INFINITY);
    assert_true(vec_exp(88.73f) == INFINITY);
    assert_true(isnan(vec_exp(NAN)));
    assert_true(isnan(vec_exp(-NAN)));
}

static void test_sigmoid(void **state)
{
    (void)state;
    assert_below(worst_of(got_sigmoid, exact_sigmoid, -87.0f, INFINITY), 3.0);
    assert_true(vec_sigmoid(-INFINITY) == 0.0f);
    assert_true(isnan(vec_sigmoid(NAN)));
}

static void test_tanh(void **state)
{
    (void)state;
    assert_below(worst_of(got_tanh, tanh, -INFINITY, INFINITY), 3.0);
    assert_true(vec_tanh(-INFINITY) == -1.0f);
    assert_true(isnan(vec_tanh(NAN)));
}

static void test_16_bits_are_as_dtype_h_says(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += STEP)
        assert_int_equal(vec_to_bf16(vec_from_bits((uint32_t)bits)),
                         bf16_from_float(vec_from_bits((uint32_t)bits)));
    assert_int_equal(vec_to_bf16(vec_from_bits(0x7f800001u)), 0x7fc0);
    assert_int_equal(vec_to_bf16(vec_from_bits(0x3f808000u)), 0x3f80);
    assert_int_equal(vec_to_bf16(vec_from_bits(0x3f818000u)), 0x3f82);
    for (uint32_t bits = 0; bits < 0x10000u; bits++)
        assert_int_equal(vec_to_bits(vec_from_bf16((uint16_t)bits)), bits << 16);
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += STEP)
        assert_int_equal(vec_to_fp16(vec_from_bits((uint32_t)bits)),
                         fp16_from_float(vec_from_bits((uint32_t)bits)));
    for (uint32_t bits = 0; bits < 0x10000u; bits++)
        assert_int_equal(vec_to_bits(vec_from_fp16((uint16_t)bits)),
                         vec_to_bits(fp16_to_float((uint16_t)bits)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_16_bits_are_as_dtype_h_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
