/*
 * attention_part.c - attention and its gradient over keys that come in parts of their sequence
 *
 * What a query has seen so far is data: outputs not yet divided by the sum, the maximum and the sum
 * (Milakov & Gimelshein 2018; Liu et al. 2023, Ring Attention); of the gradient, dq not yet
 * scaled. Which keys of a part a query sees is data, too: windows are in it, and numbers and slopes
 * that go by a query's position in the sequence are not to be had.
 */
#include "ops/attention_sight_impl.h"

static int check_part_attributes(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const char *name = op_name(op->kind);

    if (a->p > 0)
        return err_set(err, ERR_FAILED, "%s: p is %g, wanted 0: a part has no dropout", name, a->p);
    if (a->alibi)
        return err_set(err, ERR_FAILED, "%s: alibi is %d, wanted 0: a part has no slopes", name,
                       a->alibi);
    if (a->window)
        return err_set(err, ERR_FAILED, "%s: window is %d, wanted 0: of a part it is in first",
                       name, a->window);
    return 0;
}

static int part_check(const struct op_shape *op, struct err *err)
{
    return check_keys(op, ATTENTION_PART_Q, ATTENTION_PART_K, ATTENTION_PART_LAST, err);
}

/* What lies as the queries, without an input that need not be given and is not. */
static unsigned given_of(const struct spread_query *q, unsigned inputs)
{
    return spread_given(q, OPS_FIRST) ? inputs : inputs & ~IN(OPS_FIRST);
}

static int part_spread(const struct spread_query *q)
{
    static const unsigned queries = IN(ATTENTION_PART_STATE) | IN(ATTENTION_PART_Q);
    static const unsigned keys = IN(ATTENTION_PART_K) | IN(ATTENTION_PART_V);
    static const unsigned ranges = IN(ATTENTION_PART_FIRST) | IN(ATTENTION_PART_LAST);

    if (spread_has_all_keys(q, ATTENTION_PART_Q, ATTENTION_PART_K))
        return spread_queries(q, queries | ranges, ATTENTION_PART_LAST);
    return spread_alike(q, given_of(q, queries) | keys, ranges, MAY_ROWS | MAY_COLS);
}

static double part_flops(const struct op_shape *op)
{
    return 2 * attention_pairs(op, &op->in[ATTENTION_PART_Q], &op->in[ATTENTION_PART_K]) *
           (op->attributes.head_dim + ops_value_dim(op, &op->in[ATTENTION_PART_V]));
}

