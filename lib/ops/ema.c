/*
 * ema.c - the moving average of a parameter
 */
#include "ops/family_impl.h"

static int ema_check_attributes(const struct op_shape *op, struct err *err)
{
    double rate = op->attributes.rate;

    if (rate > 0 && rate <= 1)
        return 0;
    return err_set(err, ERR_FAILED, "%s: rate is %g, wanted 0 < rate <= 1", op_name(op->kind),
                   rate);
}

static int ema_check(const struct op_shape *op, struct err *err)
{
    enum dtype x = op->in[EMA_X].dtype;

    if (!tensor_given(&op->in[EMA_LOW]) || x == DTYPE_BF16)
        return 0;
    return err_set(err, ERR_FAILED, "%s: x is %s beside low, wanted bf16", op_name(op->kind),
                   dtype_name(x));
}

static const struct op_info ema = {
    .name = "ema",
    .n_inputs = 5,
    .inputs = {
        [EMA_X] = { "x", DIM_R, DIM_D, TYPE_KEPT, OPERAND_PLAIN },
        [EMA_SCALARS] = { "scalars", DIM_ONE, DIM_SCALARS, TYPE_F32, OPERAND_PLAIN },
        [EMA_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [EMA_AVERAGE] = { "average", DIM_R, DIM_D, TYPE_F32, OPERAND_UPDATED },
        [EMA_LOW] = { "low", DIM_R, DIM_D, TYPE_I16, OPERAND_OPTIONAL },
    },
    .traits = TRAIT_ON_HOST | TRAIT_BY_BLOCKS,
    .check_attributes = ema_check_attributes,
    .check = ema_check,
    .spread_form = { .data = IN(EMA_X) | IN(EMA_AVERAGE) | IN(EMA_LOW),
                     .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 3,
};

const struct op_info *const ema_ops[N_OP_KINDS] = {
    [OP_EMA] = &ema,
};
