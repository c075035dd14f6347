/*
 * state_codes_avx512.c - coding optimizer states with AVX-512, and what rounds those of bf16
 *
 * A map's values, or the edges between them, are 8 or 16 registers, in which vpermt2ps looks up 32
 * numbers at a time: a vector takes 3 or 6 cycles of shuffles, where a gather takes 20. What is
 * looked up is one edge, because a number's place among the values is known but for one
 * (state_codes_impl.h). Elements beyond n are masked.
 */
#include <immintrin.h>

#include "base/num.h"
#include "kernels/cpu/state_codes_impl.h"

#define LANES 16
#define GROUP 8       /* vectors at a time, whose chains of operations take turns */
#define NOISE_GROUP 4 /* of longer chains, with more registers each */

CPU_INLINE __mmask16 lanes_of(int n)
{
    return (__mmask16)(n >= LANES ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
}

/* table[i] of 32, 64, ... numbers: each half is looked up, and a bit of i chooses. */
CPU_INLINE __m512 look_up_32(const float *table, __m512i i)
{
    return _mm512_permutex2var_ps(_mm512_load_ps(table), i, _mm512_load_ps(table + LANES));
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

/*
 * The numbers of the values that are nearest to x; NaN is as 1. Each step is taken for GROUP
 * vectors, as it waits for the one before.
 */
CPU_INLINE void nearest_values(const struct code_map *map, const __m512 *x, __m512i *k,
                               bool is_signed)
{
    const __m512i one = _mm512_set1_epi32(1);
    __m512 within[GROUP], place[GROUP];
    __m512i e[GROUP], decade[GROUP];

    for (int v = 0; v < GROUP; v++) {
        within[v] = _mm512_max_ps(_mm512_min_ps(x[v], _mm512_set1_ps(1)), _mm512_setzero_ps());
        e[v] = _mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(within[v]), 23),
                                _mm512_set1_epi32(CODE_EXPONENTS_FROM));
        e[v] = _mm512_max_epi32(e[v], _mm512_setzero_si512());
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
    for (int v = 0; v < GROUP; v++) {
        __m512 edge = is_signed ? look_up_128(map->edges, k[v]) : look_up_256(map->edges, k[v]);

        k[v] =
            _mm512_mask_add_epi32(k[v], _mm512_cmp_ps_mask(within[v], edge, _CMP_GT_OQ), k[v], one);
    }
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

CPU_INLINE void encode_all(const struct code_map *restrict map, const float *x, int n,
                           float divisor, uint8_t *restrict codes, bool is_signed)
{
    const __m512 whole = _mm512_set1_ps(divisor);

    for (int i = 0; i < n; i += GROUP * LANES) {
        __m512 element[GROUP], part[GROUP];
        __m512i k[GROUP];

        for (int v = 0; v < GROUP; v++) {
            element[v] = _mm512_maskz_loadu_ps(lanes_of(n - i - v * LANES), x + i + v * LANES);
            part[v] = _mm512_div_ps(is_signed ? _mm512_abs_ps(element[v]) : element[v], whole);
        }
        nearest_values(map, part, k, is_signed);
        for (int v = 0; v < GROUP; v++) {
            k[v] = is_signed ? with_sign(k[v], element[v]) : at_least_one(k[v], element[v]);
            store_codes(codes + i + v * LANES, n - i - v * LANES, _mm512_cvtepi32_epi8(k[v]));
        }
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
        __m256i half = _mm512_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT);
        if (n - i >= LANES)
            _mm256_storeu_si256((__m256i *)(words + i), half);
        else
            _mm256_mask_storeu_epi16(words + i, some, half);
    }
}

/* ---- rounding ---- */

/* The two halves of each word, element by element. */
CPU_INLINE void store_halves(uint32_t *to, __m512i word)
{
    __m512i lower = _mm512_and_si512(word, _mm512_set1_epi64(0xffff));
    __m512i upper =
        _mm512_and_si512(_mm512_slli_epi64(word, 16), _mm512_set1_epi64(0xffff00000000));

    _mm512_storeu_si512(to, _mm512_or_si512(lower, upper));
}

/* Exclusive or of the upper 32 bits of a, and b and c. */
CPU_INLINE __m512i mixed(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), b, c, 0x96);
}

/*
 * Philox with a counter in each lane of 64 bits, of which a multiplication takes the lower 32: what
 * is left in the upper ones does not matter. A round waits for the one before, so NOISE_GROUP
 * vectors of counters take turns.
 */
static void make_noise(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
    const __m512i first = _mm512_set1_epi64(0xD2511F53u), second = _mm512_set1_epi64(0xCD9E8D57u);
    const __m512i places = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);

    for (int i = 0; i < NOISE_PAIRS; i += NOISE_GROUP * 8) {
        __m512i c0[NOISE_GROUP], c1[NOISE_GROUP], c2[NOISE_GROUP], c3[NOISE_GROUP];
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

        for (int v = 0; v < NOISE_GROUP; v++) {
            c0[v] =
                _mm512_add_epi64(_mm512_set1_epi64((int64_t)(low + (uint64_t)(i + 8 * v))), places);
            c1[v] = _mm512_srli_epi64(c0[v], 32);
            c2[v] = _mm512_set1_epi64((int64_t)high);
            c3[v] = _mm512_srli_epi64(c2[v], 32);
        }
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
            for (int v = 0; v < NOISE_GROUP; v++) {
                __m512i p0 = _mm512_mul_epu32(c0[v], first), p1 = _mm512_mul_epu32(c2[v], second);

                c0[v] = mixed(p1, c1[v], _mm512_set1_epi64(k0));
                c2[v] = mixed(p0, c3[v], _mm512_set1_epi64(k1));
                c1[v] = p1;
                c3[v] = p0;
            }
        for (int v = 0; v < NOISE_GROUP; v++) {
            store_halves(noise->master + 2 * i + 16 * v, c0[v]);
            store_halves(noise->m + 2 * i + 16 * v, c1[v]);
            store_halves(noise->v + 2 * i + 16 * v, c2[v]);
        }
    }
}
_Static_assert(NOISE_PAIRS % (NOISE_GROUP * 8) == 0, "whole groups");

/* ---- weights ---- */

/* As vec_to_bf16. */
CPU_INLINE __m512i rounded_bf16(__m512 x)
{
    const __m512i size_mask = _mm512_set1_epi32(0x7fffffff), one = _mm512_set1_epi32(1);
    __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)),
                                       _mm512_and_si512(upper, one));
    __mmask16 is_nan =
        _mm512_cmpgt_epu32_mask(_mm512_and_si512(bits, size_mask), _mm512_set1_epi32(0x7f800000));

    return _mm512_mask_or_epi32(_mm512_srli_epi32(rounded, 16), is_nan, upper,
                                _mm512_set1_epi32(0x40));
}

/*
 * Other cores see these stores after the tile's end, where the pool counts it by a locked
 * operation: that waits for them, too. A fence here would wait for all stores of each few elements.
 */
static void stream_bf16(const float *x, int n, uint16_t *words)
{
    for (int i = 0; i < n; i += 2 * LANES) {
        __m256i lower = _mm512_cvtepi32_epi16(rounded_bf16(_mm512_loadu_ps(x + i)));
        __m256i upper = _mm512_cvtepi32_epi16(rounded_bf16(_mm512_loadu_ps(x + i + LANES)));

        _mm512_stream_si512((void *)(words + i),
                            _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1));
    }
}

const struct state_codec state_codec_avx512 = { decode,     from_fp16,   encode, to_fp16,
                                                make_noise, stream_bf16, false };
