/*
 * attention_product_avx512.c - the small products of attention with their results in registers
 *
 * Four rows by 64 columns are 16 registers; a step of k loads four vectors of b and broadcasts four
 * elements of a for 16 fused multiply-adds, so that the multipliers are the bound and not the
 * loads. The plain form, which lets the compiler vectorise along rows, loads b again for every row
 * and reaches 60 % of this.
 */
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/transpose_avx512_impl.h"

#define LANES 16

/* Columns j .. j + 16 * n_vectors - 1 of PRODUCT_ROWS rows. */
CPU_INLINE void block(const struct tile_product *p, int64_t i, int64_t j,
                      const struct product_range *e, const int n_vectors)
{
    __m512 c[PRODUCT_ROWS][4];
    float *out = p->c + i * p->c_stride + j;
    const float *a = p->a + i * p->a_row + e->k_start * p->a_col;
    const float *b = p->b + e->k_start * p->b_stride + j;

    for (int r = 0; r < PRODUCT_ROWS; r++)
        for (int v = 0; v < n_vectors; v++)
            c[r][v] =
                p->add ? _mm512_loadu_ps(out + r * p->c_stride + v * LANES) : _mm512_setzero_ps();
    for (int64_t k = e->k_start; k < e->k_end; k++) {
        __m512 row[4];

        for (int v = 0; v < n_vectors; v++)
            row[v] = _mm512_loadu_ps(b + v * LANES);
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            __m512 w = _mm512_set1_ps(a[r * p->a_row]);

            for (int v = 0; v < n_vectors; v++)
                c[r][v] = _mm512_fmadd_ps(w, row[v], c[r][v]);
        }
        a += p->a_col;
        b += p->b_stride;
    }
    for (int r = 0; r < PRODUCT_ROWS; r++)
        for (int v = 0; v < n_vectors; v++)
            _mm512_storeu_ps(out + r * p->c_stride + v * LANES, c[r][v]);
}

void attention_product_avx512(const struct tile_product *p)
{
    for (int64_t i = 0; i < product_rows(p); i += PRODUCT_ROWS) {
        struct product_range e = product_range_of(p, i);
        int64_t j = 0;

        for (; j + 4 * LANES <= e.n; j += 4 * LANES)
            block(p, i, j, &e, 4);
        if (j + 2 * LANES <= e.n) {
            block(p, i, j, &e, 2);
            j += 2 * LANES;
        }
        if (j < e.n)
            block(p, i, j, &e, 1);
    }
}

CPU_INLINE void transpose_16(float *out, const float *in, int64_t in_stride)
{
    __m512 rows[LANES];

    for (int r = 0; r < LANES; r++)
        rows[r] = _mm512_loadu_ps(in + r * in_stride);
    transpose_lanes(rows);
    for (int r = 0; r < LANES; r++)
        _mm512_storeu_ps(out + r * BLOCK, rows[r]);
}

void attention_transpose_avx512(float *out, const float *tile, int64_t width)
{
    for (int64_t i = 0; i < width; i += LANES)
        for (int r = 0; r < BLOCK; r += LANES)
            transpose_16(out + i * BLOCK + r, tile + r * width + i, width);
}
