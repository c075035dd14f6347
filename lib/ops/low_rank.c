/*
 * low_rank.c - gradients on their way between ranks as factors of low rank: compress.c's powersgd
 */
#include "ops/family_impl.h"

static int check_rank(const struct op_shape *op, struct err *err)
{
    int rank = op->attributes.rank;

    if (1 <= rank && rank <= OPS_RANK_MAX)
        return 0;
    return err_set(err, ERR_FAILED, "%s: rank is %d, not in 1..%d", op_name(op->kind), rank,
                   OPS_RANK_MAX);
}

/* Tables have `words` numbers of each part, which are numbers of elements. */
static int check_parts(const struct op_shape *op, int64_t words, struct err *err)
{
    const struct tensor *x = &op->in[OPS_FIRST], *parts = &op->in[LOW_RANK_LEFT_PARTS];

    if (parts->cols % words)
        return err_set(err, ERR_FAILED, "%s: parts has %lld columns, wanted a multiple of %lld",
                       op_name(op->kind), (long long)parts->cols, (long long)words);
    if (x->cols > INT32_MAX)
        return err_set(err, ERR_FAILED, "%s: x has %lld columns, wanted at most %d",
                       op_name(op->kind), (long long)x->cols, INT32_MAX);
    return 0;
}

/* Each column less what it has of those before, twice where it is replaced. */
static double basis_flops(const struct op_shape *op)
{
    return 2 * (double)op->attributes.rank * (double)op->in[LOW_RANK_BASIS_X].cols;
}

/* As if all of x were matrices. */
static double product_flops(const struct op_shape *op)
{
    return 2 * (double)op->attributes.rank * (double)op->in[OPS_FIRST].cols;
}

static double sum_flops(const struct op_shape *op)
{
    return product_flops(op) + 6 * (double)op->in[LOW_RANK_SUM_X].cols;
}

static int basis_check(const struct op_shape *op, struct err *err)
{
    return check_parts(op, 2, err);
}

static int product_check(const struct op_shape *op, struct err *err)
{
    return check_parts(op, OPS_FACTORED_WORDS, err);
}

/* Partial: along another axis than that of the sum, over which each rank has summands and factors
 * of its own. */
static const struct op_info low_rank_basis = {
    .name = "low_rank_basis",
    .n_inputs = 2,
    .inputs = {
        [LOW_RANK_BASIS_X] = { "x", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [LOW_RANK_BASIS_PARTS] = { "parts", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [LOW_RANK_BASIS_Y] = { "y", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
    },
    .check_attributes = check_rank,
    .check = basis_check,
    .spread_form = { .data = IN(LOW_RANK_BASIS_X), .allowed = MAY_COLS | MAY_PARTIAL },
    .flops = basis_flops,
};

/*
 * Over the axis of the sum x is partial and the other factor is the same on all ranks, so what
 * comes out is partial. Over others both lie alike: ranks have different parts of matrices, or
 * different summands, and factors of their own.
 */
static int product_spread(const struct spread_query *q)
{
    enum spread x = q->in[OPS_FIRST], other = q->in[LOW_RANK_LEFT_RIGHT];

    if (spread_want(q, LOW_RANK_LEFT_PARTS, SPREAD_SAME))
        return -1;
    if (x == SPREAD_ROWS)
        return spread_refuse(q, OPS_FIRST, MAY_COLS | MAY_PARTIAL);
    if (other != x && !(x == SPREAD_PARTIAL && other == SPREAD_SAME))
        return spread_refuse_text(q, LOW_RANK_LEFT_RIGHT,
                                  x == SPREAD_PARTIAL ? "same or partial" : spread_name(x));
    q->out[OPS_FIRST] = x;
    return 0;
}

static const struct op_info low_rank_left = {
    .name = "low_rank_left",
    .n_inputs = 3,
    .inputs = {
        [LOW_RANK_LEFT_X] = { "x", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [LOW_RANK_LEFT_PARTS] = { "parts", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
        [LOW_RANK_LEFT_RIGHT] = { "right", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [LOW_RANK_LEFT_LEFT] = { "left", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_PLAIN },
    },
    .check_attributes = check_rank,
    .check = product_check,
    .spread = product_spread,
    .flops = product_flops,
};

static const struct op_info low_rank_right = {
    .name = "low_rank_right",
    .n_inputs = 3,
    .inputs = {
        [LOW_RANK_RIGHT_X] = { "x", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [LOW_RANK_RIGHT_PARTS] = { "parts", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
        [LOW_RANK_RIGHT_LEFT] = { "left", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [LOW_RANK_RIGHT_RIGHT] = { "right", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_PLAIN },
    },
    .check_attributes = check_rank,
    .check = product_check,
    .spread = product_spread,
    .flops = product_flops,
};

/* y lies as its factors: over the axis of the sum they are the same, though x is still partial. */
static int sum_spread(const struct spread_query *q)
{
    enum spread x = q->in[LOW_RANK_SUM_X], left = q->in[LOW_RANK_SUM_LEFT];

    if (product_spread(q) || spread_want(q, LOW_RANK_SUM_RIGHT, left))
        return -1;
    q->out[LOW_RANK_SUM_Y] = x == SPREAD_PARTIAL ? left : x;
    q->out[LOW_RANK_SUM_SUMS] = SPREAD_PARTIAL;
    return 0;
}

static const struct op_info low_rank_sum = {
    .name = "low_rank_sum",
    .n_inputs = 4,
    .inputs = {
        [LOW_RANK_SUM_X] = { "x", DIM_ONE, DIM_D, TYPE_F32, OPERAND_UPDATED },
        [LOW_RANK_SUM_PARTS] = { "parts", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
        [LOW_RANK_SUM_LEFT] = { "left", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_PLAIN },
        [LOW_RANK_SUM_RIGHT] = { "right", DIM_ONE, DIM_FREE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [LOW_RANK_SUM_Y] = { "y", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [LOW_RANK_SUM_SUMS] = { "sums", DIM_ONE, DIM_TWO, TYPE_F64, OPERAND_PLAIN },
    },
    .check_attributes = check_rank,
    .check = product_check,
    .spread = sum_spread,
    .flops = sum_flops,
};

const struct op_info *const low_rank_ops[N_OP_KINDS] = {
    [OP_LOW_RANK_BASIS] = &low_rank_basis,
    [OP_LOW_RANK_LEFT] = &low_rank_left,
    [OP_LOW_RANK_RIGHT] = &low_rank_right,
    [OP_LOW_RANK_SUM] = &low_rank_sum,
};
