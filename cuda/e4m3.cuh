/*
 * e4m3.cuh - numbers of 8 bits, with the bits of lib/kernels/cpu/fp8_numbers_impl.h
 */
#ifndef CUDA_E4M3_CUH
#define CUDA_E4M3_CUH

#include "cuda/cuda.cuh"

#define ROUND_TO_512TH 16384.0f
#define ROUND_TO_65536TH 128.0f

static __device__ __forceinline__ uint8_t e4m3_code(float x)
{
    uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    uint32_t normal = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120u << 3);
    uint32_t small = __float_as_uint(__uint_as_float(size) + ROUND_TO_512TH) & 0xffu;
    uint32_t code = size < 0x3c800000u ? small : normal;

    return (uint8_t)(sign | (code < 0x7eu ? code : 0x7eu));
}

static __device__ __forceinline__ float e4m3_value(uint8_t code)
{
    uint32_t size = code & 0x7fu;
    float x =
        size < 8 ? (float)(int)size * (1.0f / 512) : __uint_as_float((size << 20) + (120u << 23));

    return __uint_as_float(__float_as_uint(x) | (uint32_t)(code & 0x80u) << 24);
}

/* Of a block whose largest |x| has these bits; NaN where that is not finite. */
static __device__ __forceinline__ float e4m3_scale(uint32_t most)
{
    return most < 0x7f800000u ? __uint_as_float(most) / OPS_E4M3_MAX : __uint_as_float(0x7fc00000u);
}

static __device__ __forceinline__ uint8_t e5m2_code(float x)
{
    uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    uint32_t normal = ((size + 0xfffffu + (size >> 21 & 1)) >> 21) - (112u << 2);
    uint32_t small = __float_as_uint(__uint_as_float(size) + ROUND_TO_65536TH) & 0xffu;
    uint32_t code = size < 0x38800000u ? small : normal;

    return (uint8_t)(sign | (code < 0x7bu ? code : 0x7bu));
}

static __device__ __forceinline__ float e5m2_scale(uint32_t most)
{
    return most < 0x7f800000u ? __uint_as_float(most) / OPS_E5M2_MAX : __uint_as_float(0x7fc00000u);
}

#endif
