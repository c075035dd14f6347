/*
 * head.c - from the last hidden states to the loss, whole or with a part of the vocabulary a rank
 */
#include "ops/family_impl.h"

static int check_z(const struct op_shape *op, struct err *err)
{
    if (!(op->attributes.z >= 0))
        return err_set(err, ERR_FAILED, "%s: z is %g, wanted at least 0", op_name(op->kind),
                       op->attributes.z);
    return 0;
}

/* A product for the logits, one for dx, one for dw. */
static double head_cross_entropy_flops(const struct op_shape *op)
{
    const struct tensor *w = &op->in[HEAD_CROSS_ENTROPY_W];
    int n_products = tensor_given(&op->out[HEAD_CROSS_ENTROPY_DW]) ? 3 : 2;

    return 2 * n_products * (double)op->in[HEAD_CROSS_ENTROPY_X].rows * (double)w->rows *
           (double)w->cols;
}

static const struct op_info head_cross_entropy = {
    .name = "head_cross_entropy",
    .family = FAMILY_HEAD,
    .n_inputs = 4,
    .inputs = {
        [HEAD_CROSS_ENTROPY_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_CROSS_ENTROPY_W] = { "w", DIM_V, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_CROSS_ENTROPY_TARGET] = { "target", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [HEAD_CROSS_ENTROPY_SCALE] = { "scale", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 4,
    .outputs = {
        [HEAD_CROSS_ENTROPY_DX] = { "dx", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_CROSS_ENTROPY_DW] = { "dw", DIM_V, DIM_D, TYPE_KEPT,
                                    OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
        [HEAD_CROSS_ENTROPY_LOSS] = { "loss", DIM_ONE, DIM_ONE, TYPE_F64, OPERAND_ACCUMULATED },
        [HEAD_CROSS_ENTROPY_SQUARES] = { "squares", DIM_ONE, DIM_ONE, TYPE_F64,
                                         OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
    },
    .attributes = ATTRIBUTE_CHUNK,
    .check_attributes = check_z,
    .spread_form = { .data = IN(HEAD_CROSS_ENTROPY_X) | IN(HEAD_CROSS_ENTROPY_TARGET),
                     .allowed = MAY_ROWS },
    .flops = head_cross_entropy_flops,
};

static double head_loss_flops(const struct op_shape *op)
{
    const struct tensor *w = &op->in[HEAD_LOSS_W];

    return 2 * (double)op->in[HEAD_LOSS_X].rows * (double)w->rows * (double)w->cols;
}

static const struct op_info head_loss = {
    .name = "head_loss",
    .family = FAMILY_HEAD,
    .n_inputs = 3,
    .inputs = {
        [HEAD_LOSS_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_LOSS_W] = { "w", DIM_V, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [HEAD_LOSS_TARGET] = { "target", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [HEAD_LOSS_LOSS] = { "loss", DIM_ONE, DIM_ONE, TYPE_F64, OPERAND_ACCUMULATED },
    },
    .attributes = ATTRIBUTE_CHUNK,
    .spread_form = { .data = IN(HEAD_LOSS_X) | IN(HEAD_LOSS_TARGET), .allowed = MAY_ROWS },
    .flops = head_loss_flops,
};

/* Statistics of parts of the vocabulary are stacked: a rank's are its rows of all of them. */
static int logit_stats_spread(const struct spread_query *q)
{
    static const char *const wanted = "same or split(rows), or target the same and offset";

    if (q->in[LOGIT_STATS_LOGITS] != SPREAD_COLS)
        return spread_alike(q, IN(LOGIT_STATS_LOGITS) | IN(LOGIT_STATS_TARGET), 0, MAY_ROWS);
    if (spread_want(q, LOGIT_STATS_TARGET, SPREAD_SAME) || !spread_given(q, LOGIT_STATS_OFFSET))
        return spread_refuse_text(q, LOGIT_STATS_LOGITS, wanted);
    spread_give_all(q, SPREAD_ROWS);
    return spread_want(q, LOGIT_STATS_OFFSET, SPREAD_COLS);
}

static const struct op_info logit_stats = {
    .name = "logit_stats",
    .family = FAMILY_HEAD,
    .n_inputs = 3,
    .inputs = {
        [LOGIT_STATS_LOGITS] = { "logits", DIM_T, DIM_V, TYPE_F32, OPERAND_PLAIN },
        [LOGIT_STATS_TARGET] = { "target", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [LOGIT_STATS_OFFSET] = { "offset", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [LOGIT_STATS_STATS] = { "stats", DIM_T, DIM_STATS, TYPE_F32, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_VOCAB_SIZE,
    .spread = logit_stats_spread,
    .flops_per_element = 3,
};

static int cross_entropy_check(const struct op_shape *op, struct err *err)
{
    int64_t n_stats = op->in[CROSS_ENTROPY_STATS].rows, n_rows = op->in[CROSS_ENTROPY_LOGITS].rows;

    if (n_stats != n_rows && !tensor_given(&op->in[CROSS_ENTROPY_OFFSET]))
        return err_set(err, ERR_FAILED, "%s: offset is missing, wanted where stats has %lld parts",
                       op_name(op->kind), (long long)(n_stats / n_rows));
    return 0;
}

static int cross_entropy_spread(const struct spread_query *q)
{
    unsigned data = IN(CROSS_ENTROPY_LOGITS) | IN(CROSS_ENTROPY_STATS) | IN(CROSS_ENTROPY_TARGET);

    if (q->in[CROSS_ENTROPY_LOGITS] != SPREAD_COLS)
        return spread_alike(q, data, 0, MAY_ROWS);
    if (!spread_given(q, CROSS_ENTROPY_OFFSET))
        return spread_refuse_text(q, CROSS_ENTROPY_LOGITS, "same or split(rows), or offset");
    if (spread_want(q, CROSS_ENTROPY_STATS, SPREAD_SAME) ||
        spread_want(q, CROSS_ENTROPY_TARGET, SPREAD_SAME) ||
        spread_want(q, CROSS_ENTROPY_SCALE, SPREAD_SAME) ||
        spread_want(q, CROSS_ENTROPY_OFFSET, SPREAD_COLS))
        return -1;
    q->out[CROSS_ENTROPY_DLOGITS] = SPREAD_COLS;
    q->out[CROSS_ENTROPY_LOSS] = SPREAD_SAME;
    q->out[CROSS_ENTROPY_SQUARES] = SPREAD_SAME;
    return 0;
}

/* Without a gradient it looks at statistics alone. */
static double cross_entropy_flops(const struct op_shape *op)
{
    if (!tensor_given(&op->out[CROSS_ENTROPY_DLOGITS]))
        return 0;
    return 3 * (double)tensor_elements(&op->in[CROSS_ENTROPY_LOGITS]);
}

static void cross_entropy_moved(struct op_shape *op)
{
    op->in[CROSS_ENTROPY_LOGITS].rows = op->out[CROSS_ENTROPY_DLOGITS].rows;
}

static const struct op_info cross_entropy = {
    .name = "cross_entropy",
    .family = FAMILY_HEAD,
    .n_inputs = 5,
    .inputs = {
        [CROSS_ENTROPY_LOGITS] = { "logits", DIM_T, DIM_V, TYPE_F32, OPERAND_PLAIN },
        [CROSS_ENTROPY_STATS] = { "stats", DIM_SIZE_T, DIM_STATS, TYPE_F32, OPERAND_PLAIN },
        [CROSS_ENTROPY_TARGET] = { "target", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [CROSS_ENTROPY_SCALE] = { "scale", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [CROSS_ENTROPY_OFFSET] = { "offset", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 3,
    .outputs = {
        [CROSS_ENTROPY_DLOGITS] = { "dlogits", DIM_T, DIM_V, TYPE_FLOAT, OPERAND_OPTIONAL },
        [CROSS_ENTROPY_LOSS] = { "loss", DIM_ONE, DIM_ONE, TYPE_F64, OPERAND_ACCUMULATED },
        [CROSS_ENTROPY_SQUARES] = { "squares", DIM_ONE, DIM_ONE, TYPE_F64,
                                    OPERAND_OPTIONAL | OPERAND_ACCUMULATED },
    },
    .attributes = ATTRIBUTE_VOCAB_SIZE,
    .check_attributes = check_z,
    .check = cross_entropy_check,
    .spread = cross_entropy_spread,
    .flops = cross_entropy_flops,
    .moved = cross_entropy_moved,
};

const struct op_info *const head_ops[N_OP_KINDS] = {
    [OP_HEAD_CROSS_ENTROPY] = &head_cross_entropy,
    [OP_HEAD_LOSS] = &head_loss,
    [OP_LOGIT_STATS] = &logit_stats,
    [OP_CROSS_ENTROPY] = &cross_entropy,
};
