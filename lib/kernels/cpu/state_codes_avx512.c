/*
 * state_codes_avx512.c - coding optimizer states with AVX-512, and what rounds those of bf16
 *
 * A map's values, or the edges between them, are 8 or 16 registers, in which vpermt2ps looks up 32
 * numbers at a time: a vector takes 3 or 6 cycles of shuffles, where a gather takes 20. What is
 * looked up is one edge, because a number's place among the values is known but for one
 * (state_codes_impl.h). Elements beyond n are masked.
 */
#include "kernels/cpu/state_codes_avx512_impl.h"

#define NOISE_GROUP 4 /* vectors at a time, of longer chains, with more registers each */

/* Of 64, 128, ...: each half is looked up, and a bit of i chooses. */
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

/* GROUP vectors, of which n numbers are meant. */
CPU_INLINE void encode_group(const struct code_map *restrict map, const float *x, int n,
                             const struct divisor *whole, uint8_t *restrict codes, bool is_signed)
{
    __m512 element[GROUP], part[GROUP], within[GROUP];
    __m512i k[GROUP];

    load_parts(x, n, whole, is_signed, element, part);
    lower_values(map, part, within, k);
    for (int v = 0; v < GROUP; v++) {
        __m512 edge = is_signed ? look_up_128(map->edges, k[v]) : look_up_256(map->edges, k[v]);

        k[v] = nearest_of(k[v], within[v], edge);
    }
    store_group(codes, n, element, k, is_signed);
}

/* Whole groups without masks. */
CPU_INLINE void encode_all(const struct code_map *restrict map, const float *x, int n,
                           float divisor, uint8_t *restrict codes, bool is_signed)
{
    const struct divisor whole = divisor_of(divisor);
    int i = 0;

    for (; i + GROUP_LANES <= n; i += GROUP_LANES)
        encode_group(map, x + i, GROUP_LANES, &whole, codes + i, is_signed);
    if (i < n)
        encode_group(map, x + i, n - i, &whole, codes + i, is_signed);
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

/* The two halves of each word, element by element: bytes 0 and 1, 2 and 3 of 8. */
CPU_INLINE void store_halves(uint32_t *to, __m512i word)
{
    const __m512i bytes =
        _mm512_set4_epi32((int)0x80800b0au, (int)0x80800908u, (int)0x80800302u, (int)0x80800100u);

    _mm512_storeu_si512(to, _mm512_shuffle_epi8(word, bytes));
}

/* Exclusive or of the upper 32 bits of a, and b and c. */
CPU_INLINE __m512i mixed(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), b, c, 0x96);
}

CPU_INLINE __m512i all_lanes(uint64_t x)
{
    return _mm512_set1_epi64((int64_t)x);
}

#define ROUNDS 10

/*
 * Philox with a counter in each lane of 64 bits, of which a multiplication takes the lower 32: what
 * is left in the upper ones does not matter. A round waits for the one before, so NOISE_GROUP
 * vectors of counters take turns. Counters differ in their lowest word alone (low is a multiple of
 * NOISE_PAIRS), so half of the first two rounds is the same for all.
 */
static void make_noise(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
    const __m512i first = all_lanes(0xD2511F53u), second = all_lanes(0xCD9E8D57u);
    const __m512i places = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    uint64_t k0[ROUNDS], k1[ROUNDS];

    for (int round = 0; round < ROUNDS; round++) {
        k0[round] = (uint32_t)((uint32_t)key + (uint32_t)round * 0x9E3779B9u);
        k1[round] = (uint32_t)((uint32_t)(key >> 32) + (uint32_t)round * 0xBB67AE85u);
    }
    uint64_t p1 = (uint64_t)0xCD9E8D57u * (uint32_t)high;
    uint64_t p0 = (uint64_t)0xD2511F53u * (uint32_t)((p1 >> 32) ^ (low >> 32) ^ k0[0]);
    const __m512i of_c2 = all_lanes((high >> 32) ^ k1[0]), of_c0 = all_lanes(p1 ^ k0[1]);
    const __m512i of_next = all_lanes((p0 >> 32) ^ k1[1]), c3_then = all_lanes(p0);

    for (int i = 0; i < NOISE_PAIRS; i += NOISE_GROUP * 8) {
        __m512i c0[NOISE_GROUP], c1[NOISE_GROUP], c2[NOISE_GROUP], c3[NOISE_GROUP];

        for (int v = 0; v < NOISE_GROUP; v++) {
            c0[v] = _mm512_add_epi64(all_lanes(low + (uint64_t)(i + 8 * v)), places);
            c3[v] = _mm512_mul_epu32(c0[v], first);
            c2[v] = _mm512_xor_si512(_mm512_srli_epi64(c3[v], 32), of_c2);
            c1[v] = _mm512_mul_epu32(c2[v], second);
            c0[v] = _mm512_xor_si512(_mm512_srli_epi64(c1[v], 32), of_c0);
            c2[v] = _mm512_xor_si512(c3[v], of_next);
            c3[v] = c3_then;
        }
        for (int round = 2; round < ROUNDS; round++)
            for (int v = 0; v < NOISE_GROUP; v++) {
                __m512i a = _mm512_mul_epu32(c0[v], first), b = _mm512_mul_epu32(c2[v], second);

                c0[v] = mixed(b, c1[v], all_lanes(k0[round]));
                c2[v] = mixed(a, c3[v], all_lanes(k1[round]));
                c1[v] = b;
                c3[v] = a;
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
const struct state_codec state_codec_vbmi = {
    state_decode_vbmi, from_fp16, state_encode_vbmi, to_fp16, make_noise, stream_bf16, false
};
