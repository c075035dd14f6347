/*
 * halves.h - an fp32 as two words of 16 bits: a bf16 that is its rounding, and what that leaves out
 *
 * The upper word is (bits + 0x8000) >> 16, that is to nearest, halves away from zero; what is
 * beyond the largest bf16 by half a step becomes infinite there. The lower word is the fp32's 16
 * low bits. bits = (upper << 16) + (signed) lower, modulo 2^32: all numbers, infinities and zeros
 * come back as they were, and a finite number whose upper word is infinite comes back finite. A NaN
 * stays one in the upper word, made quiet, and has a lower word of 0: of its payload the upper bits
 * come back.
 */
#ifndef BASE_HALVES_H
#define BASE_HALVES_H

#include "base/dtype.h"

static inline uint16_t halves_upper(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return (uint16_t)(is_nan ? bits >> 16 | 0x40 : (bits + 0x8000u) >> 16);
}

static inline uint16_t halves_lower(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0 : bits);
}

static inline float halves_join(uint16_t upper, uint16_t lower)
{
    /* The lower word counts as a negative number where the upper one was rounded up. */
    uint32_t bits = ((uint32_t)upper << 16) + lower - ((uint32_t)(lower & 0x8000u) << 1);
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
