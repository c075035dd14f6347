/*
 * compress.c - gradients on their way between ranks, in fewer bytes
 */
#include "ops/family_impl.h"

static int check_codec(const struct op_shape *op, struct err *err)
{
    enum codec codec = op->attributes.codec;

    if (codec == CODEC_INT8 || codec == CODEC_FP8)
        return 0;
    return err_set(err, ERR_FAILED, "%s: codec is %d, wanted one of blocks", op_name(op->kind),
                   (int)codec);
}

static int check_code_bytes(const struct op_shape *op, const struct tensor *codes, int64_t n,
                            struct err *err)
{
    if (codes->cols == ops_code_bytes(n))
        return 0;
    return err_set(err, ERR_FAILED, "%s: codes have %lld columns, wanted %lld for %lld elements",
                   op_name(op->kind), (long long)codes->cols, (long long)ops_code_bytes(n),
                   (long long)n);
}

static int encode_check(const struct op_shape *op, struct err *err)
{
    const struct tensor *x = &op->in[ENCODE_X], *codes = &op->out[ENCODE_CODES];

    if (x->cols % codes->rows)
        return err_set(err, ERR_FAILED, "encode: x has %lld columns, wanted a multiple of %lld",
                       (long long)x->cols, (long long)codes->rows);
    return check_code_bytes(op, codes, x->cols / codes->rows, err);
}

/* Sums are of each rank's own. */
static int encode_spread(const struct spread_query *q)
{
    q->out[ENCODE_CODES] = q->in[ENCODE_X];
    q->out[ENCODE_SUMS] = SPREAD_PARTIAL;
    return 0;
}

static const struct op_info encode = {
    .name = "encode",
    .n_inputs = 1,
    .inputs = {
        [ENCODE_X] = { "x", DIM_ONE, DIM_D, TYPE_F32, OPERAND_UPDATED },
    },
    .n_outputs = 2,
    .outputs = {
        [ENCODE_CODES] = { "codes", DIM_FREE, DIM_FREE, TYPE_U8, OPERAND_PLAIN },
        [ENCODE_SUMS] = { "sums", DIM_ONE, DIM_TWO, TYPE_F64, OPERAND_PLAIN },
    },
    .check_attributes = check_codec,
    .check = encode_check,
    .spread = encode_spread,
    .flops_per_element = 9,
};

static int decode_check(const struct op_shape *op, struct err *err)
{
    return check_code_bytes(op, &op->in[DECODE_CODES], op->out[DECODE_Y].cols, err);
}

/* Each element of each row, and the sum. */
static double decode_flops(const struct op_shape *op)
{
    return 3 * (double)op->in[DECODE_CODES].rows * (double)op->out[DECODE_Y].cols;
}

