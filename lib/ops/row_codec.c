/*
 * row_codec.c - activations between tensor-parallel ranks, in fewer bytes, and what rows are worth
 */
#include "ops/row_codec.h"

#include "ops/attention_sight_impl.h"

/* ---- scores ---- */

static int received_check(const struct op_shape *op, struct err *err)
{
    if (op->in[ATTENTION_RECEIVED_K].rows == op->in[ATTENTION_RECEIVED_Q].rows)
        return 0;
    return err_set(err, ERR_FAILED, "attention_received: k has %lld rows, wanted those of q, %lld",
                   (long long)op->in[ATTENTION_RECEIVED_K].rows,
                   (long long)op->in[ATTENTION_RECEIVED_Q].rows);
}

/* Ranks with some of the heads each have a summand. */
static int received_spread(const struct spread_query *q)
{
    static const struct spread_form form = {
        IN(ATTENTION_RECEIVED_Q) | IN(ATTENTION_RECEIVED_K) | IN(ATTENTION_RECEIVED_LSE),
        IN(ATTENTION_RECEIVED_FIRST) | IN(ATTENTION_RECEIVED_LAST), MAY_ROWS | MAY_COLS
    };
    int status = spread_heads(q, &form, ATTENTION_RECEIVED_HEAD_OFFSET, q->op->attributes.alibi);

    if (!status && q->in[ATTENTION_RECEIVED_Q] == SPREAD_COLS)
        spread_give_all(q, SPREAD_PARTIAL);
    return status;
}

static double received_flops(const struct op_shape *op)
{
    return 2 * attention_pairs(op, &op->in[ATTENTION_RECEIVED_Q], &op->in[ATTENTION_RECEIVED_K]) *
           op->attributes.head_dim;
}

