/*
 * state_codes_avx512.c - coding optimizer states with the maps in registers
 *
 * A map's values, or the edges between them, are 8 or 16 registers, in which vpermt2ps looks up 32
 * numbers at a time: an element of each vector takes half a cycle of shuffles, where a gather takes
 * more than one. What is looked up is one edge, because a number's place among the values is known
 * but for one (state_codes_impl.h). Elements beyond n are masked.
 */
#include <immintrin.h>

#include "base/num.h"
#include "kernels/cpu/state_codes_impl.h"

#define LANES 16

CPU_INLINE __mmask16 lanes_of(int n)
{
    return (__mmask16)(n >= LANES ? 0xffff : (1 << n) - 1);
}

/* table[i] of 32, 64, ... numbers: each half is looked up, and a bit of i chooses. */
CPU_INLINE __m512 look_up_32(const float *table, __m512i i)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), i, _mm512_loadu_ps(table + LANES));
}

CPU_INLINE __m512 choose(__m512 lower, __m512 upper, __m512i i, const int bit)
{
    return _mm512_mask_mov_ps(lower, _mm512_test_epi32_mask(i, _mm512_set1_epi32(bit)), upper);
}

CPU_INLINE __m512 look_up_64(const float *table, __m512i i)
{
    return choose(look_up_32(table, i), look_up_32(table + 32, i), i, 32);
}

CPU_INLINE __m512 look_up_128(const float *table, __m512i i)
{
    return choose(look_up_64(table, i), look_up_64(table + 64, i), i, 64);
}

CPU_INLINE __m512 look_up_256(const float *table, __m512i i)
{
    return choose(look_up_128(table, i), look_up_128(table + 128, i), i, 128);
}

/* ---- codes ---- */

/* Codes from 129 on are negative: the values of their magnitudes; 128 is 1. */
CPU_INLINE __m512 signed_value(const struct code_map *map, __m128i codes)
{
    __m512i code = _mm512_cvtepi8_epi32(codes), top = _mm512_set1_epi32(-128);
    __m512i sign = _mm512_and_si512(code, _mm512_set1_epi32(INT32_MIN));
    __m512 magnitude = look_up_128(map->values, _mm512_abs_epi32(code));

    return _mm512_mask_mov_ps(_mm512_xor_ps(magnitude, _mm512_castsi512_ps(sign)),
                              _mm512_cmpeq_epi32_mask(code, top), _mm512_set1_ps(1));
}

CPU_INLINE void decode_all(const struct code_map *restrict map, const uint8_t *codes, int n,
                           float scale, float *restrict to, bool is_signed)
{
    for (int i = 0; i < n; i += LANES) {
        __mmask16 some = lanes_of(n - i);
        __m128i code = _mm_maskz_loadu_epi8(some, codes + i);
        __m512 value = is_signed ? signed_value(map, code)
                                 : look_up_256(map->values, _mm512_cvtepu8_epi32(code));

        _mm512_mask_storeu_ps(to + i, some, _mm512_mul_ps(value, _mm512_set1_ps(scale)));
    }
}

static void decode(const struct code_map *restrict map, const uint8_t *codes, int n, float scale,
                   float *to)
{
    if (map->n == STATE_CODES_SIGNED)
        decode_all(map, codes, n, scale, to, true);
    else
        decode_all(map, codes, n, scale, to, false);
}

