/*
 * state_codes_avx512vbmi.c - coding optimizer states of 8 bits with AVX-512's VBMI
 *
 * A table of floats is four of bytes, one of each place in a float, and vpermi2b looks up 64 bytes
 * at a time in 128: of 64 numbers that are 4 or 8 such operations and 8 that put bytes together,
 * where vpermt2ps takes 16 to 32 and as many choices (state_codes_avx512.c). Bits are the same.
 */
#include "kernels/cpu/state_codes_avx512_impl.h"

#define CODES 64  /* of a register of bytes */
#define VECTORS 4 /* of floats, which are as many */
_Static_assert(GROUP % VECTORS == 0 && CODES == VECTORS * LANES, "whole registers");

/* A byte of each float of a table: of 128, or of 256. */
CPU_INLINE __m512i look_up_bytes(const uint8_t *plane, __m512i i, __mmask64 upper, bool is_long)
{
    const __m512i *part = (const __m512i *)(const void *)plane;
    __m512i lower = _mm512_permutex2var_epi8(part[0], i, part[1]);

    if (!is_long)
        return lower;
    return _mm512_mask_blend_epi8(upper, lower, _mm512_permutex2var_epi8(part[2], i, part[3]));
}

/*
 * The floats of 64 numbers i: of 16 bytes of i, 4 to each vector. With i packed from 4 vectors of
 * numbers, that is their order.
 */
CPU_INLINE void look_up_floats(const uint8_t planes[CODE_PLANES][STATE_CODES_UNSIGNED], __m512i i,
                               bool is_long, __m512 *to)
{
    __mmask64 upper = is_long ? _mm512_movepi8_mask(i) : 0;
    __m512i byte0 = look_up_bytes(planes[0], i, upper, is_long);
    __m512i byte1 = look_up_bytes(planes[1], i, upper, is_long);
    __m512i byte2 = look_up_bytes(planes[2], i, upper, is_long);
    __m512i byte3 = look_up_bytes(planes[3], i, upper, is_long);
    __m512i below = _mm512_unpacklo_epi8(byte0, byte1), above = _mm512_unpacklo_epi8(byte2, byte3);

    to[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(below, above));
    to[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(below, above));
    below = _mm512_unpackhi_epi8(byte0, byte1);
    above = _mm512_unpackhi_epi8(byte2, byte3);
    to[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(below, above));
    to[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(below, above));
}

/* The codes of vector v of 16 in bytes 4 v to 4 v + 3 of each 16. */
CPU_INLINE __m512i turned(__m512i codes)
{
    return _mm512_permutexvar_epi32(
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), codes);
}

CPU_INLINE __mmask64 bytes_of(int n)
{
    return n >= CODES ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
}

/* A register of codes, of which n are meant. */
CPU_INLINE void decode_register(const struct code_map *map, const uint8_t *codes, int n,
                                __m512 times, float *to)
{
    __m512 value[VECTORS];

    look_up_floats(map->value_bytes, turned(_mm512_maskz_loadu_epi8(bytes_of(n), codes)), true,
                   value);
    for (int v = 0; v < VECTORS; v++)
        _mm512_mask_storeu_ps(to + v * LANES, lanes_of(n - v * LANES),
                              _mm512_mul_ps(value[v], times));
}

void state_decode_vbmi(const struct code_map *restrict map, const uint8_t *codes, int n,
                       float scale, float *restrict to)
{
    const __m512 times = _mm512_set1_ps(scale);
    int i = 0;

    for (; i + CODES <= n; i += CODES)
        decode_register(map, codes + i, CODES, times, to + i);
    if (i < n)
        decode_register(map, codes + i, n - i, times, to + i);
}

/* Numbers below 256 as bytes, in the order of look_up_floats. */
CPU_INLINE __m512i packed(const __m512i *k)
{
    return _mm512_packus_epi16(_mm512_packus_epi32(k[0], k[1]), _mm512_packus_epi32(k[2], k[3]));
}

CPU_INLINE void encode_group(const struct code_map *restrict map, const float *x, int n,
                             const struct divisor *whole, uint8_t *restrict codes, bool is_signed)
{
    __m512 element[GROUP], part[GROUP], within[GROUP], edge[GROUP];
    __m512i k[GROUP];

    load_parts(x, n, whole, is_signed, element, part);
    lower_values(map, part, within, k);
    for (int v = 0; v < GROUP; v += VECTORS)
        look_up_floats(map->edge_bytes, packed(k + v), !is_signed, edge + v);
    for (int v = 0; v < GROUP; v++)
        k[v] = nearest_of(k[v], within[v], edge[v]);
    store_group(codes, n, element, k, is_signed);
}

void state_encode_vbmi(const struct code_map *map, const float *x, int n, float divisor,
                       uint8_t *codes)
{
    encode_groups(map, x, n, divisor, codes, encode_group);
}
