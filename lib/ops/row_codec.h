/*
 * row_codec.h - activations in fewer bytes on their way between tensor-parallel ranks
 *
 * AccTFM's pair (Zeng et al. 2022, IEEE TPDS): of the n rows (tokens) that a rank sends to another,
 * the ceil(ratio n) of highest score, of equal ones the first, travel in full; the others are
 * quantised piece by piece (Fang et al. 2020, "Post-training piecewise linear quantization",
 * arXiv:2002.00104, eq. 7): what is at most t away from zero and farther have grids of their
 * own, of equal numbers of levels, a code the middle of its level.
 *
 *   bits 8   sign, piece, 6 bits of level;   bits 4   sign, piece, 2 bits of level, two in a byte,
 *                                                     the first in the lower half
 *   t / max  ln(0.8614 s + 0.6079) / s with s = max / root mean square of the row: the best for
 *            normally distributed elements; between whole s by a straight line
 *
 * A row of codes has the numbers of the rows in full (ascending), these rows, then of each other
 * row t, max and its codes. A row with an element that is not finite stands for NaN. Nothing is fed
 * back: the error of a step is lost.
 */
#ifndef OPS_ROW_CODEC_H
#define OPS_ROW_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "ops/codec.h"

#ifdef __CUDACC__
#define ROW_CODEC_INLINE static __host__ __device__ inline
#else
#define ROW_CODEC_INLINE static inline
#endif

/* What a job chooses. */
struct row_codec_choice {
    double ratio; /* of rows in full; 0: rows travel as they are */
    int bits;     /* of the others' elements */
};

/* Rows of one part, as they travel. */
struct row_codes {
    int64_t n_rows, n_full, cols;
    int64_t element_bytes; /* of rows in full */
    int bits;
};

static inline struct row_codes ops_row_codes(double ratio, int bits, int64_t n_rows, int64_t cols,
                                             size_t element_bytes)
{
    struct row_codes c = { n_rows, ops_top_k(ratio, n_rows), cols, (int64_t)element_bytes, bits };

    return c;
}

/* A quantised row, and where rows begin. */
ROW_CODEC_INLINE int64_t row_codes_small_bytes(const struct row_codes *c)
{
    return 2 * (int64_t)sizeof(float) + c->cols * c->bits / 8;
}

ROW_CODEC_INLINE int64_t row_codes_full_at(const struct row_codes *c, int64_t i)
{
    return c->n_full * (int64_t)sizeof(int32_t) + i * c->cols * c->element_bytes;
}

ROW_CODEC_INLINE int64_t row_codes_small_at(const struct row_codes *c, int64_t i)
{
    return row_codes_full_at(c, c->n_full) + i * row_codes_small_bytes(c);
}

ROW_CODEC_INLINE int64_t row_codes_bytes(const struct row_codes *c)
{
    return row_codes_small_at(c, c->n_rows - c->n_full);
}

/* t / max by s - 1 for s = 1 to 32. */
#define ROW_BREAKS 32
#define ROW_BREAK_VALUES \
    0.384786f, 0.423084f, 0.386893f, 0.349895f, 0.318454f, 0.292294f, 0.270395f, 0.251848f, \
        0.235946f, 0.222158f, 0.210080f, 0.199405f, 0.189894f, 0.181360f, 0.173655f, 0.166660f, \
        0.160276f, 0.154424f, 0.149037f, 0.144061f, 0.139447f, 0.135155f, 0.131153f, 0.127410f, \
        0.123901f, 0.120603f, 0.117498f, 0.114568f, 0.111798f, 0.109175f, 0.106687f, 0.104324f

/* Levels of a piece. */
ROW_CODEC_INLINE int row_code_levels(int bits)
{
    return bits == 8 ? 64 : 4;
}

#endif