/* The number of the value that is nearest to x; NaN is as 1. */
CPU_INLINE __m512i nearest_value(const struct code_map *map, __m512 x, bool is_signed)
{
    __m512 within = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(1)), _mm512_setzero_ps());
    __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(within), 23);
    __m512i e = _mm512_max_epi32(_mm512_sub_epi32(exponent, _mm512_set1_epi32(CODE_EXPONENTS_FROM)),
                                 _mm512_setzero_si512());
    __m512i decade = _mm512_permutex2var_epi32(_mm512_loadu_si512(map->decades), e,
                                               _mm512_loadu_si512(map->decades + LANES));
    __mmask16 next = _mm512_cmp_ps_mask(within, look_up_32(map->decade_edges, e), _CMP_GT_OQ);

    decade = _mm512_mask_add_epi32(decade, next, decade, _mm512_set1_epi32(1));
    __m512 place =
        _mm512_fmadd_ps(within, _mm512_permutexvar_ps(decade, _mm512_loadu_ps(map->slopes)),
                        _mm512_permutexvar_ps(decade, _mm512_loadu_ps(map->offsets)));
    place = _mm512_min_ps(place, _mm512_permutexvar_ps(decade, _mm512_loadu_ps(map->last)));
    __m512i k = _mm512_cvttps_epi32(place);
    __m512 edge = is_signed ? look_up_128(map->edges, k) : look_up_256(map->edges, k);
    return _mm512_mask_add_epi32(k, _mm512_cmp_ps_mask(within, edge, _CMP_GT_OQ), k,
                                 _mm512_set1_epi32(1));
}

CPU_INLINE __m512i signed_code(const struct code_map *map, __m512 x, __m512 divisor)
{
    __m512i k = nearest_value(map, _mm512_div_ps(_mm512_abs_ps(x), divisor), true);
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NGE_UQ);
    __m512i least = _mm512_set1_epi32(STATE_CODES_SIGNED - 2);

    return _mm512_mask_sub_epi32(k, negative, _mm512_setzero_si512(), _mm512_min_epi32(k, least));
}

CPU_INLINE __m512i unsigned_code(const struct code_map *map, __m512 x, __m512 divisor)
{
    __m512i k = nearest_value(map, _mm512_div_ps(x, divisor), false);
    __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);

    return _mm512_mask_max_epi32(k, positive, k, _mm512_set1_epi32(1));
}

CPU_INLINE void encode_all(const struct code_map *restrict map, const float *x, int n,
                           float divisor, uint8_t *restrict codes, bool is_signed)
{
    __m512 whole = _mm512_set1_ps(divisor);

    for (int i = 0; i < n; i += LANES) {
        __mmask16 some = lanes_of(n - i);
        __m512 element = _mm512_maskz_loadu_ps(some, x + i);
        __m512i code =
            is_signed ? signed_code(map, element, whole) : unsigned_code(map, element, whole);

        _mm_mask_storeu_epi8(codes + i, some, _mm512_cvtepi32_epi8(code));
    }
}

static void encode(const struct code_map *map, const float *x, int n, float divisor, uint8_t *codes)
{
    if (map->n == STATE_CODES_SIGNED)
        encode_all(map, x, n, divisor, codes, true);
    else
        encode_all(map, x, n, divisor, codes, false);
}

/* ---- fp16 ---- */

static void from_fp16(const uint16_t *words, int n, float scale, float *to)
{
    for (int i = 0; i < n; i += LANES) {
        __mmask16 some = lanes_of(n - i);
        __m512 x = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, words + i));

        _mm512_mask_storeu_ps(to + i, some, _mm512_mul_ps(x, _mm512_set1_ps(scale)));
    }
}

/* The second operand of a minimum is what NaN becomes. */
static void to_fp16(const float *x, int n, float inverse, uint16_t *words)
{
    const __m512 full = _mm512_set1_ps(OPS_FP16_FULL), least = _mm512_set1_ps(-OPS_FP16_FULL);

    for (int i = 0; i < n; i += LANES) {
        __mmask16 some = lanes_of(n - i);
        __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + i), _mm512_set1_ps(inverse));

        scaled = _mm512_max_ps(least, _mm512_min_ps(full, scaled));
        _mm256_mask_storeu_epi16(words + i, some,
                                 _mm512_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
    }
}

const struct state_codec state_codec_avx512 = { decode, from_fp16, encode, to_fp16 };
