/*
 * attention_product_avx512bf16.c - the small products of attention on pairs of bf16
 *
 * Tiles stay fp32; both operands are rounded into pairs along k first, which costs a tenth of what
 * the product then saves. An element of c is one chain over the pairs in increasing k, each step as
 * VDPBF16PS does it. P, dS and the scaled queries are rounded here, as in FlashAttention on GPUs;
 * all other operands were bf16 in memory.
 */
#include "kernels/cpu/attention_impl.h"

#include <immintrin.h>

#define LANES 16
#define SIDE_MAX 256 /* the larger of BLOCK and a tile's width */

_Static_assert(SIDE_MAX >= OPS_HEAD_DIM_MAX && SIDE_MAX >= BLOCK, "tiles fit");

/* Element (i, pair) of a at lanes + i * row + pair * col. */
struct pairs {
    _Alignas(64) uint32_t lanes[BLOCK * SIDE_MAX / 2];
    int64_t row, col;
};

/* 16 columns of rows k and k + 1 become 16 pairs. */
CPU_INLINE __m512i pair_rows(const float *at, int64_t stride)
{
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(at)));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(at + stride)));

    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* Rows of k pairwise: [n_pairs x n]. */
CPU_INLINE void pair_columns(uint32_t *to, const float *from, int64_t stride, int64_t n_pairs,
                             int64_t n)
{
    for (int64_t pair = 0; pair < n_pairs; pair++)
        for (int64_t j = 0; j < n; j += LANES)
            _mm512_storeu_si512(to + pair * n + j, pair_rows(from + 2 * pair * stride + j, stride));
}

/*
 * Neighbours of a row: [BLOCK x n_pairs]; the last few of a row that 32 does not divide one by one.
 */
CPU_INLINE void pair_neighbours(uint32_t *to, const float *from, int64_t stride, int64_t n_pairs)
{
    for (int64_t i = 0; i < BLOCK; i++) {
        const float *row = from + i * stride;
        int64_t pair = 0;

        for (; pair + LANES <= n_pairs; pair += LANES) {
            __m512 low = _mm512_loadu_ps(row + 2 * pair);
            __m512 high = _mm512_loadu_ps(row + 2 * pair + LANES);

            _mm512_storeu_si512(to + i * n_pairs + pair, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
        for (; pair < n_pairs; pair += LANES / 2)
            _mm256_storeu_si256((__m256i *)(to + i * n_pairs + pair),
                                (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(row + 2 * pair)));
    }
}

/* Columns j .. j + 16 * n_vectors - 1 of PRODUCT_ROWS rows; e's k in pairs. */
CPU_INLINE void block(const struct tile_product *p, const struct pairs *a, const uint32_t *b,
                      int64_t i, int64_t j, const struct product_range *e, const int n_vectors)
{
    __m512 c[PRODUCT_ROWS][4];
    float *out = p->c + i * p->c_stride + j;

    for (int r = 0; r < PRODUCT_ROWS; r++)
        for (int v = 0; v < n_vectors; v++)
            c[r][v] =
                p->add ? _mm512_loadu_ps(out + r * p->c_stride + v * LANES) : _mm512_setzero_ps();
    for (int64_t k = e->k_start; k < e->k_end; k++) {
        const uint32_t *lane = a->lanes + i * a->row + k * a->col;
        __m512i row[4];

        for (int v = 0; v < n_vectors; v++)
            row[v] = _mm512_loadu_si512(b + k * p->n + j + v * LANES);
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            __m512bh w = (__m512bh)_mm512_set1_epi32((int)lane[r * a->row]);

            for (int v = 0; v < n_vectors; v++)
                c[r][v] = _mm512_dpbf16_ps(c[r][v], w, (__m512bh)row[v]);
        }
    }
    for (int r = 0; r < PRODUCT_ROWS; r++)
        for (int v = 0; v < n_vectors; v++)
            _mm512_storeu_ps(out + r * p->c_stride + v * LANES, c[r][v]);
}

void attention_product_avx512bf16(const struct tile_product *p)
{
    _Alignas(64) uint32_t b[SIDE_MAX / 2 * SIDE_MAX / 4];
    struct pairs a;
    int64_t n_pairs = p->k / 2;

    pair_columns(b, p->b, p->b_stride, n_pairs, p->n);
    if (p->a_col == 1) {
        a.row = n_pairs;
        a.col = 1;
        pair_neighbours(a.lanes, p->a, p->a_row, n_pairs);
    } else {
        a.row = 1;
        a.col = BLOCK;
        pair_columns(a.lanes, p->a, p->a_col, n_pairs, BLOCK);
    }
    for (int64_t i = 0; i < product_rows(p); i += PRODUCT_ROWS) {
        struct product_range e = product_range_of(p, i);
        int64_t j = 0;

        e.k_start /= 2;
        e.k_end /= 2;
        for (; j + 4 * LANES <= e.n; j += 4 * LANES)
            block(p, &a, b, i, j, &e, 4);
        if (j + 2 * LANES <= e.n) {
            block(p, &a, b, i, j, &e, 2);
            j += 2 * LANES;
        }
        if (j < e.n)
            block(p, &a, b, i, j, &e, 1);
    }
}
