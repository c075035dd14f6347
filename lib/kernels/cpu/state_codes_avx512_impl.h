/*
 * state_codes_avx512_impl.h - what coding by AVX-512 and by VBMI (state_codes_avx512vbmi.c) share
 *
 * Included where AVX-512's F, BW, VL and DQ may be used.
 */
#ifndef KERNELS_CPU_STATE_CODES_AVX512_IMPL_H
#define KERNELS_CPU_STATE_CODES_AVX512_IMPL_H

#include <immintrin.h>

#include "base/num.h"
#include "kernels/cpu/state_codes_impl.h"

#define LANES 16
#define GROUP 8 /* vectors at a time, whose chains of operations take turns */
#define GROUP_LANES (GROUP * LANES)

CPU_INLINE __mmask16 lanes_of(int n)
{
    return (__mmask16)(n >= LANES ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
}

/* table[i] of 32 numbers. */
CPU_INLINE __m512 look_up_32(const float *table, __m512i i)
{
    return _mm512_permutex2var_ps(_mm512_load_ps(table), i, _mm512_load_ps(table + LANES));
}

/*
 * Parts of the whole, x / divisor, each rounded to nearest. A division takes several times as long
 * as what is done here where neither the inverse nor what is left is denormal: quotient and
 * remainder by a rounded inverse give the same bits (P. W. Markstein 1990, "Computation of
 * elementary functions on the IBM RISC System/6000 processor") of quotients that are no less than
 * 2^-25; smaller ones stay below all edges.
 */
struct divisor {
    __m512 whole, inverse;
    bool is_inverted;
};

CPU_INLINE struct divisor divisor_of(float whole)
{
    return (struct divisor){ _mm512_set1_ps(whole), _mm512_set1_ps(1 / whole),
                             whole >= 0x1p-70f && whole <= 0x1p100f };
}

CPU_INLINE void to_parts(__m512 *x, const struct divisor *d)
{
    if (!d->is_inverted) {
        for (int v = 0; v < GROUP; v++)
            x[v] = _mm512_div_ps(x[v], d->whole);
        return;
    }
    for (int v = 0; v < GROUP; v++) {
        __m512 near = _mm512_mul_ps(x[v], d->inverse);

        x[v] = _mm512_fmadd_ps(_mm512_fnmadd_ps(near, d->whole, x[v]), d->inverse, near);
    }
}

/*
 * The numbers of the values that are nearest to x, or one less than these: above the value's edge
 * it is the next one. within: x, at most 1; NaN is as 1. Each step is taken for GROUP vectors,
 * as it waits for the one before.
 */
CPU_INLINE void lower_values(const struct code_map *map, const __m512 *x, __m512 *within,
                             __m512i *k)
{
    const __m512i one = _mm512_set1_epi32(1), least = _mm512_set1_epi32(CODE_EXPONENTS_FROM << 23);
    __m512 place[GROUP];
    __m512i e[GROUP], decade[GROUP];

    for (int v = 0; v < GROUP; v++) {
        within[v] = _mm512_min_ps(x[v], _mm512_set1_ps(1));
        e[v] = _mm512_max_epi32(_mm512_castps_si512(within[v]), least);
        e[v] = _mm512_srli_epi32(e[v], 23);
    }
    for (int v = 0; v < GROUP; v++) {
        __m512 edge = look_up_32(map->decade_edges, e[v]);

        decade[v] = _mm512_permutex2var_epi32(_mm512_load_si512(map->decades), e[v],
                                              _mm512_load_si512(map->decades + LANES));
        decade[v] = _mm512_mask_add_epi32(
            decade[v], _mm512_cmp_ps_mask(within[v], edge, _CMP_GT_OQ), decade[v], one);
    }
    for (int v = 0; v < GROUP; v++) {
        __m512 slope = _mm512_permutexvar_ps(decade[v], _mm512_load_ps(map->slopes));
        __m512 offset = _mm512_permutexvar_ps(decade[v], _mm512_load_ps(map->offsets));

        place[v] = _mm512_fmadd_ps(within[v], slope, offset);
    }
    for (int v = 0; v < GROUP; v++) {
        __m512 last = _mm512_permutexvar_ps(decade[v], _mm512_load_ps(map->last));

        k[v] = _mm512_cvttps_epi32(_mm512_min_ps(place[v], last));
    }
}

/* The next one above its edge. */
CPU_INLINE __m512i nearest_of(__m512i k, __m512 within, __m512 edge)
{
    return _mm512_mask_add_epi32(k, _mm512_cmp_ps_mask(within, edge, _CMP_GT_OQ), k,
                                 _mm512_set1_epi32(1));
}

CPU_INLINE __m512i with_sign(__m512i k, __m512 x)
{
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NGE_UQ);
    __m512i least = _mm512_set1_epi32(STATE_CODES_SIGNED - 2);

    return _mm512_mask_sub_epi32(k, negative, _mm512_setzero_si512(), _mm512_min_epi32(k, least));
}

