/*
 * convert.c - arrays from one floating type to another
 *
 * All go through float, which holds each of them exactly, so that every conversion rounds once.
 */
#include "ckpt/convert.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

uint16_t f16_from_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520, halfway to 2^16, and all above */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        /* Below 2^-14 the spacing is 2^-24: that of floats in [0.5, 1), so the adder rounds for us.
         */
        float shifted = fabsf(x) + 0.5f;

        memcpy(&bits, &shifted, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    return (uint16_t)(sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13));
}

float f16_to_float(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, magnitude = x & 0x7fffu, bits;
    float result;

    if (magnitude >= 0x7c00u) {
        bits = 0x7f800000u | magnitude << 13;
    } else if (magnitude >= 0x400u) {
        bits = (magnitude << 13) + 0x38000000u;
    } else {
        result = (float)magnitude * 0x1p-24f;
        memcpy(&bits, &result, sizeof bits);
    }
    bits |= sign;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static int is_convertible(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

int convert_supported(enum dtype to, enum dtype from)
{
    return to == from || (is_convertible(to) && is_convertible(from));
}

static float load(enum dtype dtype, const unsigned char *at)
{
    uint16_t half;
    float value;

    if (dtype == DTYPE_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return dtype == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

static void store_float(enum dtype dtype, unsigned char *at, float value)
{
    if (dtype == DTYPE_F32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    uint16_t half = dtype == DTYPE_BF16 ? bf16_from_float(value) : f16_from_float(value);
    memcpy(at, &half, sizeof half);
}

void convert(enum dtype to, void *dst, enum dtype from, const void *src, int64_t n)
{
    size_t to_bytes = dtype_bytes(to), from_bytes = dtype_bytes(from);
    const unsigned char *in = src;
    unsigned char *out = dst;

    CHECK(convert_supported(to, from));
    CHECK(n >= 0);
    if (to == from) {
        memcpy(out, in, (size_t)n * to_bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++, in += from_bytes, out += to_bytes)
        store_float(to, out, load(from, in));
}
