/*
 * transpose_avx512_impl.h - 16 x 16 lanes of 32 bits, rows to columns, in registers
 */
#ifndef KERNELS_CPU_TRANSPOSE_AVX512_IMPL_H
#define KERNELS_CPU_TRANSPOSE_AVX512_IMPL_H

#include "kernels/cpu/cpu_impl.h"

#include <immintrin.h>

/* Neighbouring rows are zipped by 1, 2, 4 and 8 elements. */
CPU_INLINE void transpose_lanes(__m512 rows[16])
{
    __m512 pairs[16], fours[16];

    for (int r = 0; r < 16; r += 2) {
        pairs[r] = _mm512_unpacklo_ps(rows[r], rows[r + 1]);
        pairs[r + 1] = _mm512_unpackhi_ps(rows[r], rows[r + 1]);
    }
    /* fours[4 q + l]: in each quarter of it, column l of that quarter from rows 4 q .. 4 q + 3. */
    for (int r = 0; r < 16; r += 4)
        for (int l = 0; l < 2; l++) {
            __m512d x = _mm512_castps_pd(pairs[r + l]), y = _mm512_castps_pd(pairs[r + 2 + l]);

            fours[r + 2 * l] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            fours[r + 2 * l + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    for (int l = 0; l < 4; l++) {
        __m512 x = _mm512_shuffle_f32x4(fours[l], fours[4 + l], 0x88);
        __m512 y = _mm512_shuffle_f32x4(fours[8 + l], fours[12 + l], 0x88);

        rows[l] = _mm512_shuffle_f32x4(x, y, 0x88);
        rows[8 + l] = _mm512_shuffle_f32x4(x, y, 0xdd);
        x = _mm512_shuffle_f32x4(fours[l], fours[4 + l], 0xdd);
        y = _mm512_shuffle_f32x4(fours[8 + l], fours[12 + l], 0xdd);
        rows[4 + l] = _mm512_shuffle_f32x4(x, y, 0x88);
        rows[12 + l] = _mm512_shuffle_f32x4(x, y, 0xdd);
    }
}

#endif
