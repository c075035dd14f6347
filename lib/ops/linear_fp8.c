/*
 * linear_fp8.c - products with a weight whose operands are rounded to e4m3 (fp8_recipe.h), and
 * their gradients
 *
 * Operands come as bf16, and each op rounds its own, or as codes that were made of what is stored
 * as bf16 (codes_output of op_info.h, fp8_weight_codes): no bit depends on what is kept,
 * recomputed, gathered, sliced or fused. Blocks lie within a row in the
 * forward and in dx, and so rows can be computed apart; with one scale of the whole operand they
 * cannot (slice_cut.c). That one is of a tensor of which ranks may have parts: the largest elements
 * of all parts are then an operand (program/fp8_scales.c).
 */
#include "ops/weight_product_impl.h"

int check_fp8_recipe(const struct op_shape *op, struct err *err)
{
    if (op->attributes.fp8 != FP8_BLOCKWISE && op->attributes.fp8 != FP8_TENSOR)
        return err_set(err, ERR_FAILED, "%s: fp8 is %d, wanted %d or %d", op_name(op->kind),
                       (int)op->attributes.fp8, FP8_BLOCKWISE, FP8_TENSOR);
    return 0;
}

static int recipe_check(const struct op_shape *op, struct err *err)
{
    if (check_fp8_recipe(op, err))
        return -1;
    if (op->attributes.e5m2_dy && op->attributes.fp8 != FP8_TENSOR)
        return err_set(err, ERR_FAILED, "%s: e5m2 has scales of blocks, wanted one",
                       op_name(op->kind));
    return 0;
}

int check_bf16_operand(const struct op_shape *op, struct err *err)
{
    const struct op_info *info = op_info(op->kind);

    if (op->in[OPS_FIRST].dtype != DTYPE_BF16)
        return err_set(err, ERR_FAILED, "%s: %s is %s, wanted bf16", info->name,
                       info->inputs[0].name, dtype_name(op->in[OPS_FIRST].dtype));
    return 0;
}

/* Rows that were rounded by what made them, with what each of their blocks' scales is made of. */
static int rows_check(const struct op_shape *op, int operand, struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    const struct tensor *x = &op->in[operand], *most = &op->in[ops_fp8_most(op->kind, operand)];
    const char *name = info->inputs[ops_fp8_most(op->kind, operand)].name;
    int64_t n = (x->cols + OPS_FP8_BLOCK - 1) / OPS_FP8_BLOCK;

    if (op->attributes.fp8 != FP8_BLOCKWISE)
        return err_set(err, ERR_FAILED, "%s: %s is u8 with one scale, wanted bf16", info->name,
                       info->inputs[operand].name);
    if (op->out[OPS_FIRST].dtype != DTYPE_BF16)
        return err_set(err, ERR_FAILED, "%s: %s is %s, wanted bf16", info->name,
                       info->outputs[0].name, dtype_name(op->out[OPS_FIRST].dtype));
    if (most->rows != x->rows || most->cols != n)
        return err_set(err, ERR_FAILED, "%s: %s is [%lld x %lld], wanted [%lld x %lld]", info->name,
                       name, (long long)most->rows, (long long)most->cols, (long long)x->rows,
                       (long long)n);
    return 0;
}

static int most_check(const struct op_shape *op, int operand, struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    const struct tensor *x = &op->in[operand], *most = &op->in[ops_fp8_most(op->kind, operand)];
    const char *name = info->inputs[ops_fp8_most(op->kind, operand)].name;
    bool is_coded = x->dtype == DTYPE_U8, has_one = op->attributes.fp8 == FP8_TENSOR;
    int64_t n = has_one ? 1 : ops_fp8_blocks(x->rows, x->cols);

    if (!tensor_given(most)) {
        if (is_coded)
            return err_set(err, ERR_FAILED, "%s: %s is missing, with codes", info->name, name);
        return 0;
    }
    if (is_coded && operand != LINEAR_W)
        return rows_check(op, operand, err);
    if (!is_coded && !has_one)
        return err_set(err, ERR_FAILED, "%s: %s is given, which blocks find themselves", info->name,
                       name);
    if (most->cols != n || (is_coded && most->rows != 1))
        return err_set(err, ERR_FAILED, "%s: %s is [%lld x %lld], wanted [%s x %lld]", info->name,
                       name, (long long)most->rows, (long long)most->cols, is_coded ? "1" : "*",
                       (long long)n);
    return 0;
}

