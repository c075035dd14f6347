/*
 * embed.c - rows of a table by number
 */
#include <stdbool.h>

#include "base/num.h"
#include "ops/family_impl.h"

/* Rows of the table are split: each rank looks up what it has, from its own offset on. */
static bool is_part_of_table(const struct spread_query *q, int offset)
{
    return spread_given(q, offset) && q->in[offset] == SPREAD_COLS;
}

static int embed_spread(const struct spread_query *q)
{
    if (q->in[EMBED_TABLE] != SPREAD_ROWS && !is_part_of_table(q, EMBED_OFFSET))
        return spread_alike(q, IN(EMBED_INDEX) | IN(EMBED_BASE), 0, MAY_ROWS);
    spread_give_all(q, SPREAD_PARTIAL);
    if (spread_want(q, EMBED_TABLE, SPREAD_ROWS) || spread_want(q, EMBED_INDEX, SPREAD_SAME) ||
        spread_want(q, EMBED_BASE, SPREAD_PARTIAL))
        return -1;
    if (!spread_given(q, EMBED_OFFSET))
        return err_set(q->err, ERR_FAILED, "embed: table is split(rows), wanted offset");
    return spread_want(q, EMBED_OFFSET, SPREAD_COLS);
}

static double embed_flops(const struct op_shape *op)
{
    const struct tensor *base = &op->in[EMBED_BASE];

    return tensor_given(base) ? (double)tensor_elements(base) : 0;
}

/* Of a table only the looked-up rows are read. */
static void embed_moved(struct op_shape *op)
{
    op->in[EMBED_TABLE].rows = op->in[EMBED_INDEX].rows;
}

static void embed_backward(struct backward *b, const struct op_node *op)
{
    int dx = b->take_gradient(b, op->out[EMBED_X]);
    int dtable = b->accumulator(b, op->in[EMBED_TABLE]);

    if (dtable)
        b->emit(b, &(struct op_node){ .kind = OP_EMBED_DW,
                                      .in = { [EMBED_DW_DX] = dx,
                                              [EMBED_DW_INDEX] = op->in[EMBED_INDEX],
                                              [EMBED_DW_OFFSET] = op->in[EMBED_OFFSET] },
                                      .out = { [EMBED_DW_DTABLE] = dtable },
                                      .gradient_of = GRADIENT_OF_PARAMETERS });
    if (op->in[EMBED_BASE])
        b->add_gradient(b, op->in[EMBED_BASE], dx);
}

static const struct op_info embed = {
    .name = "embed",
    .family = FAMILY_EMBEDDING,
    .n_inputs = 4,
    .inputs = {
        [EMBED_INDEX] = { "index", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [EMBED_TABLE] = { "table", DIM_R, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [EMBED_BASE] = { "base", DIM_T, DIM_D, TYPE_STREAM, OPERAND_OPTIONAL },
        [EMBED_OFFSET] = { "offset", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [EMBED_X] = { "x", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_ROWS,
    .feature = FEATURE_ANY_MODEL,
    .spread = embed_spread,
    .flops = embed_flops,
    .moved = embed_moved,
    .backward = embed_backward,
};

static int embed_dw_spread(const struct spread_query *q)
{
    if (!is_part_of_table(q, EMBED_DW_OFFSET))
        return spread_alike(q, IN(EMBED_DW_DX) | IN(EMBED_DW_INDEX), 0, MAY_ROWS);
    spread_give_all(q, SPREAD_ROWS);
    if (spread_want(q, EMBED_DW_DX, SPREAD_SAME))
        return -1;
    return spread_want(q, EMBED_DW_INDEX, SPREAD_SAME);
}

static void embed_dw_moved(struct op_shape *op)
{
    struct tensor *dtable = &op->out[EMBED_DW_DTABLE];

    dtable->rows = min_i64(dtable->rows, op->in[EMBED_DW_DX].rows);
}

static const struct op_info embed_dw = {
    .name = "embed_dw",
    .family = FAMILY_EMBEDDING,
    .n_inputs = 3,
    .inputs = {
        [EMBED_DW_DX] = { "dx", DIM_T, DIM_D, TYPE_STREAM, OPERAND_PLAIN },
        [EMBED_DW_INDEX] = { "index", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [EMBED_DW_OFFSET] = { "offset", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [EMBED_DW_DTABLE] = { "dtable", DIM_R, DIM_D, TYPE_KEPT, OPERAND_ACCUMULATED },
    },
    .spread = embed_dw_spread,
    .flops_per_element = 1,
    .moved = embed_dw_moved,
};

static int select_rows_spread(const struct spread_query *q)
{
    enum spread x = q->in[SELECT_ROWS_X];

    if (x == SPREAD_PARTIAL)
        return spread_refuse(q, SELECT_ROWS_X, MAY_ROWS | MAY_COLS);
    /* Of what all ranks have, each may take other rows. */
    if (x == SPREAD_SAME && q->in[SELECT_ROWS_INDEX] == SPREAD_ROWS) {
        spread_give_all(q, SPREAD_ROWS);
        return 0;
    }
    spread_give_all(q, x);
    return spread_want(q, SELECT_ROWS_INDEX, x == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME);
}

static void select_rows_moved(struct op_shape *op)
{
    op->in[SELECT_ROWS_X].rows = op->in[SELECT_ROWS_INDEX].rows;
}

static const struct op_info select_rows = {
    .name = "select_rows",
    .n_inputs = 2,
    .inputs = {
        [SELECT_ROWS_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [SELECT_ROWS_INDEX] = { "index", DIM_ANY_ROWS, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [SELECT_ROWS_Y] = { "y", DIM_ANY_ROWS, DIM_D, TYPE_ACT, OPERAND_PLAIN },
    },
    .spread = select_rows_spread,
    .moved = select_rows_moved,
};

const struct op_info *const embed_ops[N_OP_KINDS] = {
    [OP_EMBED] = &embed,
    [OP_EMBED_DW] = &embed_dw,
    [OP_SELECT_ROWS] = &select_rows,
};
