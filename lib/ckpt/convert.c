/*
 * convert.c - arrays from one floating type to another
 *
 * All go through float, which holds each of them exactly, so that every conversion rounds once.
 */
#include "ckpt/convert.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* All three cases are computed and one is chosen, so that loops over it become vector code. */
static inline uint16_t f16_of(float x)
{
    uint32_t bits, small;

    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* Below 2^-14 the spacing is 2^-24: that of floats in [0.5, 1), so the adder rounds for us. */
    float shifted = fabsf(x) + 0.5f;
    memcpy(&small, &shifted, sizeof small);
    uint32_t half = (magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
    half = magnitude < 0x38800000u ? small - 0x3f000000u : half;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half; /* 65520, halfway to 2^16, and all above */
    half = magnitude > 0x7f800000u ? (0x7e00u | (magnitude >> 13 & 0x3ffu)) : half;
    return (uint16_t)(sign | half);
}

static inline float float_of_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, magnitude = x & 0x7fffu, bits, small;
    float subnormal = (float)(int32_t)magnitude * 0x1p-24f, result;

    memcpy(&small, &subnormal, sizeof small);
    bits = (magnitude << 13) + 0x38000000u;
    bits = magnitude < 0x400u ? small : bits;
    bits = magnitude >= 0x7c00u ? (0x7f800000u | magnitude << 13) : bits;
    bits |= sign;
    memcpy(&result, &bits, sizeof result);
    return result;
}

uint16_t f16_from_float(float x)
{
    return f16_of(x);
}

float f16_to_float(uint16_t x)
{
    return float_of_f16(x);
}

static int is_convertible(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

int convert_supported(enum dtype to, enum dtype from)
{
    return to == from || (is_convertible(to) && is_convertible(from));
}

/* A loop a pair: what is unlike between them is known to the compiler. memcpy as nothing is aligned.
 */
#define LOOP(name, in_type, out_type, expression) \
    static void name(unsigned char *restrict out, const unsigned char *restrict in, int64_t n) \
    { \
        for (int64_t i = 0; i < n; i++) { \
            in_type x; \
            memcpy(&x, in + (size_t)i * sizeof x, sizeof x); \
            out_type y = (expression); \
            memcpy(out + (size_t)i * sizeof y, &y, sizeof y); \
        } \
    }

LOOP(f32_to_bf16, float, uint16_t, bf16_from_float(x))
LOOP(f32_to_f16, float, uint16_t, f16_of(x))
LOOP(bf16_to_f32, uint16_t, float, bf16_to_float(x))
LOOP(bf16_to_f16, uint16_t, uint16_t, f16_of(bf16_to_float(x)))
LOOP(f16_to_f32, uint16_t, float, float_of_f16(x))
LOOP(f16_to_bf16, uint16_t, uint16_t, bf16_from_float(float_of_f16(x)))

typedef void (*loop_fn)(unsigned char *restrict out, const unsigned char *restrict in, int64_t n);

static const loop_fn loops[3][3] = {
    [DTYPE_F32] = { [DTYPE_BF16] = bf16_to_f32, [DTYPE_F16] = f16_to_f32 },
    [DTYPE_BF16] = { [DTYPE_F32] = f32_to_bf16, [DTYPE_F16] = f16_to_bf16 },
    [DTYPE_F16] = { [DTYPE_F32] = f32_to_f16, [DTYPE_BF16] = bf16_to_f16 },
};

void convert(enum dtype to, void *dst, enum dtype from, const void *src, int64_t n)
{
    CHECK(convert_supported(to, from));
    CHECK(n >= 0);
    if (to == from)
        memcpy(dst, src, (size_t)n * dtype_bytes(to));
    else
        loops[to][from](dst, src, n);
}

/* All of the exponent's bits are set. Blocks are judged whole, so that nothing branches inside. */
static int is_bad16(const unsigned char *in, int64_t n, uint16_t exponent)
{
    int bad = 0;

    for (int64_t i = 0; i < n; i++) {
        uint16_t x;
        memcpy(&x, in + (size_t)i * sizeof x, sizeof x);
        bad |= (x & exponent) == exponent;
    }
    return bad;
}

static int is_bad32(const unsigned char *in, int64_t n)
{
    int bad = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, in + (size_t)i * sizeof x, sizeof x);
        bad |= (x & 0x7f800000u) == 0x7f800000u;
    }
    return bad;
}

static int is_bad(enum dtype dtype, const unsigned char *in, int64_t n)
{
    if (dtype == DTYPE_F32)
        return is_bad32(in, n);
    return is_bad16(in, n, dtype == DTYPE_BF16 ? 0x7f80 : 0x7c00);
}

int64_t convert_first_bad(enum dtype dtype, const void *data, int64_t n)
{
    const unsigned char *in = data;
    size_t element = dtype_bytes(dtype);
    const int64_t block = 4096;

    CHECK(is_convertible(dtype));
    for (int64_t i = 0; i < n; i += block) {
        int64_t end = i + block < n ? i + block : n;

        if (!is_bad(dtype, in + (size_t)i * element, end - i))
            continue;
        while (!is_bad(dtype, in + (size_t)i * element, 1))
            i++;
        return i;
    }
    return -1;
}
