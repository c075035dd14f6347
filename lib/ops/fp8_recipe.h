/*
 * fp8_recipe.h - products of numbers of 8 bits: how operands are scaled and rounded (ops.h includes
 * this)
 *
 * An operand of a product over k is cut into blocks, each of which has a scale:
 *
 *   blockwise  activations and gradients: 128 neighbours along k of one row (or column); weights:
 *              128 x 128 (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3)
 *   tensor     the whole tensor of which the operand may be a part: the ranks that divide a matrix,
 *              or the sequences of a micro-batch, have one scale together
 *
 *   scale = max |x| / 448, code = x / scale as e4m3 (Micikevicius et al. 2022), to nearest, halves
 *   to even, at most 448
 *
 * as in codec.h: a block of zeros, or whose scale is too small, is coded as zeros; the scale of a
 * block with an infinity or a NaN is NaN, and so is what it is multiplied with: the gradient's norm
 * tells. Blocks at an operand's end may be shorter. An element of the product is
 *
 *   blockwise  sum = fma(scale of a * scale of b, sum of the products of 128 codes, sum), in fp32,
 *              over the blocks of k, in ascending order
 *   tensor     (scale of a * scale of b) * sum of the products of all codes
 *
 * where products of codes are exact, and their sum is made as other products' sums are.
 */
#ifndef OPS_FP8_RECIPE_H
#define OPS_FP8_RECIPE_H

#include <stdint.h>

enum fp8_recipe { FP8_NONE, FP8_BLOCKWISE, FP8_TENSOR };

#define OPS_FP8_BLOCK 128
#define OPS_FP8_OPERANDS 2 /* of a product that are rounded: its first inputs */
/* Rows and columns of a weight are multiples of it: libraries want that. */
#define OPS_FP8_MULTIPLE 16

/*
 * A matrix in flat memory: where its first element is, its shape, and its first block among all
 * matrices'. A row of an operand (ops.h, fp8_weight_amax), in ascending order of blocks; its first
 * element is at a block of the gradient norm.
 */
struct ops_fp8_matrix {
    int64_t first, rows, cols, first_block;
};
#define OPS_FP8_MATRIX_COLS 4

/* Blocks of 128 x 128 of a matrix. */
static inline int64_t ops_fp8_blocks(int64_t rows, int64_t cols)
{
    return ((rows + OPS_FP8_BLOCK - 1) / OPS_FP8_BLOCK) *
           ((cols + OPS_FP8_BLOCK - 1) / OPS_FP8_BLOCK);
}

/* What a job chooses. */
struct fp8_choice {
    enum fp8_recipe recipe;
    int edge_layers; /* so many layers at either end of the model are left as they are */
    int wide_dw;     /* gradients of weights are products of bf16 */
    int by_product;  /* each product rounds its weight, not the step (program/fp8_weights.c) */
};

#endif
