/*
 * linear_fp8.c - products with a weight whose operands are rounded to e4m3 (fp8_recipe.h), and
 * their gradients
 *
 * Operands come as bf16, and each op rounds its own: what is rounded is what other ops have stored,
 * so no bit depends on what is kept, recomputed, gathered or sliced. Blocks lie within a row in the
 * forward and in dx, and so rows can be computed apart; with one scale of the whole operand they
 * cannot (slice_cut.c).
 */
#include "ops/weight_product_impl.h"

static int recipe_check(const struct op_shape *op, struct err *err)
{
    if (op->attributes.fp8 != FP8_BLOCKWISE && op->attributes.fp8 != FP8_TENSOR)
        return err_set(err, ERR_FAILED, "%s: fp8 is %d, wanted %d or %d", op_name(op->kind),
                       (int)op->attributes.fp8, FP8_BLOCKWISE, FP8_TENSOR);
    return 0;
}

static int operands_check(const struct op_shape *op, struct err *err)
{
    const struct op_info *info = op_info(op->kind);

    if (op->in[OPS_FIRST].dtype == DTYPE_BF16)
        return 0;
    return err_set(err, ERR_FAILED, "%s: %s is %s, wanted bf16", info->name, info->inputs[0].name,
                   dtype_name(op->in[OPS_FIRST].dtype));
}

static const struct op_info linear_fp8 = {
    .name = "linear_fp8",
    .family = FAMILY_LINEAR,
    .n_inputs = 3,
    .inputs = {
        [LINEAR_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_W] = { "w", DIM_N, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_B] = { "b", DIM_ONE, DIM_N, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_Y] = { "y", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS,
    .check_attributes = recipe_check,
    .check = operands_check,
    .spread = spread_linear,
    .flops = flops_linear,
    .backward = backward_linear,
};

static const struct op_info linear_dx_fp8 = {
    .name = "linear_dx_fp8",
    .family = FAMILY_LINEAR,
    .n_inputs = 2,
    .inputs = {
        [LINEAR_DX_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_DX_W] = { "w", DIM_N, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_DX_DX] = { "dx", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS,
    .check_attributes = recipe_check,
    .check = operands_check,
    .spread = spread_linear_dx,
    .flops = flops_linear_dx,
};

static const struct op_info linear_dw_fp8 = {
    .name = "linear_dw_fp8",
    .family = FAMILY_LINEAR,
    .n_inputs = 2,
    .inputs = {
        [LINEAR_DW_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_DW_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [LINEAR_DW_DW] = { "dw", DIM_N, DIM_K, TYPE_KEPT, OPERAND_ACCUMULATED },
        [LINEAR_DW_DB] = { "db", DIM_ONE, DIM_N, TYPE_F32, OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
    },
    .traits = TRAIT_PRODUCT,
    .check_attributes = recipe_check,
    .check = operands_check,
    .spread = spread_linear_dw,
    .flops = flops_linear_dw,
};

const struct op_info *const linear_fp8_ops[N_OP_KINDS] = {
    [OP_LINEAR_FP8] = &linear_fp8,
    [OP_LINEAR_DX_FP8] = &linear_dx_fp8,
    [OP_LINEAR_DW_FP8] = &linear_dw_fp8,
};
