/*
 * linear_fp8.c - products with a weight whose operands are rounded to e4m3 (fp8_recipe.h), and
 * their gradients
 *
 * Operands come as bf16, and each op rounds its own: what is rounded is what other ops have stored,
 * so no bit depends on what is kept, recomputed, gathered or sliced. Blocks lie within a row in the
 * forward and in dx, and so rows can be computed apart; with one scale of the whole operand they
 * cannot (slice_cut.c). That one is of a tensor of which ranks may have parts: the largest elements
 * of all parts are then an operand (program/fp8_scales.c).
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

    if (op->in[OPS_FIRST].dtype != DTYPE_BF16)
        return err_set(err, ERR_FAILED, "%s: %s is %s, wanted bf16", info->name,
                       info->inputs[0].name, dtype_name(op->in[OPS_FIRST].dtype));
    for (int i = 0; i < OPS_FP8_OPERANDS && op->attributes.fp8 == FP8_BLOCKWISE; i++)
        if (tensor_given(&op->in[ops_fp8_most(op->kind, i)]))
            return err_set(err, ERR_FAILED, "%s: %s is given, which blocks find themselves",
                           info->name, info->inputs[ops_fp8_most(op->kind, i)].name);
    return 0;
}

/* What is found of parts is joined before it is read, but where each part is a tensor: other
 * sequences, or a summand. */
static int want_most(const struct spread_query *q)
{
    for (int i = 0; i < OPS_FP8_OPERANDS; i++) {
        int most = ops_fp8_most(q->op->kind, i);
        bool is_weight = i == LINEAR_W && q->op->kind != OP_LINEAR_DW_FP8;
        bool is_apart = !is_weight && (q->in[i] == SPREAD_ROWS || q->in[i] == SPREAD_PARTIAL);

        if (q->in[most] == SPREAD_ROWS && is_apart && spread_given(q, most))
            continue;
        if (spread_want(q, most, SPREAD_SAME))
            return -1;
    }
    return 0;
}

static int spread_linear_fp8(const struct spread_query *q)
{
    return spread_linear(q) ? -1 : want_most(q);
}

static int spread_linear_dx_fp8(const struct spread_query *q)
{
    return spread_linear_dx(q) ? -1 : want_most(q);
}

static int spread_linear_dw_fp8(const struct spread_query *q)
{
    return spread_linear_dw(q) ? -1 : want_most(q);
}

static const struct op_info linear_fp8 = {
    .name = "linear_fp8",
    .family = FAMILY_LINEAR,
    .n_inputs = 5,
    .inputs = {
        [LINEAR_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_W] = { "w", DIM_N, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_B] = { "b", DIM_ONE, DIM_N, TYPE_F32, OPERAND_OPTIONAL },
        [LINEAR_FP8_X_MOST] = { "x_most", DIM_FREE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
        [LINEAR_FP8_W_MOST] = { "w_most", DIM_FREE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_Y] = { "y", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS,
    .check_attributes = recipe_check,
    .check = operands_check,
    .spread = spread_linear_fp8,
    .flops = flops_linear,
    .backward = backward_linear,
};

static const struct op_info linear_dx_fp8 = {
    .name = "linear_dx_fp8",
    .family = FAMILY_LINEAR,
    .n_inputs = 4,
    .inputs = {
        [LINEAR_DX_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_DX_W] = { "w", DIM_N, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_GRAD_FP8_0_MOST] = { "dy_most", DIM_FREE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
        [LINEAR_GRAD_FP8_1_MOST] = { "w_most", DIM_FREE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_DX_DX] = { "dx", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS,
    .check_attributes = recipe_check,
    .check = operands_check,
    .spread = spread_linear_dx_fp8,
    .flops = flops_linear_dx,
};

static const struct op_info linear_dw_fp8 = {
    .name = "linear_dw_fp8",
    .family = FAMILY_LINEAR,
    .n_inputs = 4,
    .inputs = {
        [LINEAR_DW_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_DW_X] = { "x", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
        [LINEAR_GRAD_FP8_0_MOST] = { "dy_most", DIM_FREE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
        [LINEAR_GRAD_FP8_1_MOST] = { "x_most", DIM_FREE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 2,
    .outputs = {
        [LINEAR_DW_DW] = { "dw", DIM_N, DIM_K, TYPE_KEPT, OPERAND_ACCUMULATED },
        [LINEAR_DW_DB] = { "db", DIM_ONE, DIM_N, TYPE_F32, OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
    },
    .traits = TRAIT_PRODUCT,
    .check_attributes = recipe_check,
    .check = operands_check,
    .spread = spread_linear_dw_fp8,
    .flops = flops_linear_dw,
};

/* Each rank's own where it has a part, or a summand. */
static int fp8_amax_spread(const struct spread_query *q)
{
    spread_give_all(q, q->in[FP8_AMAX_X] == SPREAD_SAME ? SPREAD_SAME : SPREAD_ROWS);
    return 0;
}

static const struct op_info fp8_amax = {
    .name = "fp8_amax",
    .n_inputs = 1,
    .inputs = {
        [FP8_AMAX_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [FP8_AMAX_MOST] = { "most", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .check = operands_check,
    .spread = fp8_amax_spread,
    .flops_per_element = 1,
};

const struct op_info *const linear_fp8_ops[N_OP_KINDS] = {
    [OP_LINEAR_FP8] = &linear_fp8,
    [OP_LINEAR_DX_FP8] = &linear_dx_fp8,
    [OP_LINEAR_DW_FP8] = &linear_dw_fp8,
    [OP_FP8_AMAX] = &fp8_amax,
};
