/*
 * fp8_test.c - all 256 of both kinds, against their definition
 */
#include "ckpt_fixture.h"

#include <math.h>

#include "ckpt/convert_dtype.h"
#include "ckpt/fp8.h"

/* Sign, exponent and fraction by the OCP's definition; E4M3 has no infinities. */
static double value_of(enum safetensors_type type, int x)
{
    int bits = type == SAFETENSORS_F8_E4M3 ? 3 : 2, bias = type == SAFETENSORS_F8_E4M3 ? 7 : 15;
    int exponent = (x & 127) >> bits, fraction = x & ((1 << bits) - 1);
    double magnitude = exponent ? ldexp(1 + (double)fraction / (1 << bits), exponent - bias)
                                : ldexp((double)fraction / (1 << bits), 1 - bias);

    if (type == SAFETENSORS_F8_E4M3 && (x & 127) == 127)
        magnitude = NAN;
    if (type == SAFETENSORS_F8_E5M2 && exponent == 31)
        magnitude = fraction ? NAN : INFINITY;
    return x & 128 ? -magnitude : magnitude;
}

static void every_one_is_what_it_stands_for(void **state)
{
    static const enum safetensors_type types[] = { SAFETENSORS_F8_E4M3, SAFETENSORS_F8_E5M2 };
    float values[256];

    (void)state;
    for (int t = 0; t < 2; t++) {
        assert_true(fp8_is(types[t]));
        fp8_table(types[t], values);
        for (int i = 0; i < 256; i++) {
            double wanted = value_of(types[t], i);

            assert_int_equal(isnan(values[i]), isnan(wanted));
            if (isnan(wanted))
                continue;
            assert_true((double)values[i] == wanted);
            assert_int_equal(signbit(values[i]) != 0, i >> 7);
            /* What the header promises: nothing is lost in any of ours. */
            assert_true((double)fp16_to_float(fp16_from_float(values[i])) == wanted);
            assert_true((double)bf16_to_float(bf16_from_float(values[i])) == wanted);
        }
    }
    assert_false(fp8_is(SAFETENSORS_F8_E8M0));
    assert_false(fp8_is(SAFETENSORS_U8));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_one_is_what_it_stands_for) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
