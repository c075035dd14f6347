/*
 * collective.c - what ranks of a mesh axis exchange
 */
#include "ops/exchange_impl.h"

/* What a gather joins, or what a reduce_scatter leaves: parts of rows, or of a flat cell. */
static enum spread parts_of(const struct spread_query *q)
{
    return q->op->in[OPS_FIRST].cols == q->op->out[OPS_FIRST].cols ? SPREAD_ROWS : SPREAD_COLS;
}

int spread_over_axis(const struct spread_query *q, enum spread wanted, enum spread result)
{
    spread_give_all(q, q->on_axis ? result : q->in[OPS_FIRST]);
    return q->on_axis ? spread_want(q, 0, wanted) : 0;
}

/* A whole is its parts' rows, one below the other, or, of one row, its columns. */
static int check_parts(const struct op_shape *op, struct err *err)
{
    const struct tensor *in = &op->in[OPS_FIRST], *out = &op->out[OPS_FIRST];
    const struct op_info *info = op_info(op->kind);

    if (in->cols == out->cols)
        return 0;
    if (in->rows != out->rows)
        return err_set(err, ERR_FAILED, "%s: [%lld x %lld] and [%lld x %lld] differ in both",
                       info->name, (long long)in->rows, (long long)in->cols, (long long)out->rows,
                       (long long)out->cols);
    if (in->rows != 1)
        return err_set(err, ERR_FAILED, "%s: %s has %lld rows, wanted 1 or equal columns",
                       info->name, info->inputs[OPS_FIRST].name, (long long)in->rows);
    return 0;
}

static int all_gather_spread(const struct spread_query *q)
{
    return spread_over_axis(q, parts_of(q), SPREAD_SAME);
}

/*
 * Where every reader of the gathered rows has a part of what follows, each rank's gradient is a
 * summand: they are added up, and each takes its rows of the sum. Where they all do the same, they
 * have the same gradient, and each takes its rows.
 */
static void all_gather_backward(struct backward *b, const struct op_node *op)
{
    enum mesh_axis axis = op->attributes.axis;
    int shard = op->in[ALL_GATHER_SHARD], full = op->out[ALL_GATHER_FULL];
    int dfull = b->take_summand(b, full);

    if (!b->is_partial(b, full, dfull, axis)) {
        b->add_gradient(b, shard, b->local_shard(b, dfull, axis));
        return;
    }
    int dshard = b->new_like(b, shard, b->dtype(b, dfull));
    b->emit(b, &(struct op_node){ .kind = OP_REDUCE_SCATTER,
                                  .attributes.axis = axis,
                                  .in = { [REDUCE_SCATTER_FULL] = dfull },
                                  .out = { [REDUCE_SCATTER_SHARD] = dshard } });
    b->add_gradient(b, shard, dshard);
}

static const struct op_info all_gather = {
    .name = "all_gather",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [ALL_GATHER_SHARD] = { "shard", DIM_T, DIM_N, TYPE_ANY, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ALL_GATHER_FULL] = { "full", DIM_SIZE_T, DIM_SIZE_N, TYPE_ANY, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE | TRAIT_GATHER,
    .feature = FEATURE_SEQUENCE_PARALLEL,
    .check = check_parts,
    .spread = all_gather_spread,
    .backward = all_gather_backward,
};

static int reduce_scatter_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_PARTIAL, parts_of(q));
}

/* Each rank adds its summands of what it gets. */
static double sums_of_parts_flops(const struct op_shape *op)
{
    return (double)(tensor_elements(&op->in[OPS_FIRST]) - tensor_elements(&op->out[OPS_FIRST]));
}

/* The summands of a sum have its gradient: all of it, also where each rank has its rows alone. */
static void reduce_scatter_backward(struct backward *b, const struct op_node *op)
{
    int dshard = b->take_gradient(b, op->out[REDUCE_SCATTER_SHARD]);
    int full = op->in[REDUCE_SCATTER_FULL], dfull = b->new_like(b, full, b->dtype(b, dshard));

    b->emit(b, &(struct op_node){ .kind = OP_ALL_GATHER,
                                  .attributes.axis = op->attributes.axis,
                                  .in = { [ALL_GATHER_SHARD] = dshard },
                                  .out = { [ALL_GATHER_FULL] = dfull } });
    b->add_gradient(b, full, dfull);
}

static const struct op_info reduce_scatter = {
    .name = "reduce_scatter",
    .family = FAMILY_COLLECTIVE,
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
    .backward = reduce_scatter_backward,
};

