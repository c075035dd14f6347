/*
 * fp8.c - numbers of eight bits, as files hold them
 */
#include "ckpt/fp8.h"

#include <math.h>

#include "ckpt/convert_dtype.h"

bool fp8_is(enum safetensors_type type)
{
    return type == SAFETENSORS_F8_E4M3 || type == SAFETENSORS_F8_E5M2;
}

static float e4m3_to_float(uint8_t x)
{
    int exponent = x >> 3 & 15, fraction = x & 7;
    float magnitude = (x & 0x7f) == 0x7f ? NAN
                      : exponent         ? ldexpf((float)(8 + fraction), exponent - 10)
                                         : ldexpf((float)fraction, -9);

    return x & 0x80 ? -magnitude : magnitude;
}

void fp8_table(enum safetensors_type type, float values[256])
{
    CHECK(fp8_is(type));
    for (int i = 0; i < 256; i++)
        values[i] = type == SAFETENSORS_F8_E4M3 ? e4m3_to_float((uint8_t)i)
                                                : fp16_to_float((uint16_t)(i << 8));
}
