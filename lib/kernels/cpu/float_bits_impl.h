/*
 * float_bits_impl.h - floats as the bits that they are, and back
 */
#ifndef KERNELS_CPU_FLOAT_BITS_IMPL_H
#define KERNELS_CPU_FLOAT_BITS_IMPL_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/cpu_impl.h"

CPU_INLINE uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CPU_INLINE float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
