/*
 * e5m2_impl.h - numbers of 8 bits: five of exponent, two of mantissa, the upper half of fp16
 * (Micikevicius et al. 2022)
 */
#ifndef KERNELS_CPU_E5M2_IMPL_H
#define KERNELS_CPU_E5M2_IMPL_H

#include <math.h>
#include <stdint.h>

#include "kernels/cpu/float_bits_impl.h"

#define ROUND_TO_65536TH 128.0f /* what is added to it is rounded to a multiple of 2^-16 */

/* To nearest, halves to even; at most 57344. Below 2^-14 numbers are 2^-16 apart, above they have
 * two bits behind the first. */
CPU_INLINE uint8_t e5m2_code(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    uint32_t normal = ((size + 0xfffffu + (size >> 21 & 1)) >> 21) - (112u << 2);
    uint32_t small = bits_of(float_of(size) + ROUND_TO_65536TH) & 0xffu;
    uint32_t code = size < 0x38800000u ? small : normal;

    return (uint8_t)(sign | (code < 0x7bu ? code : 0x7bu));
}

CPU_INLINE float e5m2_value(uint8_t code)
{
    uint32_t size = code & 0x7fu;
    float normal = float_of((size << 21) + (112u << 23));
    float small = (float)(int)size * 0x1p-16f;
    float x = size < 4 ? small : normal;

    return float_of(bits_of(x) | (uint32_t)(code & 0x80u) << 24);
}

/* Of a tensor whose largest |x| has these bits; NaN where that is not finite. */
CPU_INLINE float e5m2_scale(uint32_t most)
{
    return most < 0x7f800000u ? float_of(most) / OPS_E5M2_MAX : NAN;
}

#endif
