/*
 * vec_math.h - exp, log, tanh and their kin as straight-line arithmetic that compilers vectorise
 *
 * Inline functions of one float without branches, calls or tables, so that a plain loop over them
 * becomes vector code under CPU_VARIANTS (cpu_impl.h). Fused operations are written out, so every
 * variant gives equal bits. Errors are against the exact value, over the whole range
 * (test/kernels/vec_math_test.c).
 */
#ifndef KERNELS_CPU_VEC_MATH_H
#define KERNELS_CPU_VEC_MATH_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#define VEC_INLINE static inline __attribute__((always_inline))

VEC_INLINE float vec_from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

VEC_INLINE uint32_t vec_to_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* As dtype.h's, without a branch. */
VEC_INLINE float vec_from_bf16(uint16_t x)
{
    return vec_from_bits((uint32_t)x << 16);
}

VEC_INLINE uint16_t vec_to_bf16(float x)
{
    uint32_t bits = vec_to_bits(x);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    uint32_t nan = bits >> 16 | 0x40;

    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* dtype.h's have none. */
VEC_INLINE float vec_from_fp16(uint16_t x)
{
    return fp16_to_float_portable(x);
}

VEC_INLINE uint16_t vec_to_fp16(float x)
{
    return fp16_from_float_portable(x);
}

/*
 * e^x within 1.1 ulp; 0 below -104, infinity above 88.73, NaN for NaN, denormal results kept. Cody
 * and Waite's reduction x = n ln 2 + r with |r| <= ln 2 / 2, then a minimax polynomial of degree 6
 * in r; 2^n in two factors, as neither 2^128 nor 2^-149 is a normal number.
 */
VEC_INLINE float vec_exp(float x)
{
    const float round_magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float t, n, r, p;
    int32_t whole, half;

    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    t = __builtin_fmaf(x, 1.44269504088896341f, round_magic);
    n = t - round_magic;
    whole = (int32_t)(vec_to_bits(t) - 0x4b400000u);
    r = __builtin_fmaf(n, -0.693145751953125f, x);
    r = __builtin_fmaf(n, -1.42860682030941723e-6f, r);
    p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.0f;
    half = whole >> 1;
    p *= vec_from_bits((uint32_t)(half + 127) << 23);
    return p * vec_from_bits((uint32_t)(whole - half + 127) << 23);
}

/* 1 / (1 + e^-x) within 3 ulp where it is normal. */
VEC_INLINE float vec_sigmoid(float x)
{
    return 1.0f / (1.0f + vec_exp(-x));
}

/*
 * tanh x within 3 ulp: Cephes' odd polynomial near zero, where 1 - 2 / (e^2x + 1) would cancel,
 * that formula elsewhere.
 */
VEC_INLINE float vec_tanh(float x)
{
    float magnitude = vec_from_bits(vec_to_bits(x) & 0x7fffffffu);
    uint32_t sign = vec_to_bits(x) & 0x80000000u;
    float z = x * x;
    float p = -5.70498872745e-3f;
    float far = 1.0f - 2.0f / (vec_exp(2.0f * magnitude) + 1.0f);

    p = __builtin_fmaf(p, z, 2.06390887954e-2f);
    p = __builtin_fmaf(p, z, -5.37397155531e-2f);
    p = __builtin_fmaf(p, z, 1.33314422036e-1f);
    p = __builtin_fmaf(p, z, -3.33332819422e-1f);
    p = __builtin_fmaf(p * z, x, x);
    far = vec_from_bits(vec_to_bits(far) | sign);
    return magnitude < 0.625f ? p : far;
}

#endif
