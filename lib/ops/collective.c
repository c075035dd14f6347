/*
 * collective.c - what ranks of a mesh axis exchange
 */
#include "ops/family_impl.h"

/* What a gather joins, or what a reduce_scatter leaves: parts of rows, or of a flat cell. */
static enum spread parts_of(const struct spread_query *q)
{
    return q->op->in[0].cols == q->op->out[0].cols ? SPREAD_ROWS : SPREAD_COLS;
}

/* Over its own axis an op wants and gives this; over others what it moves lies as it did. */
static int spread_over_axis(const struct spread_query *q, enum spread wanted, enum spread result)
{
    spread_give_all(q, q->on_axis ? result : q->in[0]);
    return q->on_axis ? spread_want(q, 0, wanted) : 0;
}

/* A whole is its parts' rows, one below the other, or, of one row, its columns. */
static int check_parts(const struct op_shape *op, struct err *err)
{
    const struct tensor *in = &op->in[0], *out = &op->out[0];
    const struct op_info *info = op_info(op->kind);

    if (in->cols == out->cols)
        return 0;
    if (in->rows != out->rows)
        return err_set(err, ERR_FAILED, "%s: [%lld x %lld] and [%lld x %lld] differ in both",
                       info->name, (long long)in->rows, (long long)in->cols, (long long)out->rows,
                       (long long)out->cols);
    if (in->rows != 1)
        return err_set(err, ERR_FAILED, "%s: %s has %lld rows, wanted 1 or equal columns",
                       info->name, info->inputs[0].name, (long long)in->rows);
    return 0;
}

static int all_gather_spread(const struct spread_query *q)
{
    return spread_over_axis(q, parts_of(q), SPREAD_SAME);
}

static const struct op_info all_gather = {
    .name = "all_gather",
    .n_inputs = 1,
    .inputs = {
        [ALL_GATHER_SHARD] = { "shard", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ALL_GATHER_FULL] = { "full", DIM_SIZE_T, DIM_SIZE_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE | TRAIT_GATHER,
    .feature = FEATURE_SEQUENCE_PARALLEL,
    .check = check_parts,
    .spread = all_gather_spread,
};

static int reduce_scatter_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_PARTIAL, parts_of(q));
}

/* Each rank adds its summands of what it gets. */
static double sums_of_parts_flops(const struct op_shape *op)
{
    return (double)(tensor_elements(&op->in[0]) - tensor_elements(&op->out[0]));
}

static const struct op_info reduce_scatter = {
    .name = "reduce_scatter",
    .n_inputs = 1,
    .inputs = {
        [REDUCE_SCATTER_FULL] = { "full", DIM_SIZE_T, DIM_SIZE_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [REDUCE_SCATTER_SHARD] = { "shard", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE,
    .feature = FEATURE_SEQUENCE_PARALLEL,
    .check = check_parts,
    .spread = reduce_scatter_spread,
    .flops = sums_of_parts_flops,
};

static int all_reduce_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_PARTIAL, SPREAD_SAME);
}

static const struct op_info all_reduce = {
    .name = "all_reduce",
    .n_inputs = 1,
    .inputs = {
        [ALL_REDUCE_X] = { "x", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ALL_REDUCE_Y] = { "y", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE,
    .feature = FEATURE_WHOLE_ROWS,
    .spread = all_reduce_spread,
    .flops_per_element = 1,
};

static const struct op_info all_reduce_scalar = {
    .name = "all_reduce_scalar",
    .n_inputs = 1,
    .inputs = {
        [ALL_REDUCE_SCALAR_X] = { "x", DIM_ONE, DIM_N, TYPE_F64, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ALL_REDUCE_SCALAR_Y] = { "y", DIM_ONE, DIM_N, TYPE_F64, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE,
    .spread = all_reduce_spread,
};

/* One kv head, its columns divided evenly. */
static int check_group(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const char *name = op_name(op->kind);

    if (a->n_kv_heads != 1)
        return err_set(err, ERR_FAILED, "%s: n_kv_heads is %d, wanted 1", name, a->n_kv_heads);
    if (a->group < 2 || a->head_dim % a->group)
        return err_set(err, ERR_FAILED, "%s: group is %d, wanted a divisor of head_dim %d", name,
                       a->group, a->head_dim);
    return 0;
}

static int gather_heads_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_COLS, SPREAD_COLS);
}

static const struct op_info gather_heads = {
    .name = "gather_heads",
    .n_inputs = 1,
    .inputs = {
        [GATHER_HEADS_QKV] = { "qkv", DIM_T, DIM_C_PART, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [GATHER_HEADS_OUT] = { "out", DIM_T, DIM_C, TYPE_ACT, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_HEADS,
    .traits = TRAIT_COLLECTIVE,
    .feature = FEATURE_SHARED_KV_HEADS,
    .check_attributes = check_group,
    .spread = gather_heads_spread,
};

static const struct op_info gather_heads_grad = {
    .name = "gather_heads_grad",
    .n_inputs = 1,
    .inputs = {
        [GATHER_HEADS_GRAD_DOUT] = { "dout", DIM_T, DIM_C, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [GATHER_HEADS_GRAD_DQKV] = { "dqkv", DIM_T, DIM_C_PART, TYPE_ACT, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_HEADS,
    .traits = TRAIT_COLLECTIVE,
    .check_attributes = check_group,
    .spread = gather_heads_spread,
    .flops = sums_of_parts_flops,
};

/* What is received lies as it was sent, which is the program's to know. */
static int transfer_spread(const struct spread_query *q)
{
    (void)q;
    return 0;
}

static const struct op_info send = {
    .name = "send",
    .n_inputs = 1,
    .inputs = {
        [SEND_X] = { "x", DIM_T, DIM_D, TYPE_MOVED, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE | TRAIT_TRANSFER,
    .spread = transfer_spread,
};

static const struct op_info receive = {
    .name = "receive",
    .n_outputs = 1,
    .outputs = {
        [RECEIVE_Y] = { "y", DIM_T, DIM_D, TYPE_MOVED, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE | TRAIT_TRANSFER,
    .spread = transfer_spread,
};

const struct op_info *const collective_ops[N_OP_KINDS] = {
    [OP_ALL_GATHER] = &all_gather,
    [OP_REDUCE_SCATTER] = &reduce_scatter,
    [OP_ALL_REDUCE] = &all_reduce,
    [OP_ALL_REDUCE_SCALAR] = &all_reduce_scalar,
    [OP_GATHER_HEADS] = &gather_heads,
    [OP_GATHER_HEADS_GRAD] = &gather_heads_grad,
    [OP_SEND] = &send,
    [OP_RECEIVE] = &receive,
};
