/*
 * convert_dtype.c - arrays from one floating type to another
 *
 * All go through float, which holds each of them exactly, so that every conversion rounds once.
 */
#include "ckpt/convert_dtype.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"

static bool is_convertible(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

int convert_supported(enum dtype to, enum dtype from)
{
    return to == from || (is_convertible(to) && is_convertible(from));
}

/*
 * A loop a pair: what is unlike between them is known to the compiler. memcpy as nothing is
 * aligned. Of fp16 the portable form: it becomes vector code.
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
LOOP(f32_to_f16, float, uint16_t, fp16_from_float_portable(x))
LOOP(bf16_to_f32, uint16_t, float, bf16_to_float(x))
LOOP(bf16_to_f16, uint16_t, uint16_t, fp16_from_float_portable(bf16_to_float(x)))
LOOP(f16_to_f32, uint16_t, float, fp16_to_float_portable(x))
LOOP(f16_to_bf16, uint16_t, uint16_t, bf16_from_float(fp16_to_float_portable(x)))

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
static bool is_bad16(const unsigned char *in, int64_t n, uint16_t exponent)
{
    int bad = 0;

    for (int64_t i = 0; i < n; i++) {
        uint16_t x;
        memcpy(&x, in + (size_t)i * sizeof x, sizeof x);
        bad |= (x & exponent) == exponent;
    }
    return bad;
}

static bool is_bad32(const unsigned char *in, int64_t n)
{
    int bad = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, in + (size_t)i * sizeof x, sizeof x);
        bad |= (x & 0x7f800000u) == 0x7f800000u;
    }
    return bad;
}

static bool is_bad(enum dtype dtype, const unsigned char *in, int64_t n)
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
