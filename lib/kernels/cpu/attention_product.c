/*
 * attention_product.c - the small products of attention, for any instruction set
 *
 * Rows of c are taken four at a time and updated by four steps of k in one sweep along the row; c
 * stays in the first-level cache. attention_product_avx512.c does the same sums with c in
 * registers.
 */
#include "kernels/cpu/attention_impl.h"

CPU_INLINE void sweep(const struct tile_product *p, int64_t i, int64_t k, int64_t n)
{
    const float *a = p->a + i * p->a_row + k * p->a_col;
    const float *b0 = p->b + k * p->b_stride, *b1 = b0 + p->b_stride;
    const float *b2 = b1 + p->b_stride, *b3 = b2 + p->b_stride;
    float *c[PRODUCT_ROWS], w[PRODUCT_ROWS][4];

    for (int r = 0; r < PRODUCT_ROWS; r++) {
        c[r] = p->c + (i + r) * p->c_stride;
        for (int l = 0; l < 4; l++)
            w[r][l] = a[r * p->a_row + l * p->a_col];
    }
    INDEPENDENT_TURNS
    for (int64_t j = 0; j < n; j++)
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            float x = __builtin_fmaf(w[r][0], b0[j], c[r][j]);

            x = __builtin_fmaf(w[r][1], b1[j], x);
            x = __builtin_fmaf(w[r][2], b2[j], x);
            c[r][j] = __builtin_fmaf(w[r][3], b3[j], x);
        }
}

CPU_INLINE void product_body(const struct tile_product *p)
{
    for (int64_t i = 0; i < product_rows(p); i += PRODUCT_ROWS) {
        struct product_range e = product_range_of(p, i);

        if (!p->add)
            for (int r = 0; r < PRODUCT_ROWS; r++)
                memset(p->c + (i + r) * p->c_stride, 0, (size_t)e.n * sizeof *p->c);
        for (int64_t k = e.k_start; k < e.k_end; k += 4)
            sweep(p, i, k, e.n);
    }
}

static void product_plain(const struct tile_product *p)
{
    product_body(p);
}

CPU_TARGET_AVX2 static void product_avx2(const struct tile_product *p)
{
    product_body(p);
}

static void transpose(float *out, const float *tile, int64_t width)
{
    for (int64_t i = 0; i < width; i += WIDTH_STEP)
        for (int r = 0; r < BLOCK; r++)
            for (int l = 0; l < WIDTH_STEP; l++)
                out[(i + l) * BLOCK + r] = tile[r * width + i + l];
}

const struct tile_code *attention_tile_code(const struct cpu_kernels *cpu, enum dtype act)
{
    static const struct tile_code codes[] = {
        [CPU_ISA_PLAIN] = { product_plain, transpose },
        [CPU_ISA_AVX2] = { product_avx2, transpose },
        [CPU_ISA_AVX512] = { attention_product_avx512, attention_transpose_avx512 },
    };
    static const struct tile_code pairs = { attention_product_avx512bf16,
                                            attention_transpose_avx512 };

    return act == DTYPE_BF16 && cpu->has_avx512_bf16 ? &pairs : &codes[cpu->isa];
}
