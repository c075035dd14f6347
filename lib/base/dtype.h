/*
 * dtype.h - the element types that values, files and kernels share
 */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_I16,
    N_DTYPES
};

static inline size_t dtype_bytes(enum dtype dtype)
{
    static const size_t bytes[N_DTYPES] = { 4, 2, 2, 8, 4, 8, 1, 2 };

    return bytes[dtype];
}

/* "fp32", "bf16", "fp16", "fp64", "i32", "i64", "u8", "i16": the names of jobs and printed
 * programs. */
static inline const char *dtype_name(enum dtype dtype)
{
    static const char *const names[N_DTYPES] = { "fp32", "bf16", "fp16", "fp64",
                                                 "i32",  "i64",  "u8",   "i16" };

    return names[dtype];
}

/* bf16 is the upper half of an fp32; rounding is to nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float bf16_to_float(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float result;

    memcpy(&result, &bits, sizeof result);
    return result;
}

/*
 * fp16 is IEEE 754's binary16: to nearest, ties to even; 65520 and all above become infinity,
 * subnormals are kept, a NaN stays one, made quiet, with the upper bits of its payload: bit for bit
 * what VCVTPS2PH and VCVTPH2PS do, which are used where the compiler may. All cases are computed
 * and one is chosen, so that loops over it become vector code.
 */
static inline uint16_t fp16_from_float_portable(float x)
{
    uint32_t bits, small;

    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    float shifted;

    /* Below 2^-14 the spacing is 2^-24: that of floats in [0.5, 1), so the adder rounds for us. */
    memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    memcpy(&small, &shifted, sizeof small);
    uint32_t half = (magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
    half = magnitude < 0x38800000u ? small - 0x3f000000u : half;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half; /* 65520, halfway to 2^16, and all above */
    half = magnitude > 0x7f800000u ? (0x7e00u | (magnitude >> 13 & 0x3ffu)) : half;
    return (uint16_t)(sign | half);
}

static inline float fp16_to_float_portable(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, magnitude = x & 0x7fffu, bits, small;
    float subnormal = (float)(int32_t)magnitude * 0x1p-24f, result;

    memcpy(&small, &subnormal, sizeof small);
    bits = (magnitude << 13) + 0x38000000u;
    bits = magnitude < 0x400u ? small : bits;
    bits = magnitude >= 0x7c00u ? (0x7f800000u | magnitude << 13) : bits;
    bits = magnitude > 0x7c00u ? (bits | 0x400000u) : bits;
    bits |= sign;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline uint16_t fp16_from_float(float x)
{
#ifdef __F16C__
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    return fp16_from_float_portable(x);
#endif
}

static inline float fp16_to_float(uint16_t x)
{
#ifdef __F16C__
    return _cvtsh_ss(x);
#else
    return fp16_to_float_portable(x);
#endif
}

#endif
