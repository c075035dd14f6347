/*
 * experts_fp8.c - facts of experts' products whose operands are rounded to e4m3: of each expert the
 * reference of linear_fp8 and its gradients, of its rows
 */
#include "support/ops/op_family.h"

/* Of codes, or of numbers as a reference has them. */
static struct tensor rows_of(const struct tensor *t, int64_t first, int64_t n)
{
    bool is_codes = t->dtype == DTYPE_U8;
    struct tensor rows = *t;

    rows.data = (char *)t->data +
                (size_t)first * (is_codes ? (size_t)t->stride : (size_t)t->cols * sizeof(double));
    rows.rows = n;
    return rows;
}

/* The product of rows [begin, end), which expert e has. */
static void product(const struct op_shape *op, int64_t e, int64_t begin, int64_t end)
{
    bool is_dw = op->kind == OP_EXPERT_LINEAR_DW_FP8;
    int ends = is_dw ? EXPERT_LINEAR_DW_ENDS : EXPERT_LINEAR_ENDS;
    int other = is_dw ? EXPERT_LINEAR_DW_X : EXPERT_LINEAR_W;
    const struct tensor *out = &op->out[EXPERT_LINEAR_Y];
    int64_t n = (is_dw ? out->rows : op->in[other].rows) / op->in[ends].cols;
    struct op_shape one = { .kind = is_dw                              ? OP_LINEAR_DW_FP8
                                    : op->kind == OP_EXPERT_LINEAR_FP8 ? OP_LINEAR_FP8
                                                                       : OP_LINEAR_DX_FP8,
                            .attributes = op->attributes };

    one.in[LINEAR_X] = rows_of(&op->in[EXPERT_LINEAR_X], begin, end - begin);
    one.in[LINEAR_W] =
        is_dw ? rows_of(&op->in[other], begin, end - begin) : rows_of(&op->in[other], e * n, n);
    one.out[LINEAR_Y] = is_dw ? rows_of(out, e * n, n) : rows_of(out, begin, end - begin);
    if (!is_dw && tensor_given(&op->in[EXPERT_LINEAR_FP8_W_MOST])) {
        struct tensor *most = &one.in[ops_fp8_most(one.kind, LINEAR_W)];

        *most = op->in[EXPERT_LINEAR_FP8_W_MOST];
        most->cols = op->attributes.fp8 == FP8_TENSOR
                         ? 1
                         : ((n + 127) / 128) * ((op->in[other].cols + 127) / 128);
        most->data = at(most, 0, e * most->cols);
    }
    op_facts(one.kind)->reference(&one);
}

static void experts_fp8(const struct op_shape *op)
{
    bool is_dw = op->kind == OP_EXPERT_LINEAR_DW_FP8;
    const struct tensor *ends = &op->in[is_dw ? EXPERT_LINEAR_DW_ENDS : EXPERT_LINEAR_ENDS];
    int64_t begin = 0;

    if (!is_dw)
        start(&op->out[EXPERT_LINEAR_Y]);
    for (int64_t e = 0; e < ends->cols; e++) {
        if (begin < int_at(ends, e))
            product(op, e, begin, int_at(ends, e));
        begin = int_at(ends, e);
    }
}

const struct op_facts experts_fp8_facts[N_OP_KINDS] = {
    [OP_EXPERT_LINEAR_FP8] = {
        .example = "expert_linear_fp8 24x32 bf16, 1x2 i32, 32x32 bf16, 1x*3 fp32 : 24x16 bf16",
        .spreads = "ssss > s; rrss > r; rcrs > r; rcrr > r; ssrs > c; ssrr > c; cscs > p; cscr > p",
        .reference = experts_fp8,
    },
    [OP_EXPERT_LINEAR_DX_FP8] = {
        .example = "expert_linear_dx_fp8 24x16 bf16, 1x2 i32, 32x32 bf16, 1x*3 fp32 : 24x32 bf16",
        .spreads = "ssss > s; rrss > r; rcrs > r; rcrr > r; sscs > c; sscr > c; csrs > p; "
                   "csrr > p; psss > p",
        .reference = experts_fp8,
    },
    [OP_EXPERT_LINEAR_DW_FP8] = {
        .example = "expert_linear_dw_fp8 24x16 bf16, 24x32 bf16, 1x2 i32 : 32x32 fp32",
        .spreads = "sss > s; rrr > p; rrc > r; css > r; scs > c; sps > p; pss > p",
        .reference = experts_fp8,
    },
};
