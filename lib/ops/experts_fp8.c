/*
 * experts_fp8.c - products of experts whose operands are rounded to e4m3 (fp8_recipe.h), and their
 * gradients
 *
 * Of each expert they are linear_fp8's of its rows. An expert has its rows on one rank, in an order
 * that no layout changes but the number of ranks of experts, so blocks along its tokens are the
 * same however experts are cut into groups. With the recipe `tensor` what a rank has of an expert's
 * rows, and of its matrix, is a tensor of its own: no scale depends on other experts' rows, nor is
 * one joined over ranks.
 */
#include "ops/weight_product_impl.h"

static int recipe_check(const struct op_shape *op, struct err *err)
{
    if (check_fp8_recipe(op, err))
        return -1;
    if (op->attributes.e5m2_dy)
        return err_set(err, ERR_FAILED, "%s: dy is rounded to e5m2, wanted e4m3",
                       op_name(op->kind));
    return 0;
}

/* Codes have the largest elements of their blocks beside them. */
static int product_check(const struct op_shape *op, struct err *err)
{
    const char *name = op_name(op->kind);
    const struct tensor *w = &op->in[EXPERT_LINEAR_W], *most = &op->in[EXPERT_LINEAR_FP8_W_MOST];
    int64_t m = op->in[EXPERT_LINEAR_ENDS].cols;

    if (check_bf16_operand(op, err) || check_expert_linear(op, err))
        return -1;
    const struct ops_fp8_matrix all = { 0, w->rows / m, w->cols, 0, m };
    int64_t n = ops_fp8_matrix_blocks(&all, op->attributes.fp8 == FP8_TENSOR);
    if (w->dtype != DTYPE_U8)
        return 0;
    if (!tensor_given(most))
        return err_set(err, ERR_FAILED, "%s: w_most is missing, with codes", name);
    if (most->rows != 1 || most->cols != n)
        return err_set(err, ERR_FAILED, "%s: w_most is [%lld x %lld], wanted [1 x %lld]", name,
                       (long long)most->rows, (long long)most->cols, (long long)n);
    return 0;
}

/* Where ranks have parts of w, blocks, or the one scale, are of a rank's part. */
static int want_most(const struct spread_query *q)
{
    enum spread w = q->in[EXPERT_LINEAR_W], most = q->in[EXPERT_LINEAR_FP8_W_MOST];

    if (spread_given(q, EXPERT_LINEAR_FP8_W_MOST) && w != SPREAD_SAME && most == SPREAD_ROWS)
        return 0;
    return spread_want(q, EXPERT_LINEAR_FP8_W_MOST, SPREAD_SAME);
}

static int forward_spread(const struct spread_query *q)
{
    return spread_expert_linear(q) ? -1 : want_most(q);
}

static int dx_spread(const struct spread_query *q)
{
    return spread_expert_linear_dx(q) ? -1 : want_most(q);
}

static const struct op_info expert_linear_fp8 = {
    EXPERT_LINEAR_ROW(TYPE_ACT_OR_U8),
    .name = "expert_linear_fp8",
    .n_inputs = 4,
    .inputs[EXPERT_LINEAR_FP8_W_MOST] = { "w_most", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_OPTIONAL },
    .check_attributes = recipe_check,
    .check = product_check,
    .spread = forward_spread,
};

static const struct op_info expert_linear_dx_fp8 = {
    EXPERT_LINEAR_DX_ROW(TYPE_ACT_OR_U8),
    .name = "expert_linear_dx_fp8",
    .n_inputs = 4,
    .inputs[EXPERT_LINEAR_FP8_W_MOST] = { "w_most", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_OPTIONAL },
    .check_attributes = recipe_check,
    .check = product_check,
    .spread = dx_spread,
};

static const struct op_info expert_linear_dw_fp8 = {
    EXPERT_LINEAR_DW_ROW,
    .name = "expert_linear_dw_fp8",
    .check_attributes = recipe_check,
    .check = check_bf16_operand,
};

const struct op_info *const experts_fp8_ops[N_OP_KINDS] = {
    [OP_EXPERT_LINEAR_FP8] = &expert_linear_fp8,
    [OP_EXPERT_LINEAR_DX_FP8] = &expert_linear_dx_fp8,
    [OP_EXPERT_LINEAR_DW_FP8] = &expert_linear_dw_fp8,
};