static const struct op_info attention_part = {
    .name = "attention_part",
    .family = FAMILY_ATTENTION,
    .n_inputs = 6,
    .inputs = {
        [ATTENTION_PART_STATE] = { "state", DIM_T, DIM_STATE, TYPE_F32, OPERAND_OPTIONAL },
        [ATTENTION_PART_Q] = { "q", DIM_T, DIM_HE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_K] = { "k", DIM_U, DIM_GE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_V] = { "v", DIM_U, DIM_GV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_FIRST] = { "first", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [ATTENTION_PART_LAST] = { "last", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [ATTENTION_PART_NEXT] = { "next", DIM_T, DIM_STATE, TYPE_F32, OPERAND_IN_PLACE },
    },
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_SEQ_LEN,
    .check_attributes = check_part_attributes,
    .check = part_check,
    .spread = part_spread,
    .flops = part_flops,
};

static const struct op_info attention_end = {
    .name = "attention_end",
    .family = FAMILY_ATTENTION,
    .n_inputs = 1,
    .inputs = {
        [ATTENTION_END_STATE] = { "state", DIM_T, DIM_STATE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [ATTENTION_END_OUT] = { "out", DIM_T, DIM_HV, TYPE_FLOAT, OPERAND_PLAIN },
        [ATTENTION_END_LSE] = { "lse", DIM_T, DIM_H, TYPE_F32, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_HEADS,
    .spread_form = { .data = IN(ATTENTION_END_STATE), .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 1,
};

static int part_grad_check(const struct op_shape *op, struct err *err)
{
    enum dtype dk = op->out[ATTENTION_PART_GRAD_DK].dtype;
    enum dtype dv = op->out[ATTENTION_PART_GRAD_DV].dtype;

    if (dv != dk)
        return err_set(err, ERR_FAILED, "%s: dv is %s, wanted dk's %s", op_name(op->kind),
                       dtype_name(dv), dtype_name(dk));
    return check_keys(op, ATTENTION_PART_GRAD_Q, ATTENTION_PART_GRAD_K, ATTENTION_PART_GRAD_LAST,
                      err);
}

static int part_grad_spread(const struct spread_query *q)
{
    static const unsigned queries = IN(ATTENTION_PART_GRAD_SUM) | IN(ATTENTION_PART_GRAD_DOUT) |
                                    IN(ATTENTION_PART_GRAD_Q) | IN(ATTENTION_PART_GRAD_OUT) |
                                    IN(ATTENTION_PART_GRAD_LSE);
    static const unsigned keys = IN(ATTENTION_PART_GRAD_K) | IN(ATTENTION_PART_GRAD_V);
    static const unsigned ranges = IN(ATTENTION_PART_GRAD_FIRST) | IN(ATTENTION_PART_GRAD_LAST);

    if (!spread_has_all_keys(q, ATTENTION_PART_GRAD_Q, ATTENTION_PART_GRAD_K))
        return spread_alike(q, given_of(q, queries) | keys, ranges, MAY_ROWS | MAY_COLS);
    if (spread_queries(q, queries | ranges, ATTENTION_PART_GRAD_LAST))
        return -1;
    q->out[ATTENTION_PART_GRAD_DK] = q->out[ATTENTION_PART_GRAD_DV] = SPREAD_PARTIAL;
    return 0;
}

/* As of attention_grad: scores, gradients of queries and keys; probabilities', values'. */
static double part_grad_flops(const struct op_shape *op)
{
    return 2 * attention_pairs(op, &op->in[ATTENTION_PART_GRAD_Q], &op->in[ATTENTION_PART_GRAD_K]) *
           (3 * op->attributes.head_dim + 2 * ops_value_dim(op, &op->in[ATTENTION_PART_GRAD_V]));
}

static const struct op_info attention_part_grad = {
    .name = "attention_part_grad",
    .family = FAMILY_ATTENTION,
    .n_inputs = 9,
    .inputs = {
        [ATTENTION_PART_GRAD_SUM] = { "sum", DIM_T, DIM_HE, TYPE_F32, OPERAND_OPTIONAL },
        [ATTENTION_PART_GRAD_DOUT] = { "dout", DIM_T, DIM_HV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_GRAD_Q] = { "q", DIM_T, DIM_HE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_GRAD_K] = { "k", DIM_U, DIM_GE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_GRAD_V] = { "v", DIM_U, DIM_GV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_GRAD_OUT] = { "out", DIM_T, DIM_HV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_PART_GRAD_LSE] = { "lse", DIM_T, DIM_H, TYPE_F32, OPERAND_PLAIN },
        [ATTENTION_PART_GRAD_FIRST] = { "first", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [ATTENTION_PART_GRAD_LAST] = { "last", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 3,
    .outputs = {
        [ATTENTION_PART_GRAD_DQ] = { "dq", DIM_T, DIM_HE, TYPE_F32, OPERAND_IN_PLACE },
        [ATTENTION_PART_GRAD_DK] = { "dk", DIM_U, DIM_GE, TYPE_ACT_OR_F32, OPERAND_PLAIN },
        [ATTENTION_PART_GRAD_DV] = { "dv", DIM_U, DIM_GV, TYPE_ACT_OR_F32, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_SEQ_LEN,
    .check_attributes = check_part_attributes,
    .check = part_grad_check,
    .spread = part_grad_spread,
    .flops = part_grad_flops,
};

static const struct op_info attention_dq_end = {
    .name = "attention_dq_end",
    .family = FAMILY_ATTENTION,
    .n_inputs = 1,
    .inputs = {
        [ATTENTION_DQ_END_SUM] = { "sum", DIM_T, DIM_D, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ATTENTION_DQ_END_DQ] = { "dq", DIM_T, DIM_D, TYPE_FLOAT, OPERAND_PLAIN },
    },
    .spread_form = { .data = IN(ATTENTION_DQ_END_SUM), .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 1,
};

const struct op_info *const attention_part_ops[N_OP_KINDS] = {
    [OP_ATTENTION_PART] = &attention_part,
    [OP_ATTENTION_END] = &attention_end,
    [OP_ATTENTION_PART_GRAD] = &attention_part_grad,
    [OP_ATTENTION_DQ_END] = &attention_dq_end,
};