static int all_reduce_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_PARTIAL, SPREAD_SAME);
}

static void all_reduce_backward(struct backward *b, const struct op_node *op)
{
    b->add_gradient(b, op->in[ALL_REDUCE_X], b->take_gradient(b, op->out[ALL_REDUCE_Y]));
}

static const struct op_info all_reduce = {
    .name = "all_reduce",
    .family = FAMILY_COLLECTIVE,
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
    .backward = all_reduce_backward,
};

static const struct op_info all_reduce_scalar = {
    .name = "all_reduce_scalar",
    .family = FAMILY_COLLECTIVE,
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

static void gather_heads_backward(struct backward *b, const struct op_node *op)
{
    int dout = b->take_gradient(b, op->out[GATHER_HEADS_OUT]), qkv = op->in[GATHER_HEADS_QKV];
    int dqkv = b->new_like(b, qkv, b->dtype(b, dout));

    b->emit(b, &(struct op_node){ .kind = OP_GATHER_HEADS_GRAD,
                                  .attributes = op->attributes,
                                  .in = { [GATHER_HEADS_GRAD_DOUT] = dout },
                                  .out = { [GATHER_HEADS_GRAD_DQKV] = dqkv } });
    b->add_gradient(b, qkv, dqkv);
}

static const struct op_info gather_heads = {
    .name = "gather_heads",
    .family = FAMILY_COLLECTIVE,
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
    .backward = gather_heads_backward,
};

static const struct op_info gather_heads_grad = {
    .name = "gather_heads_grad",
    .family = FAMILY_COLLECTIVE,
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

/* ---- sequences of which each rank has a part ---- */

void return_gradient(struct backward *b, struct op_node undo, int to, int dfrom)
{
    int dto;

    if (b->base(b, to))
        b->new_gradients(b, &to, 1, &dto);
    else
        dto = b->new_like(b, to, b->dtype(b, dfrom));
    undo.in[OPS_FIRST] = dfrom;
    undo.out[OPS_FIRST] = dto;
    b->emit(b, &undo);
    b->add_gradients(b, &to, 1, &dto);
}

static int check_exchange_attributes(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const char *name = op_name(op->kind);

    if (a->n_heads < 1)
        return err_set(err, ERR_FAILED, "%s: n_heads is %d, wanted at least 1", name, a->n_heads);
    if (a->n_kv_heads < 0 || (a->n_kv_heads && a->n_heads % a->n_kv_heads))
        return err_set(err, ERR_FAILED, "%s: n_kv_heads is %d, wanted 0 or a divisor of n_heads %d",
                       name, a->n_kv_heads, a->n_heads);
    if (a->head_dim < 1 || a->head_dim > OPS_HEAD_DIM_MAX)
        return err_set(err, ERR_FAILED, "%s: head_dim is %d, wanted 1..%d", name, a->head_dim,
                       OPS_HEAD_DIM_MAX);
    return 0;
}

/* The rows that each rank has of its sequences. */
static int check_sequences(const struct op_shape *op, const struct tensor *part, struct err *err)
{
    if (part->rows % op->attributes.seq_len)
        return err_set(err, ERR_FAILED, "%s: a part of %lld rows, wanted a multiple of seq_len %d",
                       op_name(op->kind), (long long)part->rows, op->attributes.seq_len);
    return 0;
}

static int check_columns(const struct op_shape *op, const struct tensor *t, int64_t wanted,
                         struct err *err)
{
    if (t->cols == wanted)
        return 0;
    return err_set(err, ERR_FAILED, "%s: %lld rows of %lld columns, wanted %lld", op_name(op->kind),
                   (long long)t->rows, (long long)t->cols, (long long)wanted);
}

static int check_slice(const struct op_shape *op, const struct tensor *part, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (a->part_rows % a->seq_len)
        return err_set(err, ERR_FAILED, "%s: part_rows is %lld, wanted a multiple of seq_len %d",
                       op_name(op->kind), (long long)a->part_rows, a->seq_len);
    if (a->first < 0 || a->first + part->rows > a->part_rows)
        return err_set(err, ERR_FAILED, "%s: rows %lld to %lld, wanted of 0 to %lld",
                       op_name(op->kind), (long long)a->first, (long long)(a->first + part->rows),
                       (long long)a->part_rows);
    return 0;
}

/* The rows that a rank has: of its sequences, or a slice of them. */
static int check_part(const struct op_shape *op, const struct tensor *part, struct err *err)
{
    return op->attributes.part_rows ? check_slice(op, part, err) : check_sequences(op, part, err);
}

/* x: all heads of a rank's rows; y: all rows of its heads. */
static int check_exchange(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    int is_back = op->kind == OP_HEADS_TO_ROWS;
    const struct tensor *x = is_back ? &op->out[OPS_FIRST] : &op->in[OPS_FIRST];
    const struct tensor *y = is_back ? &op->in[OPS_FIRST] : &op->out[OPS_FIRST];
    int64_t h = a->n_heads, g = a->n_kv_heads, n = y->rows / x->rows;

    if (check_part(op, x, err))
        return -1;
    if (h % n || (g % n && n % g))
        return err_set(err, ERR_FAILED, "%s: %lld ranks for %lld heads and %lld kv heads",
                       op_name(op->kind), (long long)n, (long long)h, (long long)g);
    int64_t kv = g && g < n ? 1 : g / n;
    if (check_columns(op, x, (h + 2 * g) * a->head_dim, err))
        return -1;
    return check_columns(op, y, (h / n + 2 * kv) * a->head_dim, err);
}

static int rows_to_heads_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_ROWS, SPREAD_COLS);
}

