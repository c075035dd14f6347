/*
 * fp8_numbers_impl.h - numbers of 8 bits (Micikevicius et al. 2022): e4m3, four bits of exponent
 * and three of mantissa, without infinity (ops/codec.h); e5m2, the upper half of fp16
 *
 * A format is its bits of mantissa m and its exponent's bias b: numbers below 2^(1 - b) are
 * 2^(1 - b - m) apart, above they have m bits behind the first.
 */
#ifndef KERNELS_CPU_FP8_NUMBERS_IMPL_H
#define KERNELS_CPU_FP8_NUMBERS_IMPL_H

#include <math.h>
#include <stdint.h>

#include "kernels/cpu/cpu_impl.h"
#include "kernels/cpu/vec_math.h"

/* 2^n, which is a normal number. */
CPU_INLINE float power_of_2(int n)
{
    return vec_from_bits((uint32_t)(127 + n) << 23);
}

/* To nearest, halves to even; at most the number of code `most`. What is added to a small number
 * rounds it to a multiple of what these are apart. */
CPU_INLINE uint8_t fp8_code(float x, int m, int b, uint32_t most)
{
    const int shift = 23 - m;
    const uint32_t first = (uint32_t)(128 - b) << 23, half = (1u << (shift - 1)) - 1;
    uint32_t bits = vec_to_bits(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    uint32_t normal = ((size + half + (size >> shift & 1)) >> shift) - ((uint32_t)(127 - b) << m);
    uint32_t small = vec_to_bits(vec_from_bits(size) + power_of_2(24 - b - m)) & 0xffu;
    uint32_t code = size < first ? small : normal;

    return (uint8_t)(sign | (code < most ? code : most));
}

CPU_INLINE float fp8_value(uint8_t code, int m, int b)
{
    uint32_t size = code & 0x7fu;
    float normal = vec_from_bits((size << (23 - m)) + ((uint32_t)(127 - b) << 23));
    float small = (float)(int)size * power_of_2(1 - b - m);
    float x = size < 1u << m ? small : normal;

    return vec_from_bits(vec_to_bits(x) | (uint32_t)(code & 0x80u) << 24);
}

/* Of a block whose largest |x| has these bits; NaN where that is not finite. */
CPU_INLINE float fp8_scale(uint32_t most, float largest)
{
    return most < 0x7f800000u ? vec_from_bits(most) / largest : NAN;
}

/* At most 448. */
CPU_INLINE uint8_t e4m3_code(float x)
{
    return fp8_code(x, 3, 7, 0x7e);
}

CPU_INLINE float e4m3_value(uint8_t code)
{
    return fp8_value(code, 3, 7);
}

CPU_INLINE float e4m3_scale(uint32_t most)
{
    return fp8_scale(most, OPS_E4M3_MAX);
}

/* At most 57344. */
CPU_INLINE uint8_t e5m2_code(float x)
{
    return fp8_code(x, 2, 15, 0x7b);
}

CPU_INLINE float e5m2_value(uint8_t code)
{
    return fp8_value(code, 2, 15);
}

CPU_INLINE float e5m2_scale(uint32_t most)
{
    return fp8_scale(most, OPS_E5M2_MAX);
}

#endif
