/*
 * codec.h - gradients in fewer bytes, on their way between ranks
 *
 * What a codec loses of a sum's summand is added to the next step's (error feedback: Seide et al.
 * 2014; Karimireddy et al. 2019), so that over many steps nothing is lost.
 *
 *   int8   blocks of OPS_CODE_BLOCK elements: scale = max |x| / 127, code = x / scale to nearest,
 *          halves to even; stands for code * scale
 *   fp8    likewise: scale = max |x| / 448, code is x / scale as e4m3 (Micikevicius et al. 2022)
 *   topk   of each parameter (a rank's part) the ceil(ratio n) elements of largest |x|, of equal ones
 *          the first, in fp32 with their numbers (Strom 2015; Lin et al. 2018); a NaN is the
 *          largest of all
 *   powersgd  of each matrix M [r x c] two factors of `rank` columns in place of r c elements (Vogels
 *          et al. 2019): P = M Q, added over ranks and made orthonormal, then Q = M' P, added; P Q' is
 *          the sum's projection. Q begins with the last step's, made orthonormal; a column that then
 *          hangs on others (at first all: they are zeros) becomes a random one, so that a direction
 *          which a matrix lacked is found when it has it. In P it becomes zeros: rows and columns of
 *          zeros are zeros in the sum. Vectors, and matrices that the factors would not shorten,
 *          travel as they are
 *
 * A row of codes has the scales of its blocks, in fp32, then a byte of each element; the last block
 * may be shorter. A block of zeros, or whose scale is too small, is coded as zeros. The scale of a
 * block with an infinity or a NaN is NaN, and so is all that it stands for: the gradient's norm
 * tells. Zeros are left of it: of what lies between parameters the next step finds what is left.
 *
 * The ops, in the notation of ops/ops.h:
 *
 *   encode              x~[1 x n] fp32 -> codes[R x b] u8, sums[1 x 2] fp64
 *                         x in fewer bytes, by `codec` (ops/codec.h): a row of codes for each of R
 *                         equal parts. x becomes what is lost, x - decoded, in fp32. sums: of the
 *                         squares of x, and of what is lost
 *   decode              codes[R x b] u8 -> y[1 x n] fp32
 *                         y = the tree sum of what the R rows stand for, each element decoded in
 *                         fp32
 *   top_k               x~[1 x n] fp32, parts[1 x 2 P] i32 -> pairs[1 x 2 K] i32, sums[1 x 2] fp64
 *                         of each of P parts of x (its first element, its length; ascending) the
 *                         ops_top_k(`ratio`) elements of largest magnitude: their numbers in x, of
 *                         all parts, ascending, then their bits. They become 0 in x. sums: encode's
 *   add_pairs           pairs[R x 2 K] i32 -> y[1 x n] fp32
 *                         y = the tree sum of what the R rows stand for, 0 where they have nothing
 *   encode_rows         x[R n x d] act or fp32, scores[R n x 1] fp32 -> codes[R x b] u8
 *                         each n rows of x in fewer bytes: the `ratio` of highest scores in full, the
 *                         others in `bits` (ops/row_codec.h)
 *   decode_rows         codes[R x b] u8 -> y[n x d], or [R n x d] act or fp32
 *                         y = the tree sum of what the R rows stand for, in fp32; `joined`: these,
 *                         one below the other. `ratio` and `bits` are those of encode_rows
 *   add_error           error[1 x n] fp32, scale, x~[1 x n] fp32
 *                         x += error * scale, a power of two: gradients have it as a factor
 *   keep_error          left[1 x n] fp32, skip, error~[1 x n] fp32, scalars?, scale?
 *                         error = left / scale (without one: left), unless skip is set; with
 *                         scalars, nor before update `start` (counted from 0)
 *   low_rank_basis      x[1 x n] fp32, parts[1 x 2 P] i32 -> y[1 x n] fp32
 *                         each of P parts of x (its first element, its rows; ascending) is a matrix
 *                         of `rank` columns, at most as many as rows: y has an orthonormal basis of
 *                         them (Gram-Schmidt in fp64); columns that hang on those before become
 *                         random ones where `fills`, else zeros. What lies between parts is copied
 *   low_rank_left       x[1 x n] fp32, parts[1 x 5 P] i32, right[1 x m] fp32 -> left[1 x l] fp32
 *                         of each matrix of x (struct ops_factored) times its right factor, of
 *                         `rank` columns: the left one. Other parts are copied
 *   low_rank_right      x[1 x n] fp32, parts, left[1 x l] fp32 -> right[1 x m] fp32
 *                         of each matrix, transposed, times its left factor: the right one
 *   low_rank_sum        x~[1 x n] fp32, parts, left, right -> y[1 x n] fp32, sums[1 x 2] fp64
 *                         y = left right' of each matrix, 0 between parts, left of the others. x
 *                         becomes what is lost: x - `scale` y of matrices, 0 of other parts; between
 *                         parts it stays. sums: encode's
 */
