/*
 * state_codes_avx512.c - coding optimizer states with AVX-512, and what rounds those of bf16
 *
 * A map's values, or the edges between them, are 8 or 16 registers, in which vpermt2ps looks up 32
 * numbers at a time: a vector takes 3 or 6 cycles of shuffles, where a gather takes 20. What is
 * looked up is one edge, because a number's place among the values is known but for one
 * (state_codes_impl.h). Elements beyond n are masked.
 */
#include "kernels/cpu/state_codes_avx512_impl.h"

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

static void encode(const struct code_map *map, const float *x, int n, float divisor, uint8_t *codes)
{
    encode_groups(map, x, n, divisor, codes, encode_group);
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

#define LANES64 8
typedef __m512i lanes64;

/* Bytes 0 and 1, 2 and 3 of 8. */
CPU_INLINE void store_halves(uint32_t *to, lanes64 word)
{
    const __m512i bytes =
        _mm512_set4_epi32((int)0x80800b0au, (int)0x80800908u, (int)0x80800302u, (int)0x80800100u);

    _mm512_storeu_si512(to, _mm512_shuffle_epi8(word, bytes));
}

CPU_INLINE lanes64 all_lanes(uint64_t x)
{
    return _mm512_set1_epi64((int64_t)x);
}

CPU_INLINE lanes64 lanes_from(uint64_t x)
{
    return _mm512_add_epi64(all_lanes(x), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
}

CPU_INLINE lanes64 times_lanes(lanes64 a, lanes64 b)
{
    return _mm512_mul_epu32(a, b);
}

CPU_INLINE lanes64 mixed(lanes64 a, lanes64 b, lanes64 c)
{
    return _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), b, c, 0x96);
}

CPU_INLINE lanes64 upper_lanes(lanes64 a)
{
    return _mm512_srli_epi64(a, 32);
}

CPU_INLINE lanes64 exclusive_or(lanes64 a, lanes64 b)
{
    return _mm512_xor_si512(a, b);
}

#include "kernels/cpu/state_noise_impl.h"

static void make_noise(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
    make_lanes_of_noise(noise, key, high, low);
}

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