CPU_INLINE __m512i at_least_one(__m512i k, __m512 x)
{
    __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);

    return _mm512_mask_max_epi32(k, positive, k, _mm512_set1_epi32(1));
}

/* A masked store of bytes takes many times as long as a whole one. */
CPU_INLINE void store_codes(uint8_t *to, int n, __m128i codes)
{
    if (n >= LANES)
        _mm_storeu_si128((__m128i *)to, codes);
    else
        _mm_mask_storeu_epi8(to, lanes_of(n), codes);
}

/* Codes of GROUP vectors: their numbers k with what their signs are. */
CPU_INLINE void store_group(uint8_t *codes, int n, const __m512 *x, const __m512i *k,
                            bool is_signed)
{
    for (int v = 0; v < GROUP; v++) {
        __m512i code = is_signed ? with_sign(k[v], x[v]) : at_least_one(k[v], x[v]);

        store_codes(codes + v * LANES, n - v * LANES, _mm512_cvtepi32_epi8(code));
    }
}

/* GROUP vectors, and their parts of the whole. */
CPU_INLINE void load_parts(const float *x, int n, const struct divisor *d, bool is_signed,
                           __m512 *element, __m512 *part)
{
    for (int v = 0; v < GROUP; v++) {
        element[v] = _mm512_maskz_loadu_ps(lanes_of(n - v * LANES), x + v * LANES);
        part[v] = is_signed ? _mm512_abs_ps(element[v]) : element[v];
    }
    to_parts(part, d);
}

/* Codes of GROUP vectors, of which n numbers are meant. */
typedef void (*encode_group_fn)(const struct code_map *map, const float *x, int n,
                                const struct divisor *whole, uint8_t *codes, bool is_signed);

/* Whole groups without masks. */
CPU_INLINE void encode_all(const struct code_map *restrict map, const float *x, int n,
                           float divisor, uint8_t *restrict codes, encode_group_fn encode_group,
                           bool is_signed)
{
    const struct divisor whole = divisor_of(divisor);
    int i = 0;

    for (; i + GROUP_LANES <= n; i += GROUP_LANES)
        encode_group(map, x + i, GROUP_LANES, &whole, codes + i, is_signed);
    if (i < n)
        encode_group(map, x + i, n - i, &whole, codes + i, is_signed);
}

/* With the encoder of a group, which is inlined. */
CPU_INLINE void encode_groups(const struct code_map *map, const float *x, int n, float divisor,
                              uint8_t *codes, encode_group_fn encode_group)
{
    if (map->n == STATE_CODES_SIGNED)
        encode_all(map, x, n, divisor, codes, encode_group, true);
    else
        encode_all(map, x, n, divisor, codes, encode_group, false);
}

/* state_codes_avx512vbmi.c */
void state_decode_vbmi(const struct code_map *map, const uint8_t *codes, int n, float scale,
                       float *to);
void state_encode_vbmi(const struct code_map *map, const float *x, int n, float divisor,
                       uint8_t *codes);

#endif
