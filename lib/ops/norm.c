/*
 * norm.c - RMSNorm, LayerNorm, the norms of q and k heads, rows of length one
 */
#include "ops/family_impl.h"

static const struct op_fusion add_then_rmsnorm = { .norm = OP_RMSNORM, .fused = OP_ADD_RMSNORM };
static const struct op_fusion add_then_layernorm = { .norm = OP_LAYERNORM,
                                                     .fused = OP_ADD_LAYERNORM };

/*
 * A norm's backward is one op for its input and its parameters, and folds in what the residual path
 * has brought already, so that no separate add runs over the stream.
 */
static void rmsnorm_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[RMSNORM_Y]);
    int x = op->in[RMSNORM_X], w = op->in[RMSNORM_W];
    int add = b->take_gradient(b, x), dx = backward_like(b, x);

    b->emit(b, &(struct op_node){
                   .kind = OP_RMSNORM_GRAD,
                   .attributes = op->attributes,
                   .in = { [RMSNORM_GRAD_DY] = dy,
                           [RMSNORM_GRAD_X] = x,
                           [RMSNORM_GRAD_W] = w,
                           [RMSNORM_GRAD_RSTD] = op->out[RMSNORM_RSTD],
                           [RMSNORM_GRAD_ADD] = add },
                   .out = { [RMSNORM_GRAD_DX] = dx, [RMSNORM_GRAD_DW] = b->accumulator(b, w) } });
    b->add_gradient(b, x, dx);
}

