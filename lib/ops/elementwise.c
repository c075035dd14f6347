/*
 * elementwise.c - activations, dropout, sums and casts
 */
#include "ops/family_impl.h"

static void swiglu_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[SWIGLU_Y]), gu = op->in[SWIGLU_GU];
    int dgu = backward_like(b, gu);

    b->emit(b, &(struct op_node){ .kind = OP_SWIGLU_GRAD,
                                  .in = { [SWIGLU_GRAD_DY] = dy, [SWIGLU_GRAD_GU] = gu },
                                  .out = { [SWIGLU_GRAD_DGU] = dgu } });
    b->add_gradient(b, gu, dgu);
}

static const struct op_info swiglu = {
    .name = "swiglu",
    .family = FAMILY_ACTIVATION,
    .n_inputs = 1,
    .inputs = {
        [SWIGLU_GU] = { "gu", DIM_T, DIM_2F, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 3,
    .outputs = {
        [SWIGLU_Y] = { "y", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        CODED(SWIGLU, DIM_F),
    },
    .codes_output = 1 + SWIGLU_CODES,
    .traits = TRAIT_CHEAP | TRAIT_BY_ROWS,
    .feature = FEATURE_SWIGLU,
    .spread_form = { .data = IN(SWIGLU_GU), .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 2.5, /* 5 for a pair of gate and up */
    .backward = swiglu_backward,
};

static const struct op_info swiglu_grad = {
    .name = "swiglu_grad",
    .family = FAMILY_ACTIVATION,
    .n_inputs = 2,
    .inputs = {
        [SWIGLU_GRAD_DY] = { "dy", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        [SWIGLU_GRAD_GU] = { "gu", DIM_T, DIM_2F, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 3,
    .outputs = {
        [SWIGLU_GRAD_DGU] = { "dgu", DIM_T, DIM_2F, TYPE_ACT, OPERAND_PLAIN },
        CODED(SWIGLU_GRAD, DIM_2F),
    },
    .codes_output = 1 + SWIGLU_GRAD_CODES,
    .traits = TRAIT_BY_ROWS,
    .spread_form = { .data = IN(SWIGLU_GRAD_DY) | IN(SWIGLU_GRAD_GU),
                     .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 11,
};

static void gelu_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[GELU_Y]), x = op->in[GELU_X];
    int dx = backward_like(b, x);

    b->emit(b, &(struct op_node){ .kind = OP_GELU_GRAD,
                                  .in = { [GELU_GRAD_DY] = dy, [GELU_GRAD_X] = x },
                                  .out = { [GELU_GRAD_DX] = dx } });
    b->add_gradient(b, x, dx);
}

static const struct op_info gelu = {
    .name = "gelu",
    .family = FAMILY_ACTIVATION,
    .n_inputs = 1,
    .inputs = {
        [GELU_X] = { "x", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 3,
    .outputs = {
        [GELU_Y] = { "y", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        CODED(GELU, DIM_F),
    },
    .codes_output = 1 + GELU_CODES,
    .traits = TRAIT_CHEAP | TRAIT_BY_ROWS,
    .feature = FEATURE_GELU,
    .spread_form = { .data = IN(GELU_X), .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 10,
    .backward = gelu_backward,
};

static const struct op_info gelu_grad = {
    .name = "gelu_grad",
    .family = FAMILY_ACTIVATION,
    .n_inputs = 2,
    .inputs = {
        [GELU_GRAD_DY] = { "dy", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        [GELU_GRAD_X] = { "x", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 3,
    .outputs = {
        [GELU_GRAD_DX] = { "dx", DIM_T, DIM_F, TYPE_ACT, OPERAND_PLAIN },
        CODED(GELU_GRAD, DIM_F),
    },
    .codes_output = 1 + GELU_GRAD_CODES,
    .traits = TRAIT_BY_ROWS,
    .spread_form = { .data = IN(GELU_GRAD_DY) | IN(GELU_GRAD_X), .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 18,
};

/* Summands may be scaled one by one. */
static void scale_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_summand(b, op->out[SCALE_Y]), x = op->in[SCALE_X];
    int dx = backward_like(b, x);

    b->emit(b, &(struct op_node){ .kind = OP_SCALE,
                                  .attributes = op->attributes,
                                  .in = { [SCALE_X] = dy },
                                  .out = { [SCALE_Y] = dx } });
    b->add_gradient(b, x, dx);
}

static const struct op_info scale = {
    .name = "scale",
    .n_inputs = 1,
    .inputs = {
        [SCALE_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [SCALE_Y] = { "y", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_ROWS,
    .feature = FEATURE_ADAPTERS,
    .spread_form = { .data = IN(SCALE_X), .allowed = MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    .flops_per_element = 1,
    .backward = scale_backward,
};

static int dropout_check_at_most(const struct op_shape *op, int part, int64_t n, int of,
                                 struct err *err)
{
    const struct op_operand *inputs = op_info(op->kind)->inputs;

    if (op->in[part].rows <= n)
        return 0;
    return err_set(err, ERR_FAILED, "%s: %s has %lld rows, wanted at most the %lld of %s",
                   op_name(op->kind), inputs[part].name, (long long)op->in[part].rows, (long long)n,
                   inputs[of].name);
}

/*
 * Rows of any numbers, rows from anywhere in the micro-batch on (with an offset), or whole
 * sequences. The operands of dropout_grad stand where those of dropout do.
 */
static int dropout_check(const struct op_shape *op, struct err *err)
{
    const struct tensor *x = &op->in[DROPOUT_X], *sample = &op->in[DROPOUT_SAMPLE];
    const struct op_operand *inputs = op_info(op->kind)->inputs;
    const struct tensor *row = &op->in[DROPOUT_ROW];
    int has_part = tensor_given(&op->in[DROPOUT_OFFSET]) && !op->attributes.by_columns;
    int seq_len = op->attributes.seq_len;
    int64_t n_rows = sample->rows * seq_len;

    if (tensor_given(row)) {
        if (dropout_check_at_most(op, DROPOUT_ROW, n_rows, DROPOUT_SAMPLE, err))
            return -1;
        return has_part ? dropout_check_at_most(op, DROPOUT_X, row->rows, DROPOUT_ROW, err)
                        : check_rows(op, DROPOUT_ROW, x->rows, err);
    }
    if (has_part)
        return dropout_check_at_most(op, DROPOUT_X, n_rows, DROPOUT_SAMPLE, err);
    if (x->rows % seq_len)
        return err_set(err, ERR_FAILED, "%s: %s has %lld rows, wanted a multiple of seq_len %d",
                       op_name(op->kind), inputs[DROPOUT_X].name, (long long)x->rows, seq_len);
    return check_rows(op, DROPOUT_SAMPLE, x->rows / seq_len, err);
}

/*
 * Rows are split as sequences are; or, with numbers or with an offset of the rank's own, within the
 * micro-batch, of which each rank then has all samples.
 */
static int dropout_spread(const struct spread_query *q)
{
    int has_own_offset = spread_given(q, DROPOUT_OFFSET) && q->in[DROPOUT_OFFSET] == SPREAD_COLS;
    int has_numbers = spread_given(q, DROPOUT_ROW) && q->in[DROPOUT_SAMPLE] == SPREAD_SAME;
    unsigned rowwise = IN(DROPOUT_ROW) | (has_numbers ? 0 : IN(DROPOUT_SAMPLE));

    if (!has_own_offset)
        return spread_alike(q, IN(DROPOUT_X), rowwise, MAY_ROWS);
    if (q->op->attributes.by_columns)
        return spread_alike(q, IN(DROPOUT_X) | IN(DROPOUT_OFFSET), rowwise, MAY_COLS);
    spread_give_all(q, SPREAD_ROWS);
    if (spread_want(q, DROPOUT_X, SPREAD_ROWS) || spread_want(q, DROPOUT_SAMPLE, SPREAD_SAME))
        return -1;
    return spread_want(q, DROPOUT_ROW, SPREAD_SAME);
}

/* Summands may be dropped one by one, but where the rank has a part of the rows. */
static void dropout_backward(struct backward *b, const struct op_node *op)
{
    int y = op->out[DROPOUT_Y], x = op->in[DROPOUT_X], offset = op->in[DROPOUT_OFFSET];
    int dy = offset ? b->take_gradient(b, y) : b->take_summand(b, y);
    int dx = backward_like(b, x);

    b->emit(b, &(struct op_node){ .kind = OP_DROPOUT_GRAD,
                                  .attributes = op->attributes,
                                  .in = { [DROPOUT_GRAD_DY] = dy,
                                          [DROPOUT_GRAD_SAMPLE] = op->in[DROPOUT_SAMPLE],
                                          [DROPOUT_GRAD_OFFSET] = offset,
                                          [DROPOUT_GRAD_ROW] = op->in[DROPOUT_ROW] },
                                  .out = { [DROPOUT_GRAD_DX] = dx } });
    b->add_gradient(b, x, dx);
}

static const struct op_info dropout = {
    .name = "dropout",
    .n_inputs = 4,
    .inputs = {
        [DROPOUT_X] = { "x", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [DROPOUT_SAMPLE] = { "sample", DIM_FREE, DIM_ONE, TYPE_I64, OPERAND_PLAIN },
        [DROPOUT_OFFSET] = { "offset", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [DROPOUT_ROW] = { "row", DIM_FREE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [DROPOUT_Y] = { "y", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN | ATTRIBUTE_P,
    .traits = TRAIT_CHEAP,
    .feature = FEATURE_DROPOUT,
    .check = dropout_check,
    .spread = dropout_spread,
    .flops_per_element = 2,
    .backward = dropout_backward,
};

/* A gradient's summands may be dropped one by one. */
static int dropout_grad_spread(const struct spread_query *q)
{
    if (q->in[DROPOUT_GRAD_DY] == SPREAD_PARTIAL && !spread_given(q, DROPOUT_GRAD_OFFSET))
        return spread_alike(q, IN(DROPOUT_GRAD_DY), 0, MAY_PARTIAL);
    return dropout_spread(q);
}

static const struct op_info dropout_grad = {
    .name = "dropout_grad",
    .n_inputs = 4,
    .inputs = {
        [DROPOUT_GRAD_DY] = { "dy", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [DROPOUT_GRAD_SAMPLE] = { "sample", DIM_FREE, DIM_ONE, TYPE_I64, OPERAND_PLAIN },
        [DROPOUT_GRAD_OFFSET] = { "offset", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [DROPOUT_GRAD_ROW] = { "row", DIM_FREE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [DROPOUT_GRAD_DX] = { "dx", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN | ATTRIBUTE_P,
    .check = dropout_check,
    .spread = dropout_grad_spread,
    .flops_per_element = 2,
};

static int add_check(const struct op_shape *op, struct err *err)
{
    enum dtype a = op->in[ADD_A].dtype, b = op->in[ADD_B].dtype, y = op->out[ADD_Y].dtype;

    if (a != y || (y != DTYPE_F32 && b != y))
        return err_set(err, ERR_FAILED, "%s: %s + %s is %s, wanted fp32, or all bf16 or fp16",
                       op_name(op->kind), dtype_name(a), dtype_name(b), dtype_name(y));
    return 0;
}

static void add_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[ADD_Y]), second = op->in[ADD_B];

    b->add_gradient(b, op->in[ADD_A], dy);
    if (b->needs_gradient(b, second))
        b->add_gradient(b, second, b->cast(b, dy, b->dtype(b, second)));
}

static const struct op_info add = {
    .name = "add",
    .n_inputs = 2,
    .inputs = {
        [ADD_A] = { "a", DIM_T, DIM_D, TYPE_FLOAT, OPERAND_PLAIN },
        [ADD_B] = { "b", DIM_T, DIM_D, TYPE_FLOAT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ADD_Y] = { "y", DIM_T, DIM_D, TYPE_FLOAT, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_ROWS,
    .feature = FEATURE_ANY_MODEL,
    .check = add_check,
    .spread_form = { .data = IN(ADD_A) | IN(ADD_B), .allowed = MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    .flops_per_element = 1,
    .backward = add_backward,
};

static int cast_check(const struct op_shape *op, struct err *err)
{
    if (op->in[CAST_X].dtype == op->out[CAST_Y].dtype)
        return err_set(err, ERR_FAILED, "%s: y is %s, wanted another dtype than x",
                       op_name(op->kind), dtype_name(op->out[CAST_Y].dtype));
    return 0;
}

static const struct op_info cast = {
    .name = "cast",
    .n_inputs = 1,
    .inputs = {
        [CAST_X] = { "x", DIM_T, DIM_D, TYPE_FLOAT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [CAST_Y] = { "y", DIM_T, DIM_D, TYPE_FLOAT, OPERAND_PLAIN },
    },
    .traits = TRAIT_CHEAP | TRAIT_BY_ROWS,
    .check = cast_check,
    .spread_form = { .data = IN(CAST_X), .allowed = MAY_ROWS | MAY_COLS },
};

/* Element by element: what is added up lies as it did, a sum that is owed included. */
static int accumulate_spread(const struct spread_query *q)
{
    spread_give_all(q, q->in[ACCUMULATE_X]);
    return 0;
}

static const struct op_info accumulate = {
    .name = "accumulate",
    .n_inputs = 1,
    .inputs = {
        [ACCUMULATE_X] = { "x", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ACCUMULATE_Y] = { "y", DIM_R, DIM_D, TYPE_ACT, OPERAND_ACCUMULATED },
    },
    .traits = TRAIT_BY_BLOCKS,
    .spread = accumulate_spread,
    .flops_per_element = 1,
};

/* An op like others for all that orders and places, and no work. However x lies. */
static int await_spread(const struct spread_query *q)
{
    (void)q;
    return 0;
}

/* No byte moves. */
static void await_moved(struct op_shape *op)
{
    op->in[AWAIT_X] = (struct tensor){ 0 };
}

static const struct op_info await = {
    .name = "await",
    .n_inputs = 1,
    .inputs = {
        [AWAIT_X] = { "x", DIM_T, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .spread = await_spread,
    .moved = await_moved,
};

const struct op_info *const elementwise_ops[N_OP_KINDS] = {
    [OP_AWAIT] = &await,
    [OP_SWIGLU] = &swiglu,
    [OP_SWIGLU_GRAD] = &swiglu_grad,
    [OP_GELU] = &gelu,
    [OP_GELU_GRAD] = &gelu_grad,
    [OP_SCALE] = &scale,
    [OP_DROPOUT] = &dropout,
    [OP_DROPOUT_GRAD] = &dropout_grad,
    [OP_ADD] = &add,
    [OP_CAST] = &cast,
    [OP_ACCUMULATE] = &accumulate,
};