static int product_check(const struct op_shape *op, struct err *err)
{
    bool is_coded = op->in[OPS_FIRST].dtype == DTYPE_U8;

    if ((!is_coded && check_bf16_operand(op, err)) || most_check(op, 0, err))
        return -1;
    return most_check(op, 1, err);
}

/* What is found of parts is joined before it is read, but where each part is a tensor: other
 * sequences, or a summand; or where blocks lie within a rank's part. */
static int want_most(const struct spread_query *q)
{
    bool is_dw = q->op->kind == OP_LINEAR_DW_FP8, has_one = q->op->attributes.fp8 == FP8_TENSOR;

    for (int i = 0; i < OPS_FP8_OPERANDS; i++) {
        int most = ops_fp8_most(q->op->kind, i);
        bool is_apart = q->in[i] == SPREAD_ROWS || q->in[i] == SPREAD_PARTIAL;

        if (i != LINEAR_W && q->op->in[i].dtype == DTYPE_U8) {
            if (spread_want(q, most, q->in[i]))
                return -1;
            continue;
        }
        if (i == LINEAR_W && !is_dw)
            is_apart = !has_one && q->in[i] != SPREAD_SAME;
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
        [LINEAR_X] = { "x", DIM_T, DIM_K, TYPE_ACT_OR_U8, OPERAND_PLAIN },
        [LINEAR_W] = { "w", DIM_N, DIM_K, TYPE_ACT_OR_U8, OPERAND_PLAIN },
        [LINEAR_B] = { "b", DIM_ONE, DIM_N, TYPE_F32, OPERAND_OPTIONAL },
        [LINEAR_FP8_X_MOST] = { "x_most", DIM_FREE, DIM_FREE, TYPE_F32, OPERAND_OPTIONAL },
        [LINEAR_FP8_W_MOST] = { "w_most", DIM_FREE, DIM_FREE, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_Y] = { "y", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS,
    .check_attributes = recipe_check,
    .check = product_check,
    .spread = spread_linear_fp8,
    .flops = flops_linear,
    .backward = backward_linear,
};

static const struct op_info linear_dx_fp8 = {
    .name = "linear_dx_fp8",
    .family = FAMILY_LINEAR,
    .n_inputs = 4,
    .inputs = {
        [LINEAR_DX_DY] = { "dy", DIM_T, DIM_N, TYPE_ACT_OR_U8, OPERAND_PLAIN },
        [LINEAR_DX_W] = { "w", DIM_N, DIM_K, TYPE_ACT_OR_U8, OPERAND_PLAIN },
        [LINEAR_GRAD_FP8_0_MOST] = { "dy_most", DIM_FREE, DIM_FREE, TYPE_F32, OPERAND_OPTIONAL },
        [LINEAR_GRAD_FP8_1_MOST] = { "w_most", DIM_FREE, DIM_FREE, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LINEAR_DX_DX] = { "dx", DIM_T, DIM_K, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_PRODUCT | TRAIT_BY_ROWS,
    .check_attributes = recipe_check,
    .check = product_check,
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
    .check = product_check,
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
    .check = check_bf16_operand,
    .spread = fp8_amax_spread,
    .flops_per_element = 1,
};

/* ---- weights ---- */

static int matrices_check(const struct op_shape *op, int input, struct err *err)
{
    const struct tensor *x = &op->in[OPS_FIRST], *matrices = &op->in[input];

    if (check_bf16_operand(op, err))
        return -1;
    if (x->stride && x->rows > 1 && x->stride != x->cols)
        return err_set(err, ERR_FAILED, "%s: x has a stride of %lld, wanted %lld",
                       op_name(op->kind), (long long)x->stride, (long long)x->cols);
    if (matrices->cols != OPS_FP8_MATRIX_COLS)
        return err_set(err, ERR_FAILED, "%s: matrices has %lld columns, wanted %d",
                       op_name(op->kind), (long long)matrices->cols, OPS_FP8_MATRIX_COLS);
    return 0;
}

static int weight_amax_check(const struct op_shape *op, struct err *err)
{
    return matrices_check(op, FP8_WEIGHT_AMAX_MATRICES, err);
}

static int weight_codes_check(const struct op_shape *op, struct err *err)
{
    return matrices_check(op, FP8_WEIGHT_CODES_MATRICES, err);
}

/* A rank's part of x begins where it says, if the part is one of flat memory. */
static int want_matrices(const struct spread_query *q, int matrices)
{
    enum spread begin = q->in[matrices + 1];

    if (begin == SPREAD_COLS && q->in[OPS_FIRST] == SPREAD_COLS && spread_given(q, matrices + 1))
        return spread_want(q, matrices, SPREAD_SAME);
    if (spread_want(q, matrices + 1, SPREAD_SAME))
        return -1;
    return spread_want(q, matrices, SPREAD_SAME);
}

static int weight_amax_spread(const struct spread_query *q)
{
    if (q->in[FP8_WEIGHT_AMAX_X] == SPREAD_PARTIAL)
        return spread_refuse(q, FP8_WEIGHT_AMAX_X, MAY_ROWS | MAY_COLS);
    spread_give_all(q, q->in[FP8_WEIGHT_AMAX_X] == SPREAD_SAME ? SPREAD_SAME : SPREAD_ROWS);
    return want_matrices(q, FP8_WEIGHT_AMAX_MATRICES);
}

static const struct op_info fp8_weight_amax = {
    .name = "fp8_weight_amax",
    .n_inputs = 3,
    .inputs = {
        [FP8_WEIGHT_AMAX_X] = { "x", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [FP8_WEIGHT_AMAX_MATRICES] = { "matrices", DIM_FREE, DIM_FREE, TYPE_I64, OPERAND_PLAIN },
        [FP8_WEIGHT_AMAX_BEGIN] = { "begin", DIM_ONE, DIM_ONE, TYPE_I64, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [FP8_WEIGHT_AMAX_MOST] = { "most", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_PLAIN },
    },
    .check_attributes = recipe_check,
    .check = weight_amax_check,
    .spread = weight_amax_spread,
    .flops_per_element = 1,
};

/* Where ranks have parts, what is found of these is joined, or (blocks within a part, and parts of
 * experts' matrices) is not. */
static int weight_codes_spread(const struct spread_query *q)
{
    enum spread x = q->in[FP8_WEIGHT_CODES_X], most = q->in[FP8_WEIGHT_CODES_MOST];
    bool has_parts = q->op->attributes.fp8 != FP8_TENSOR || q->op->attributes.n_experts;
    bool is_own = most == SPREAD_ROWS && x != SPREAD_SAME && has_parts;

    if (x == SPREAD_PARTIAL)
        return spread_refuse(q, FP8_WEIGHT_CODES_X, MAY_ROWS | MAY_COLS);
    if (!is_own && spread_want(q, FP8_WEIGHT_CODES_MOST, SPREAD_SAME))
        return -1;
    q->out[FP8_WEIGHT_CODES_CODES] = x;
    q->out[FP8_WEIGHT_CODES_JOINED] = is_own ? SPREAD_ROWS : SPREAD_SAME;
    return want_matrices(q, FP8_WEIGHT_CODES_MATRICES);
}

static const struct op_info fp8_weight_codes = {
    .name = "fp8_weight_codes",
    .n_inputs = 4,
    .inputs = {
        [FP8_WEIGHT_CODES_X] = { "x", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [FP8_WEIGHT_CODES_MOST] = { "most", DIM_FREE, DIM_N, TYPE_F32, OPERAND_PLAIN },
        [FP8_WEIGHT_CODES_MATRICES] = { "matrices", DIM_FREE, DIM_FREE, TYPE_I64, OPERAND_PLAIN },
        [FP8_WEIGHT_CODES_BEGIN] = { "begin", DIM_ONE, DIM_ONE, TYPE_I64, OPERAND_OPTIONAL },
    },
    .n_outputs = 2,
    .outputs = {
        [FP8_WEIGHT_CODES_CODES] = { "codes", DIM_R, DIM_D, TYPE_U8, OPERAND_PLAIN },
        [FP8_WEIGHT_CODES_JOINED] = { "joined", DIM_ONE, DIM_N, TYPE_F32, OPERAND_PLAIN },
    },
    .check_attributes = recipe_check,
    .check = weight_codes_check,
    .spread = weight_codes_spread,
    .flops_per_element = 2,
};

const struct op_info *const linear_fp8_ops[N_OP_KINDS] = {
    [OP_LINEAR_FP8] = &linear_fp8,           [OP_LINEAR_DX_FP8] = &linear_dx_fp8,
    [OP_LINEAR_DW_FP8] = &linear_dw_fp8,     [OP_FP8_AMAX] = &fp8_amax,
    [OP_FP8_WEIGHT_AMAX] = &fp8_weight_amax, [OP_FP8_WEIGHT_CODES] = &fp8_weight_codes,
};
