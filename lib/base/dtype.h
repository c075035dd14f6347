/*
 * dtype.h - the element types that values, files and kernels share
 */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    N_DTYPES
};

static inline size_t dtype_bytes(enum dtype dtype)
{
    static const size_t bytes[N_DTYPES] = { 4, 2, 2, 8, 4, 8, 1 };

    return bytes[dtype];
}

/* "fp32", "bf16", "fp16", "fp64", "i32", "i64", "u8": the names of jobs and printed programs. */
static inline const char *dtype_name(enum dtype dtype)
{
    static const char *const names[N_DTYPES] = {
        "fp32", "bf16", "fp16", "fp64", "i32", "i64", "u8"
    };

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

#endif
