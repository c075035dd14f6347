/*
 * fp8_recipe.h - products of numbers of 8 bits: how operands are scaled and rounded (ops.h includes
 * this)
 *
 * An operand of a product over k is cut into blocks, each of which has a scale:
 *
 *   blockwise  activations and gradients: 128 neighbours along k of one row (or column); weights:
 *              128 x 128 (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3)
 *   tensor     the whole tensor of which the operand may be a part: the ranks that divide a matrix,
 *              or the sequences of a micro-batch, have one scale together; of experts, what a
 *              rank has of one's rows, or of its matrix, as NVIDIA's TransformerEngine has it
 *              (GroupedLinear: a quantizer for each expert's rows and weight)
 *
 *   scale = max |x| / 448, code = x / scale as e4m3 (Micikevicius et al. 2022), to nearest, halves
 *   to even, at most 448
 *
 * A gradient dy with one scale may be rounded to e5m2 instead, then with 57344 in the place of 448;
 * the other operand never is: two of e5m2 are no product that libraries have.
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

#define OPS_E5M2_MAX 57344.0f
#define OPS_FP8_BLOCK 128
#define OPS_FP8_OPERANDS 2 /* of a product that are rounded: its first inputs */
/* Rows and columns of a weight are multiples of it: libraries want that. */
#define OPS_FP8_MULTIPLE 16

/*
 * Matrices in flat memory, n of one shape, one behind the other (one; or those of experts): where
 * the first element is, the shape of each, and the first block among all rows'. Blocks are of one
 * matrix each, and those of one come behind those of the one before. A row of an operand (ops.h,
 * fp8_weight_amax), in ascending order of blocks; its first element is at a block of the gradient
 * norm.
 */
struct ops_fp8_matrix {
    int64_t first, rows, cols, first_block, n;
};
#define OPS_FP8_MATRIX_COLS 5

/* Blocks of 128 x 128 of a matrix. */
static inline int64_t ops_fp8_blocks(int64_t rows, int64_t cols)
{
    return ((rows + OPS_FP8_BLOCK - 1) / OPS_FP8_BLOCK) *
           ((cols + OPS_FP8_BLOCK - 1) / OPS_FP8_BLOCK);
}

/* Blocks of all n matrices. */
static inline int64_t ops_fp8_matrix_blocks(const struct ops_fp8_matrix *m, int has_one_scale)
{
    return m->n * (has_one_scale ? 1 : ops_fp8_blocks(m->rows, m->cols));
}

/* What a job chooses. */
struct fp8_choice {
    enum fp8_recipe recipe;
    int edge_layers; /* so many layers at either end of the model are left as they are */
    int wide_dw;     /* gradients of weights are products of bf16 */
    int by_product;  /* each product rounds its weight, not the step (program/fp8_weights.c) */
    int has_experts; /* products of experts, too */
    int e5m2_dy;     /* with FP8_TENSOR: gradients of outputs are rounded to e5m2, but experts' */
};

#endif
