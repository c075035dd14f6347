/*
 * collective_window.c - of sequences of which each rank has two chunks, what a window sees
 */
#include "ops/exchange_impl.h"

static int check_window_attributes(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (check_two_chunks(op, "two chunks", err))
        return -1;
    if (a->window < 1 || a->window > a->seq_len / 2)
        return err_set(err, ERR_FAILED, "%s: window is %d, wanted 1..%d, the rows of a chunk",
                       op_name(op->kind), a->window, a->seq_len / 2);
    return 0;
}

static int check_spans(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    int is_back = op->kind == OP_SCATTER_WINDOW;
    const struct tensor *part = is_back ? &op->out[OPS_FIRST] : &op->in[OPS_FIRST];
    const struct tensor *seen = is_back ? &op->in[OPS_FIRST] : &op->out[OPS_FIRST];
    int64_t rows = part->rows / a->seq_len * 2 * ops_window_rows(a->seq_len / 2, a->window);

    if (seen->rows == rows)
        return 0;
    return err_set(err, ERR_FAILED, "%s: seen has %lld rows, wanted %lld", op_name(op->kind),
                   (long long)seen->rows, (long long)rows);
}

/* As if all rows were gathered: what is not here, no reader of the rank sees. */
static int gather_window_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_ROWS, SPREAD_SAME);
}

static int scatter_window_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_PARTIAL, SPREAD_ROWS);
}

/* Its readers have other rows' queries on each rank: each gradient is a summand. */
static void gather_window_backward(struct backward *b, const struct op_node *op)
{
    struct op_node undo = { .kind = OP_SCATTER_WINDOW, .attributes = op->attributes };
    int seen = op->out[GATHER_WINDOW_SEEN], dseen = b->take_summand(b, seen);

    CHECK(b->is_partial(b, seen, dseen, op->attributes.axis));
    return_gradient(b, undo, op->in[GATHER_WINDOW_PART], dseen);
}

static const struct op_info gather_window = {
    .name = "gather_window",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [GATHER_WINDOW_PART] = { "part", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [GATHER_WINDOW_SEEN] = { "seen", DIM_FREE, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN,
    .traits = TRAIT_COLLECTIVE | TRAIT_GATHER,
    .feature = FEATURE_CONTEXT_PARALLEL,
    .check_attributes = check_window_attributes,
    .check = check_spans,
    .spread = gather_window_spread,
    .backward = gather_window_backward,
};

static void scatter_window_backward(struct backward *b, const struct op_node *op)
{
    struct op_node undo = { .kind = OP_GATHER_WINDOW, .attributes = op->attributes };

    return_gradient(b, undo, op->in[SCATTER_WINDOW_SEEN],
                    b->take_gradient(b, op->out[SCATTER_WINDOW_PART]));
}

/* One add for each row that a neighbour sees, too. */
static double scatter_window_flops(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *part = &op->out[SCATTER_WINDOW_PART];

    return 2.0 * (double)(part->rows / a->seq_len * (a->window - 1) * part->cols);
}

static const struct op_info scatter_window = {
    .name = "scatter_window",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [SCATTER_WINDOW_SEEN] = { "seen", DIM_FREE, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [SCATTER_WINDOW_PART] = { "part", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN,
    .traits = TRAIT_COLLECTIVE,
    .check_attributes = check_window_attributes,
    .check = check_spans,
    .spread = scatter_window_spread,
    .flops = scatter_window_flops,
    .backward = scatter_window_backward,
};

const struct op_info *const collective_window_ops[N_OP_KINDS] = {
    [OP_GATHER_WINDOW] = &gather_window,
    [OP_SCATTER_WINDOW] = &scatter_window,
};