#ifndef OPS_CODEC_H
#define OPS_CODEC_H

#include <stdbool.h>
#include <stdint.h>

enum codec { CODEC_NONE, CODEC_INT8, CODEC_FP8, CODEC_TOP_K, CODEC_POWERSGD };

/* What a job chooses. */
struct codec_choice {
    enum codec codec;
    double ratio;  /* top-k: of elements that are sent */
    int rank;      /* powersgd: columns of a factor */
    int64_t start; /* updates before the first that is compressed; less than OPS_UPDATES_MAX */
};

/* Elements that top-k sends of n > 0. */
static inline int64_t ops_top_k(double ratio, int64_t n)
{
    int64_t k = (int64_t)(ratio * (double)n);

    k += (double)k < ratio * (double)n;
    return k < 1 ? 1 : k > n ? n : k;
}

#define OPS_RANK_MAX 64
#define OPS_DEPENDENT \
    1e-9 /* a column of which no more is left without those before hangs on them */

/* Whether factors of a matrix have fewer elements than it has. */
static inline bool ops_is_low_rank(int rank, int64_t rows, int64_t cols)
{
    return (rows + cols) * rank < rows * cols;
}

/*
 * A part of a flat cell: a matrix, whose left factor begins at element `left` of all left factors
 * and its right one at `right` of all right ones, or elements that travel as they are (rows is 1),
 * among the left factors; right is then -1.
 */
struct ops_factored {
    int32_t first, rows, cols, left, right;
};
enum { OPS_FACTORED_WORDS = 5 };

/* Kernels take so many rows of a matrix, so many columns, or so many of the elements of a vector at
 * a time. */
enum { OPS_FACTOR_ROWS = 32, OPS_FACTOR_COLS = 64, OPS_FACTOR_ELEMENTS = 16384 };

/* No fewer than pieces of that many rows, or elements, that there are of n_parts parts whose left
 * factors have n elements. */
static inline int64_t ops_factor_row_tiles(int rank, int64_t n_parts, int64_t n)
{
    return n_parts + n / ((int64_t)rank * OPS_FACTOR_ROWS) + n / OPS_FACTOR_ELEMENTS;
}

#define OPS_CODE_BLOCK 256
#define OPS_INT8_MAX 127.0f
#define OPS_E4M3_MAX 448.0f

static inline int64_t ops_code_blocks(int64_t n)
{
    return (n + OPS_CODE_BLOCK - 1) / OPS_CODE_BLOCK;
}

/* Sums of squares are of tiles of so many blocks of a part. */
#define OPS_CODE_TILE_BLOCKS 16

static inline int64_t ops_code_tiles(int64_t n)
{
    return (ops_code_blocks(n) + OPS_CODE_TILE_BLOCKS - 1) / OPS_CODE_TILE_BLOCKS;
}

/* Bytes of the row of codes of n elements: a multiple of 4. */
static inline int64_t ops_code_bytes(int64_t n)
{
    return ops_code_blocks(n) * (int64_t)sizeof(float) + (n + 3) / 4 * 4;
}

#endif