static const struct op_info rmsnorm = {
    .name = "rmsnorm",
    .family = FAMILY_NORM,
    .n_inputs = 2,
    .inputs = {
        [RMSNORM_X] = { "x", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        [RMSNORM_W] = { "w", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 4,
    .outputs = {
        [RMSNORM_Y] = { "y", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [RMSNORM_RSTD] = { "rstd", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        CODED(RMSNORM, DIM_D),
    },
    .codes_output = 1 + RMSNORM_CODES,
    .attributes = ATTRIBUTE_EPS,
    .traits = TRAIT_CHEAP | TRAIT_BY_ROWS,
    .feature = FEATURE_RMSNORM,
    .fusion = &add_then_rmsnorm,
    .spread_form = { .data = IN(RMSNORM_X), .allowed = MAY_ROWS },
    .flops_per_element = 4,
    .backward = rmsnorm_backward,
};

static const struct op_info rmsnorm_grad = {
    .name = "rmsnorm_grad",
    .family = FAMILY_NORM,
    .n_inputs = 5,
    .inputs = {
        [RMSNORM_GRAD_DY] = { "dy", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [RMSNORM_GRAD_X] = { "x", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        [RMSNORM_GRAD_W] = { "w", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [RMSNORM_GRAD_RSTD] = { "rstd", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [RMSNORM_GRAD_ADD] = { "add", DIM_T, DIM_D, TYPE_STREAM, OPERAND_OPTIONAL },
    },
    .n_outputs = 5,
    .outputs = {
        [RMSNORM_GRAD_DX] = { "dx", DIM_T, DIM_D, TYPE_STREAM, OPERAND_OPTIONAL },
        [RMSNORM_GRAD_DW] = { "dw", DIM_ONE, DIM_D, TYPE_F32,
                              OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
        [RMSNORM_GRAD_COPY] = { "copy", DIM_T, DIM_D, TYPE_ACT, OPERAND_OPTIONAL | OPERAND_CAST },
        CODED(RMSNORM_GRAD, DIM_D),
    },
    .codes_output = 1 + RMSNORM_GRAD_CODES,
    .traits = TRAIT_BY_ROWS,
    .spread_form = { .data = IN(RMSNORM_GRAD_DY) | IN(RMSNORM_GRAD_X) | IN(RMSNORM_GRAD_RSTD) |
                             IN(RMSNORM_GRAD_ADD),
                     .allowed = MAY_ROWS },
    .flops_per_element = 10,
};

static void layernorm_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[LAYERNORM_Y]), x = op->in[LAYERNORM_X];
    int add = b->take_gradient(b, x), dx = backward_like(b, x);
    int dw = b->accumulator(b, op->in[LAYERNORM_W]), db = b->accumulator(b, op->in[LAYERNORM_B]);

    b->emit(
        b,
        &(struct op_node){
            .kind = OP_LAYERNORM_GRAD,
            .attributes = op->attributes,
            .in = { [LAYERNORM_GRAD_DY] = dy,
                    [LAYERNORM_GRAD_X] = x,
                    [LAYERNORM_GRAD_W] = op->in[LAYERNORM_W],
                    [LAYERNORM_GRAD_MEAN] = op->out[LAYERNORM_MEAN],
                    [LAYERNORM_GRAD_RSTD] = op->out[LAYERNORM_RSTD],
                    [LAYERNORM_GRAD_ADD] = add },
            .out = {
                [LAYERNORM_GRAD_DX] = dx, [LAYERNORM_GRAD_DW] = dw, [LAYERNORM_GRAD_DB] = db } });
    b->add_gradient(b, x, dx);
}

static const struct op_info layernorm = {
    .name = "layernorm",
    .family = FAMILY_NORM,
    .n_inputs = 3,
    .inputs = {
        [LAYERNORM_X] = { "x", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        [LAYERNORM_W] = { "w", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [LAYERNORM_B] = { "b", DIM_ONE, DIM_D, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 5,
    .outputs = {
        [LAYERNORM_Y] = { "y", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [LAYERNORM_MEAN] = { "mean", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [LAYERNORM_RSTD] = { "rstd", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        CODED(LAYERNORM, DIM_D),
    },
    .codes_output = 1 + LAYERNORM_CODES,
    .attributes = ATTRIBUTE_EPS,
    .traits = TRAIT_CHEAP | TRAIT_BY_ROWS,
    .feature = FEATURE_LAYERNORM,
    .fusion = &add_then_layernorm,
    .spread_form = { .data = IN(LAYERNORM_X), .allowed = MAY_ROWS },
    .flops_per_element = 8,
    .backward = layernorm_backward,
};

static const struct op_info layernorm_grad = {
    .name = "layernorm_grad",
    .family = FAMILY_NORM,
    .n_inputs = 6,
    .inputs = {
        [LAYERNORM_GRAD_DY] = { "dy", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [LAYERNORM_GRAD_X] = { "x", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        [LAYERNORM_GRAD_W] = { "w", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [LAYERNORM_GRAD_MEAN] = { "mean", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [LAYERNORM_GRAD_RSTD] = { "rstd", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [LAYERNORM_GRAD_ADD] = { "add", DIM_T, DIM_D, TYPE_STREAM, OPERAND_OPTIONAL },
    },
    .n_outputs = 6,
    .outputs = {
        [LAYERNORM_GRAD_DX] = { "dx", DIM_T, DIM_D, TYPE_STREAM, OPERAND_OPTIONAL },
        [LAYERNORM_GRAD_DW] = { "dw", DIM_ONE, DIM_D, TYPE_F32,
                                OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
        [LAYERNORM_GRAD_DB] = { "db", DIM_ONE, DIM_D, TYPE_F32,
                                OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
        [LAYERNORM_GRAD_COPY] = { "copy", DIM_T, DIM_D, TYPE_ACT, OPERAND_OPTIONAL | OPERAND_CAST },
        CODED(LAYERNORM_GRAD, DIM_D),
    },
    .codes_output = 1 + LAYERNORM_GRAD_CODES,
    .traits = TRAIT_BY_ROWS,
    .spread_form = { .data = IN(LAYERNORM_GRAD_DY) | IN(LAYERNORM_GRAD_X) |
                             IN(LAYERNORM_GRAD_MEAN) | IN(LAYERNORM_GRAD_RSTD) |
                             IN(LAYERNORM_GRAD_ADD),
                     .allowed = MAY_ROWS },
    .flops_per_element = 15,
};

static const struct op_info add_rmsnorm = {
    .name = "add_rmsnorm",
    .family = FAMILY_NORM,
    .n_inputs = 3,
    .inputs = {
        [ADD_RMSNORM_X] = { "x", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        [ADD_RMSNORM_DELTA] = { "delta", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [ADD_RMSNORM_W] = { "w", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 5,
    .outputs = {
        [ADD_RMSNORM_Y] = { "y", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [ADD_RMSNORM_RSTD] = { "rstd", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [ADD_RMSNORM_SUM] = { "sum", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        CODED(ADD_RMSNORM, DIM_D),
    },
    .codes_output = 1 + ADD_RMSNORM_CODES,
    .traits = TRAIT_BY_ROWS,
    .attributes = ATTRIBUTE_EPS,
    .fusion = &add_then_rmsnorm,
    .spread_form = { .data = IN(ADD_RMSNORM_X) | IN(ADD_RMSNORM_DELTA), .allowed = MAY_ROWS },
    .flops_per_element = 5,
};

static const struct op_info add_layernorm = {
    .name = "add_layernorm",
    .family = FAMILY_NORM,
    .n_inputs = 4,
    .inputs = {
        [ADD_LAYERNORM_X] = { "x", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        [ADD_LAYERNORM_DELTA] = { "delta", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [ADD_LAYERNORM_W] = { "w", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [ADD_LAYERNORM_B] = { "b", DIM_ONE, DIM_D, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 6,
    .outputs = {
        [ADD_LAYERNORM_Y] = { "y", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [ADD_LAYERNORM_MEAN] = { "mean", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [ADD_LAYERNORM_RSTD] = { "rstd", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [ADD_LAYERNORM_SUM] = { "sum", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        CODED(ADD_LAYERNORM, DIM_D),
    },
    .codes_output = 1 + ADD_LAYERNORM_CODES,
    .traits = TRAIT_BY_ROWS,
    .attributes = ATTRIBUTE_EPS,
    .fusion = &add_then_layernorm,
    .spread_form = { .data = IN(ADD_LAYERNORM_X) | IN(ADD_LAYERNORM_DELTA), .allowed = MAY_ROWS },
    .flops_per_element = 9,
};

static void head_norm_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[HEAD_NORM_OUT]), qk = op->in[HEAD_NORM_QK], dqk;
    int wq = op->in[HEAD_NORM_WQ], wk = op->in[HEAD_NORM_WK];
    int dwq = b->accumulator(b, wq), dwk = b->accumulator(b, wk);

    b->new_gradients(b, &qk, 1, &dqk);
    b->emit(b, &(struct op_node){ .kind = OP_HEAD_NORM_GRAD,
                                  .attributes = op->attributes,
                                  .in = { [HEAD_NORM_GRAD_DOUT] = dy,
                                          [HEAD_NORM_GRAD_QK] = qk,
                                          [HEAD_NORM_GRAD_WQ] = wq,
                                          [HEAD_NORM_GRAD_WK] = wk,
                                          [HEAD_NORM_GRAD_RSTD] = op->out[HEAD_NORM_RSTD] },
                                  .out = { [HEAD_NORM_GRAD_DQK] = dqk,
                                           [HEAD_NORM_GRAD_DWQ] = dwq,
                                           [HEAD_NORM_GRAD_DWK] = dwk } });
    b->add_gradients(b, &qk, 1, &dqk);
}

static const struct op_info head_norm = {
    .name = "head_norm",
    .family = FAMILY_NORM,
    .n_inputs = 3,
    .inputs = {
        [HEAD_NORM_QK] = { "qk", DIM_T, DIM_QK, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_NORM_WQ] = { "wq", DIM_ONE, DIM_E, TYPE_F32, OPERAND_PLAIN },
        [HEAD_NORM_WK] = { "wk", DIM_ONE, DIM_E, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [HEAD_NORM_OUT] = { "out", DIM_T, DIM_QK, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_NORM_RSTD] = { "rstd", DIM_T, DIM_QK_HEADS, TYPE_F32, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_EPS,
    .traits = TRAIT_CHEAP | TRAIT_BY_ROWS,
    .feature = FEATURE_QK_NORM,
    .spread_form = { .data = IN(HEAD_NORM_QK), .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 4,
    .backward = head_norm_backward,
};

/* Weights are of all heads: where these are split, each rank has a summand of their gradients. */
static int head_norm_grad_spread(const struct spread_query *q)
{
    unsigned data = IN(HEAD_NORM_GRAD_DOUT) | IN(HEAD_NORM_GRAD_QK) | IN(HEAD_NORM_GRAD_RSTD);

    if (spread_alike(q, data, 0, MAY_ROWS | MAY_COLS))
        return -1;
    if (q->in[HEAD_NORM_GRAD_DOUT] == SPREAD_COLS)
        q->out[HEAD_NORM_GRAD_DWQ] = q->out[HEAD_NORM_GRAD_DWK] = SPREAD_PARTIAL;
    return 0;
}

static const struct op_info head_norm_grad = {
    .name = "head_norm_grad",
    .family = FAMILY_NORM,
    .n_inputs = 5,
    .inputs = {
        [HEAD_NORM_GRAD_DOUT] = { "dout", DIM_T, DIM_QK, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_NORM_GRAD_QK] = { "qk", DIM_T, DIM_QK, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_NORM_GRAD_WQ] = { "wq", DIM_ONE, DIM_E, TYPE_F32, OPERAND_PLAIN },
        [HEAD_NORM_GRAD_WK] = { "wk", DIM_ONE, DIM_E, TYPE_F32, OPERAND_PLAIN },
        [HEAD_NORM_GRAD_RSTD] = { "rstd", DIM_T, DIM_QK_HEADS, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 3,
    .outputs = {
        [HEAD_NORM_GRAD_DQK] = { "dqk", DIM_T, DIM_QK, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_NORM_GRAD_DWQ] = { "dwq", DIM_ONE, DIM_E, TYPE_F32,
                                 OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
        [HEAD_NORM_GRAD_DWK] = { "dwk", DIM_ONE, DIM_E, TYPE_F32,
                                 OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
    },
    .attributes = ATTRIBUTE_HEADS,
    .spread = head_norm_grad_spread,
    .flops_per_element = 10,
};

static const struct op_info normalize_rows = {
    .name = "normalize_rows",
    .family = FAMILY_NORM,
    .n_inputs = 1,
    .inputs = {
        [NORMALIZE_ROWS_W] = { "w", DIM_V, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [NORMALIZE_ROWS_Y] = { "y", DIM_V, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [NORMALIZE_ROWS_NORM] = { "norm", DIM_V, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_EPS,
    .spread_form = { .data = IN(NORMALIZE_ROWS_W), .allowed = MAY_ROWS },
    .flops_per_element = 4,
};

/* Row by row; linear in dy, so that it may take a summand for the sum. */
static int normalize_rows_grad_spread(const struct spread_query *q)
{
    enum spread dy = q->in[NORMALIZE_ROWS_GRAD_DY];
    enum spread rows = dy == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME;

    if (dy == SPREAD_COLS)
        return spread_refuse(q, NORMALIZE_ROWS_GRAD_DY, MAY_ROWS | MAY_PARTIAL);
    spread_give_all(q, dy);
    if (spread_want(q, NORMALIZE_ROWS_GRAD_W, rows))
        return -1;
    return spread_want(q, NORMALIZE_ROWS_GRAD_NORM, rows);
}

static const struct op_info normalize_rows_grad = {
    .name = "normalize_rows_grad",
    .family = FAMILY_NORM,
    .n_inputs = 3,
    .inputs = {
        [NORMALIZE_ROWS_GRAD_DY] = { "dy", DIM_V, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [NORMALIZE_ROWS_GRAD_W] = { "w", DIM_V, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [NORMALIZE_ROWS_GRAD_NORM] = { "norm", DIM_V, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [NORMALIZE_ROWS_GRAD_DW] = { "dw", DIM_V, DIM_D, TYPE_KEPT, OPERAND_ACCUMULATED },
    },
    .attributes = ATTRIBUTE_EPS,
    .spread = normalize_rows_grad_spread,
    .flops_per_element = 6,
};

const struct op_info *const norm_ops[N_OP_KINDS] = {
    [OP_RMSNORM] = &rmsnorm,
    [OP_RMSNORM_GRAD] = &rmsnorm_grad,
    [OP_LAYERNORM] = &layernorm,
    [OP_LAYERNORM_GRAD] = &layernorm_grad,
    [OP_ADD_RMSNORM] = &add_rmsnorm,
    [OP_ADD_LAYERNORM] = &add_layernorm,
    [OP_HEAD_NORM] = &head_norm,
    [OP_HEAD_NORM_GRAD] = &head_norm_grad,
    [OP_NORMALIZE_ROWS] = &normalize_rows,
    [OP_NORMALIZE_ROWS_GRAD] = &normalize_rows_grad,
};
