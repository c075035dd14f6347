/*
 * gemm_load_avx512_impl.h - 16 lanes of a line of an operand, as they are multiplied
 */
#ifndef KERNELS_CPU_GEMM_LOAD_AVX512_IMPL_H
#define KERNELS_CPU_GEMM_LOAD_AVX512_IMPL_H

#include "kernels/cpu/gemm_code_impl.h"

#include <immintrin.h>

#define LANES 16

CPU_INLINE __mmask16 mask_16(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
}

CPU_INLINE __mmask32 mask_32(int64_t n)
{
    return n >= 32 ? 0xffffffff : (1u << n) - 1;
}

/* 16 bf16 as the low halves of lanes. */
CPU_INLINE __m512i load_halves(const uint16_t *from, __mmask16 mask)
{
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
}

/* 16 fp16 as floats. */
CPU_INLINE __m512i load_fp16(const uint16_t *from, __mmask16 mask)
{
    return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from)));
}

/* 16 steps of one line, n_k elements of which exist. */
CPU_INLINE __m512i load_along(const void *from, int64_t n_k, const enum gemm_lane lane)
{
    if (lane == LANE_F32)
        return _mm512_maskz_loadu_epi32(mask_16(n_k), from);
    if (lane == LANE_PAIR)
        return _mm512_maskz_loadu_epi16(mask_32(n_k), from);
    if (lane == LANE_HALF)
        return load_fp16(from, mask_16(n_k));
    return _mm512_slli_epi32(load_halves(from, mask_16(n_k)), 16);
}

#endif