static const struct op_info attention_received = {
    .name = "attention_received",
    .family = FAMILY_ATTENTION,
    .n_inputs = 6,
    .inputs = {
        [ATTENTION_RECEIVED_Q] = { "q", DIM_T, DIM_HE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_RECEIVED_K] = { "k", DIM_U, DIM_GE, TYPE_ACT, OPERAND_SEQUENCES },
        [ATTENTION_RECEIVED_LSE] = { "lse", DIM_T, DIM_H, TYPE_F32, OPERAND_PLAIN },
        [ATTENTION_RECEIVED_HEAD_OFFSET] = { "head_offset", DIM_ONE, DIM_ONE, TYPE_I32,
                                             OPERAND_OPTIONAL },
        [ATTENTION_RECEIVED_FIRST] = { "first", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [ATTENTION_RECEIVED_LAST] = { "last", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [ATTENTION_RECEIVED_SCORES] = { "scores", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_SEQ_LEN,
    .check = received_check,
    .spread = received_spread,
    .flops = received_flops,
};

/* ---- codes ---- */

static int check_codes(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (!(a->ratio > 0 && a->ratio <= 1))
        return err_set(err, ERR_FAILED, "%s: ratio is %g, wanted 0 < ratio <= 1", op_name(op->kind),
                       a->ratio);
    if (a->bits != 4 && a->bits != 8)
        return err_set(err, ERR_FAILED, "%s: bits is %d, wanted 4 or 8", op_name(op->kind),
                       a->bits);
    return 0;
}

/* rows: that a row of codes stands for. */
static int check_code_rows(const struct op_shape *op, const struct tensor *codes,
                           const struct tensor *x, int64_t rows, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    struct row_codes c = ops_row_codes(a->ratio, a->bits, rows, x->cols, dtype_bytes(x->dtype));

    if (x->cols % 8)
        return err_set(err, ERR_FAILED, "%s: %lld columns, wanted a multiple of 8",
                       op_name(op->kind), (long long)x->cols);
    if (codes->cols != row_codes_bytes(&c))
        return err_set(err, ERR_FAILED,
                       "%s: codes have %lld columns, wanted %lld for %lld rows of %lld",
                       op_name(op->kind), (long long)codes->cols, (long long)row_codes_bytes(&c),
                       (long long)rows, (long long)x->cols);
    return 0;
}

static int encode_rows_check(const struct op_shape *op, struct err *err)
{
    const struct tensor *x = &op->in[ENCODE_ROWS_X], *codes = &op->out[ENCODE_ROWS_CODES];

    if (x->rows % codes->rows)
        return err_set(err, ERR_FAILED, "encode_rows: x has %lld rows, wanted a multiple of %lld",
                       (long long)x->rows, (long long)codes->rows);
    return check_code_rows(op, codes, x, x->rows / codes->rows, err);
}

/* Codes are of the same rows as x: summands of them, where x is partial. */
static int encode_rows_spread(const struct spread_query *q)
{
    enum spread x = q->in[ENCODE_ROWS_X];

    spread_give_all(q, x);
    if (x == SPREAD_COLS)
        return spread_refuse(q, ENCODE_ROWS_X, MAY_ROWS | MAY_PARTIAL);
    return spread_want(q, ENCODE_ROWS_SCORES, x == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME);
}

static const struct op_info encode_rows = {
    .name = "encode_rows",
    .n_inputs = 2,
    .inputs = {
        [ENCODE_ROWS_X] = { "x", DIM_T, DIM_D, TYPE_MOVED, OPERAND_PLAIN },
        [ENCODE_ROWS_SCORES] = { "scores", DIM_T, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ENCODE_ROWS_CODES] = { "codes", DIM_FREE, DIM_FREE, TYPE_U8, OPERAND_PLAIN },
    },
    .check_attributes = check_codes,
    .check = encode_rows_check,
    .spread = encode_rows_spread,
    .flops_per_element = 10,
};

static int decode_rows_check(const struct op_shape *op, struct err *err)
{
    const struct tensor *codes = &op->in[DECODE_ROWS_CODES], *y = &op->out[DECODE_ROWS_Y];
    int64_t n_parts = op->attributes.joined ? codes->rows : 1;

    if (y->rows % n_parts)
        return err_set(err, ERR_FAILED, "decode_rows: y has %lld rows, wanted a multiple of %lld",
                       (long long)y->rows, (long long)n_parts);
    return check_code_rows(op, codes, y, y->rows / n_parts, err);
}

/* Each rank's part of exchanged codes are its columns: it has the sums of its rows. */
static int decode_rows_spread(const struct spread_query *q)
{
    enum spread codes = q->in[DECODE_ROWS_CODES];
    bool is_exchanged = codes == SPREAD_COLS && !q->op->attributes.joined;

    spread_give_all(q, is_exchanged ? SPREAD_ROWS : codes);
    return is_exchanged || codes == SPREAD_SAME || codes == SPREAD_ROWS
               ? 0
               : spread_refuse(q, DECODE_ROWS_CODES, MAY_ROWS);
}

/* Each element of each row of codes. */
static double decode_rows_flops(const struct op_shape *op)
{
    const struct tensor *y = &op->out[DECODE_ROWS_Y];
    int64_t n_summands = op->attributes.joined ? 1 : op->in[DECODE_ROWS_CODES].rows;

    return 4 * (double)n_summands * (double)y->rows * (double)y->cols;
}

static const struct op_info decode_rows = {
    .name = "decode_rows",
    .n_inputs = 1,
    .inputs = {
        [DECODE_ROWS_CODES] = { "codes", DIM_FREE, DIM_FREE, TYPE_U8, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [DECODE_ROWS_Y] = { "y", DIM_T, DIM_D, TYPE_MOVED, OPERAND_PLAIN },
    },
    .check_attributes = check_codes,
    .check = decode_rows_check,
    .spread = decode_rows_spread,
    .flops = decode_rows_flops,
};

const struct op_info *const row_codec_ops[N_OP_KINDS] = {
    [OP_ATTENTION_RECEIVED] = &attention_received,
    [OP_ENCODE_ROWS] = &encode_rows,
    [OP_DECODE_ROWS] = &decode_rows,
};