static const struct op_info decode = {
    .name = "decode",
    .n_inputs = 1,
    .inputs = {
        [DECODE_CODES] = { "codes", DIM_FREE, DIM_FREE, TYPE_U8, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [DECODE_Y] = { "y", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
    },
    .check_attributes = check_codec,
    .check = decode_check,
    /* Partial: over another axis than that of the exchange, along which a sum is still owed. */
    .spread_form = { .data = IN(DECODE_CODES), .allowed = MAY_COLS | MAY_PARTIAL },
    .flops = decode_flops,
};

static int top_k_check_attributes(const struct op_shape *op, struct err *err)
{
    if (op->attributes.ratio > 0 && op->attributes.ratio <= 1)
        return 0;
    return err_set(err, ERR_FAILED, "top_k: ratio is %g, wanted 0 < ratio <= 1",
                   op->attributes.ratio);
}

/* Numbers and bits are as many. */
static int check_even(const struct op_shape *op, const struct tensor *t, const char *name,
                      struct err *err)
{
    if (t->cols % 2 == 0)
        return 0;
    return err_set(err, ERR_FAILED, "%s: %s has %lld columns, wanted an even number",
                   op_name(op->kind), name, (long long)t->cols);
}

static int top_k_check(const struct op_shape *op, struct err *err)
{
    if (op->in[TOP_K_X].cols > INT32_MAX)
        return err_set(err, ERR_FAILED, "top_k: x has %lld columns, wanted at most %d",
                       (long long)op->in[TOP_K_X].cols, INT32_MAX);
    if (check_even(op, &op->in[TOP_K_PARTS], "parts", err))
        return -1;
    return check_even(op, &op->out[TOP_K_PAIRS], "pairs", err);
}

static int top_k_spread(const struct spread_query *q)
{
    q->out[TOP_K_PAIRS] = q->in[TOP_K_X];
    q->out[TOP_K_SUMS] = SPREAD_PARTIAL;
    return spread_want(q, TOP_K_PARTS, SPREAD_SAME);
}

static const struct op_info top_k = {
    .name = "top_k",
    .n_inputs = 2,
    .inputs = {
        [TOP_K_X] = { "x", DIM_ONE, DIM_D, TYPE_F32, OPERAND_UPDATED },
        [TOP_K_PARTS] = { "parts", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
    },
    .n_outputs = 2,
    .outputs = {
        [TOP_K_PAIRS] = { "pairs", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
        [TOP_K_SUMS] = { "sums", DIM_ONE, DIM_TWO, TYPE_F64, OPERAND_PLAIN },
    },
    .check_attributes = top_k_check_attributes,
    .check = top_k_check,
    .spread = top_k_spread,
    .flops_per_element = 8, /* three counts and a choice */
};

static int add_pairs_check(const struct op_shape *op, struct err *err)
{
    return check_even(op, &op->in[ADD_PAIRS_PAIRS], "pairs", err);
}

static double add_pairs_flops(const struct op_shape *op)
{
    return (double)op->in[ADD_PAIRS_PAIRS].rows * (double)op->out[ADD_PAIRS_Y].cols;
}

static const struct op_info add_pairs = {
    .name = "add_pairs",
    .n_inputs = 1,
    .inputs = {
        [ADD_PAIRS_PAIRS] = { "pairs", DIM_FREE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ADD_PAIRS_Y] = { "y", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
    },
    .check = add_pairs_check,
    .spread_form = { .data = IN(ADD_PAIRS_PAIRS), .allowed = MAY_COLS | MAY_PARTIAL },
    .flops = add_pairs_flops,
};

static const struct op_info add_error = {
    .name = "add_error",
    .n_inputs = 3,
    .inputs = {
        [ADD_ERROR_ERROR] = { "error", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [ADD_ERROR_SCALE] = { "scale", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [ADD_ERROR_X] = { "x", DIM_ONE, DIM_D, TYPE_F32, OPERAND_UPDATED },
    },
    .spread_form = { .data = IN(ADD_ERROR_ERROR) | IN(ADD_ERROR_X),
                     .allowed = MAY_COLS | MAY_PARTIAL },
    .flops_per_element = 2,
};

static const struct op_info keep_error = {
    .name = "keep_error",
    .n_inputs = 5,
    .inputs = {
        [KEEP_ERROR_LEFT] = { "left", DIM_ONE, DIM_D, TYPE_F32, OPERAND_PLAIN },
        [KEEP_ERROR_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [KEEP_ERROR_ERROR] = { "error", DIM_ONE, DIM_D, TYPE_F32, OPERAND_UPDATED },
        [KEEP_ERROR_SCALARS] = { "scalars", DIM_ONE, DIM_SCALARS, TYPE_F32, OPERAND_OPTIONAL },
        [KEEP_ERROR_SCALE] = { "scale", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
    },
    .spread_form = { .data = IN(KEEP_ERROR_LEFT) | IN(KEEP_ERROR_ERROR),
                     .allowed = MAY_COLS | MAY_PARTIAL },
};

const struct op_info *const compress_ops[N_OP_KINDS] = {
    [OP_ENCODE] = &encode,       [OP_DECODE] = &decode,       [OP_TOP_K] = &top_k,
    [OP_ADD_PAIRS] = &add_pairs, [OP_ADD_ERROR] = &add_error, [OP_KEEP_ERROR] = &keep_error,
};