static void rows_to_heads_backward(struct backward *b, const struct op_node *op)
{
    struct op_node undo = { .kind = OP_HEADS_TO_ROWS, .attributes = op->attributes };

    return_gradient(b, undo, op->in[ROWS_TO_HEADS_X],
                    b->take_gradient(b, op->out[ROWS_TO_HEADS_Y]));
}

static const struct op_info rows_to_heads = {
    .name = "rows_to_heads",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [ROWS_TO_HEADS_X] = { "x", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ROWS_TO_HEADS_Y] = { "y", DIM_SIZE_T, DIM_FREE, TYPE_ACT, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN,
    .traits = TRAIT_COLLECTIVE,
    .feature = FEATURE_CONTEXT_PARALLEL,
    .check_attributes = check_exchange_attributes,
    .check = check_exchange,
    .spread = rows_to_heads_spread,
    .backward = rows_to_heads_backward,
};

static int heads_to_rows_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_COLS, SPREAD_ROWS);
}

static void heads_to_rows_backward(struct backward *b, const struct op_node *op)
{
    struct op_node undo = { .kind = OP_ROWS_TO_HEADS, .attributes = op->attributes };

    return_gradient(b, undo, op->in[HEADS_TO_ROWS_Y],
                    b->take_gradient(b, op->out[HEADS_TO_ROWS_X]));
}

static const struct op_info heads_to_rows = {
    .name = "heads_to_rows",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [HEADS_TO_ROWS_Y] = { "y", DIM_SIZE_T, DIM_FREE, TYPE_ACT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [HEADS_TO_ROWS_X] = { "x", DIM_T, DIM_FREE, TYPE_ACT, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN,
    .traits = TRAIT_COLLECTIVE,
    .feature = FEATURE_CONTEXT_PARALLEL,
    .check_attributes = check_exchange_attributes,
    .check = check_exchange,
    .spread = heads_to_rows_spread,
    .flops = sums_of_parts_flops,
    .backward = heads_to_rows_backward,
};

int check_two_chunks(const struct op_shape *op, const char *why, struct err *err)
{
    if (op->attributes.seq_len % 2)
        return err_set(err, ERR_FAILED, "%s: seq_len is %d, wanted an even number for %s",
                       op_name(op->kind), op->attributes.seq_len, why);
    return 0;
}

static int check_zigzag(const struct op_shape *op, struct err *err)
{
    return op->attributes.zigzag ? check_two_chunks(op, "zigzag", err) : 0;
}

static int check_gathered(const struct op_shape *op, struct err *err)
{
    bool has_part_in = ops_makes_whole(op->kind);

    return check_part(op, has_part_in ? &op->in[OPS_FIRST] : &op->out[OPS_FIRST], err);
}

static int gather_sequence_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_ROWS, SPREAD_SAME);
}

/* Its readers have other rows' queries on each rank: each gradient is a summand. */
static void gather_sequence_backward(struct backward *b, const struct op_node *op)
{
    struct op_node undo = { .kind = OP_SCATTER_SEQUENCE, .attributes = op->attributes };
    int whole = op->out[GATHER_SEQUENCE_WHOLE], dwhole = b->take_summand(b, whole);

    CHECK(b->is_partial(b, whole, dwhole, op->attributes.axis));
    return_gradient(b, undo, op->in[GATHER_SEQUENCE_PART], dwhole);
}

