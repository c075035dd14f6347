/*
 * expert_lora.c - low-rank adapters' products added to those of experts
 *
 * As lora (linear.c) around one matrix, each row with the pair of its expert.
 */
#include "ops/family_impl.h"

/* Of a product's columns each part has its pairs, or none. */
static int expert_lora_check(const struct op_shape *op, struct err *err)
{
    const char *name = op_name(op->kind);
    int64_t n = 0, m = op->in[EXPERT_LORA_ENDS].cols;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *h = &op->in[EXPERT_LORA_H0 + 2 * i];
        const struct tensor *b = &op->in[EXPERT_LORA_B0 + 2 * i];
        int64_t rows = m * op->attributes.parts[i];

        n += op->attributes.parts[i];
        if (rows < 0 || tensor_given(h) != tensor_given(b))
            return err_set(err, ERR_FAILED, "%s: h%d and b%d, wanted both or none", name, i, i);
        if (tensor_given(h) && (b->rows != rows || b->cols != h->cols))
            return err_set(err, ERR_FAILED, "%s: b%d is [%lld x %lld], wanted [%lld x %lld]", name,
                           i, (long long)b->rows, (long long)b->cols, (long long)rows,
                           (long long)h->cols);
    }
    if (n != op->out[EXPERT_LORA_OUT].cols)
        return err_set(err, ERR_FAILED, "%s: parts have %lld columns, wanted %lld", name,
                       (long long)n, (long long)op->out[EXPERT_LORA_OUT].cols);
    return 0;
}

/* Columns are split as b's rows, or y is a sum that is owed, and so is every h; or each rank has
 * some of the experts (ends are split), of everything their rows. */
static int expert_lora_spread(const struct spread_query *q)
{
    enum spread y = q->in[EXPERT_LORA_Y], ends = q->in[EXPERT_LORA_ENDS];
    int has_experts = y == SPREAD_ROWS && ends == SPREAD_COLS;
    enum spread h = y == SPREAD_COLS ? SPREAD_SAME : y;
    enum spread b = y == SPREAD_COLS || has_experts ? SPREAD_ROWS : SPREAD_SAME;

    if (!has_experts &&
        spread_want(q, EXPERT_LORA_ENDS, y == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME))
        return -1;
    for (int i = 0; i < OPS_LORA_PARTS; i++)
        if (spread_want(q, EXPERT_LORA_H0 + 2 * i, h) || spread_want(q, EXPERT_LORA_B0 + 2 * i, b))
            return -1;
    spread_give_all(q, y);
    return 0;
}

static double expert_lora_flops(const struct op_shape *op)
{
    double flops = 0, m = (double)op->in[EXPERT_LORA_ENDS].cols;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *b = &op->in[EXPERT_LORA_B0 + 2 * i];

        if (tensor_given(b))
            flops += 2 * (double)op->in[EXPERT_LORA_Y].rows * (double)tensor_elements(b) / m;
    }
    return flops;
}

/* dy: the columns of the output's gradient that these pairs have made. */
static void part_backward(struct backward *b, const struct op_node *op, int part, int dy)
{
    int h = op->in[EXPERT_LORA_H0 + 2 * part], w = op->in[EXPERT_LORA_B0 + 2 * part];
    int ends = op->in[EXPERT_LORA_ENDS];

    if (b->needs_gradient(b, h)) {
        int dh = backward_like(b, h);

        b->emit(b, &(struct op_node){ .kind = OP_EXPERT_LINEAR_DX,
                                      .attributes.n_rows = op->attributes.n_rows,
                                      .in = { [EXPERT_LINEAR_DX_DY] = dy,
                                              [EXPERT_LINEAR_DX_ENDS] = ends,
                                              [EXPERT_LINEAR_DX_W] = w },
                                      .out = { [EXPERT_LINEAR_DX_DX] = dh } });
        b->add_gradient(b, h, dh);
    }
    int dw = b->accumulator(b, w);
    if (dw)
        b->emit(b, &(struct op_node){ .kind = OP_EXPERT_LINEAR_DW,
                                      .attributes.n_rows = op->attributes.n_rows,
                                      .in = { [EXPERT_LINEAR_DW_DY] = dy,
                                              [EXPERT_LINEAR_DW_X] = h,
                                              [EXPERT_LINEAR_DW_ENDS] = ends },
                                      .out = { [EXPERT_LINEAR_DW_DW] = dw },
                                      .gradient_of = GRADIENT_OF_PARAMETERS });
}

static void expert_lora_backward(struct backward *b, const struct op_node *op)
{
    int dy = b->take_gradient(b, op->out[EXPERT_LORA_OUT]);
    int64_t first = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        int n = op->attributes.parts[i];

        if (op->in[EXPERT_LORA_H0 + 2 * i])
            part_backward(b, op, i, b->columns(b, dy, first, n));
        first += n;
    }
    b->add_gradient(b, op->in[EXPERT_LORA_Y], dy);
}

static const struct op_info expert_lora = {
    .name = "expert_lora",
    .n_inputs = 8,
    .inputs = {
        [EXPERT_LORA_Y] = { "y", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
        [EXPERT_LORA_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_PLAIN },
        [EXPERT_LORA_H0] = { "h0", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [EXPERT_LORA_B0] = { "b0", DIM_FREE, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [EXPERT_LORA_H1] = { "h1", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [EXPERT_LORA_B1] = { "b1", DIM_FREE, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [EXPERT_LORA_H2] = { "h2", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
        [EXPERT_LORA_B2] = { "b2", DIM_FREE, DIM_FREE, TYPE_ACT, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [EXPERT_LORA_OUT] = { "out", DIM_T, DIM_N, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_EXPERT_ROWS,
    .feature = FEATURE_EXPERT_ADAPTERS,
    .ends_input = 1 + EXPERT_LORA_ENDS,
    .routed_rows = DIM_T,
    .check = expert_lora_check,
    .spread = expert_lora_spread,
    .flops = expert_lora_flops,
    .backward = expert_lora_backward,
};

const struct op_info *const expert_lora_ops[N_OP_KINDS] = {
    [OP_EXPERT_LORA] = &expert_lora,
};
