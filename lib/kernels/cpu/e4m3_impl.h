/*
 * e4m3_impl.h - numbers of 8 bits: four of exponent, three of mantissa, no infinity (ops/codec.h)
 */
#ifndef KERNELS_CPU_E4M3_IMPL_H
#define KERNELS_CPU_E4M3_IMPL_H

#include <math.h>
#include <stdint.h>

#include "kernels/cpu/float_bits_impl.h"

#define ROUND_TO_512TH 16384.0f /* 2^14: what is added to it is rounded to a multiple of 2^-9 */

/* To nearest, halves to even; at most 448. Below 2^-6 numbers are 2^-9 apart, above they have three
 * bits behind the first. */
CPU_INLINE uint8_t e4m3_code(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    uint32_t normal = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120u << 3);
    uint32_t small = bits_of(float_of(size) + ROUND_TO_512TH) & 0xffu;
    uint32_t code = size < 0x3c800000u ? small : normal;

    return (uint8_t)(sign | (code < 0x7eu ? code : 0x7eu));
}

CPU_INLINE float e4m3_value(uint8_t code)
{
    uint32_t size = code & 0x7fu;
    float normal = float_of((size << 20) + (120u << 23));
    float small = (float)(int)size * 0x1p-9f;
    float x = size < 8 ? small : normal;

    return float_of(bits_of(x) | (uint32_t)(code & 0x80u) << 24);
}

/* Of a block whose largest |x| has these bits; NaN where that is not finite. */
CPU_INLINE float e4m3_scale(uint32_t most)
{
    return most < 0x7f800000u ? float_of(most) / OPS_E4M3_MAX : NAN;
}

#endif
