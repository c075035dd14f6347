/*
 * embed.c - facts of rows that are looked up
 */
#include "support/gradient_check.h"
#include "support/ops/op_family.h"

static void embed(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[EMBED_X].rows; t++)
        for (int64_t i = 0; i < op->out[EMBED_X].cols; i++) {
            int32_t index = int_at(&op->in[EMBED_INDEX], t),
                    row = index - begin_of(op, EMBED_OFFSET);

            OUT(EMBED_X, t, i) = tensor_given(&op->in[EMBED_BASE]) ? IN(EMBED_BASE, t, i) : 0;
            if (index >= 0 && row >= 0 && row < op->in[EMBED_TABLE].rows)
                OUT(EMBED_X, t, i) += IN(EMBED_TABLE, row, i);
        }
}

static void embed_dw(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->in[EMBED_DW_DX].rows; t++)
        for (int64_t i = 0; i < op->in[EMBED_DW_DX].cols; i++) {
            int32_t index = int_at(&op->in[EMBED_DW_INDEX], t),
                    row = index - begin_of(op, EMBED_DW_OFFSET);

            if (index >= 0 && row >= 0 && row < op->out[EMBED_DW_DTABLE].rows)
                OUT(EMBED_DW_DTABLE, row, i) += IN(EMBED_DW_DX, t, i);
        }
}

static void select_rows(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[SELECT_ROWS_Y].rows; t++)
        for (int64_t i = 0; i < op->out[SELECT_ROWS_Y].cols; i++)
            OUT(SELECT_ROWS_Y, t, i) = IN(SELECT_ROWS_X, int_at(&op->in[SELECT_ROWS_INDEX], t), i);
}

static void embed_gradients(void)
{
    struct op_case *c = op_case_create(OP_EMBED, &(struct op_attributes){ 0 });

    op_case_input(c, EMBED_INDEX, 6, 1, DTYPE_I32, 0);
    op_case_input(c, EMBED_TABLE, 4, 3, DTYPE_F32, 1);
    op_case_output(c, EMBED_X, 6, 3, DTYPE_F32);
    for (int t = 0; t < 6; t++)
        tensor_set(&c->op.in[EMBED_INDEX], t, 0, t % 3 - (t == 3));
    gradient_check(c, OP_EMBED_DW);
    op_case_destroy(c);
}

const struct op_facts embed_facts[N_OP_KINDS] = {
    [OP_EMBED] = {
        .example = "embed 12x1 i32, *50x8 bf16, 12x8 fp32, 1x1 i32 : 12x8 fp32",
        .spreads = "ssss > s; rsrs > r; srpc > p",
        .reference = embed,
        .gradients = embed_gradients,
    },
    [OP_EMBED_DW] = {
        .example = "embed_dw 12x8 fp32, 12x1 i32, 1x1 i32 : *50x8 fp32",
        .spreads = "sss > s; rrs > p; ssc > r",
        .reference = embed_dw,
    },
    [OP_SELECT_ROWS] = {
        .example = "select_rows *12x8 bf16, 3x1 i32 : 3x8 bf16",
        .spreads = "ss > s; sr > r; rr > r; cs > c",
        .reference = select_rows,
    },
};