static const struct op_info gather_sequence = {
    .name = "gather_sequence",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [GATHER_SEQUENCE_PART] = { "part", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [GATHER_SEQUENCE_WHOLE] = { "whole", DIM_SIZE_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN,
    .traits = TRAIT_COLLECTIVE | TRAIT_GATHER,
    .feature = FEATURE_CONTEXT_PARALLEL,
    .check_attributes = check_zigzag,
    .check = check_gathered,
    .spread = gather_sequence_spread,
    .backward = gather_sequence_backward,
};

static int scatter_sequence_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_PARTIAL, SPREAD_ROWS);
}

static void scatter_sequence_backward(struct backward *b, const struct op_node *op)
{
    struct op_node undo = { .kind = OP_GATHER_SEQUENCE, .attributes = op->attributes };

    return_gradient(b, undo, op->in[SCATTER_SEQUENCE_WHOLE],
                    b->take_gradient(b, op->out[SCATTER_SEQUENCE_PART]));
}

static const struct op_info scatter_sequence = {
    .name = "scatter_sequence",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [SCATTER_SEQUENCE_WHOLE] = { "whole", DIM_SIZE_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [SCATTER_SEQUENCE_PART] = { "part", DIM_T, DIM_N, TYPE_MOVED, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_SEQ_LEN,
    .traits = TRAIT_COLLECTIVE,
    .check_attributes = check_zigzag,
    .check = check_gathered,
    .spread = scatter_sequence_spread,
    .flops = sums_of_parts_flops,
    .backward = scatter_sequence_backward,
};

static int check_direction(const struct op_shape *op, struct err *err)
{
    int peer = op->attributes.peer;

    if (peer != 1 && peer != -1)
        return err_set(err, ERR_FAILED, "%s: peer is %d, wanted 1 or -1", op_name(op->kind), peer);
    return 0;
}

static int rotate_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_ROWS, SPREAD_ROWS);
}

static const struct op_info rotate = {
    .name = "rotate",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [ROTATE_X] = { "x", DIM_T, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ROTATE_Y] = { "y", DIM_T, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE,
    .check_attributes = check_direction,
    .spread = rotate_spread,
};

/* Encoded summands of all of a sum; then of this rank's part of it, which is of columns. */
static int exchange_codes_spread(const struct spread_query *q)
{
    return spread_over_axis(q, SPREAD_PARTIAL, SPREAD_COLS);
}

static const struct op_info exchange_codes = {
    .name = "exchange_codes",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [EXCHANGE_CODES_X] = { "x", DIM_T, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [EXCHANGE_CODES_Y] = { "y", DIM_T, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE,
    .spread = exchange_codes_spread,
};

/* Each rank has all summands, or all parts. */
static int gather_codes_spread(const struct spread_query *q)
{
    enum spread x = q->in[GATHER_CODES_X];

    return spread_over_axis(q, x == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_PARTIAL, SPREAD_SAME);
}

static const struct op_info gather_codes = {
    .name = "gather_codes",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [GATHER_CODES_X] = { "x", DIM_ONE, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [GATHER_CODES_Y] = { "y", DIM_FREE, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE,
    .spread = gather_codes_spread,
};

/* What is received lies as it was sent, which is the program's to know. */
static int transfer_spread(const struct spread_query *q)
{
    (void)q;
    return 0;
}

static const struct op_info send = {
    .name = "send",
    .family = FAMILY_COLLECTIVE,
    .n_inputs = 1,
    .inputs = {
        [SEND_X] = { "x", DIM_T, DIM_D, TYPE_MOVED, OPERAND_PLAIN },
    },
    .traits = TRAIT_COLLECTIVE | TRAIT_TRANSFER,
    .spread = transfer_spread,
};

static const struct op_info receive = {
    .name = "receive",
    .family = FAMILY_COLLECTIVE,
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
    [OP_ROWS_TO_HEADS] = &rows_to_heads,
    [OP_HEADS_TO_ROWS] = &heads_to_rows,
    [OP_GATHER_SEQUENCE] = &gather_sequence,
    [OP_SCATTER_SEQUENCE] = &scatter_sequence,
    [OP_ROTATE] = &rotate,
    [OP_EXCHANGE_CODES] = &exchange_codes,
    [OP_GATHER_CODES] = &gather_codes,
    [OP_SEND] = &send,
    [OP_RECEIVE] = &receive,
};
