/*
 * ema.c - facts of the moving average
 */
#include "support/op_case.h"
#include "support/ops/op_family.h"

static void ema(const struct op_shape *op)
{
    double rate = (double)(float)op->attributes.rate;
    int copies = IN(EMA_SCALARS, 0, SCALAR_UPDATE) <= 1;

    if (int_at(&op->in[EMA_SKIP_UPDATE], 0))
        return;
    for (int64_t i = 0; i < tensor_elements(&op->in[EMA_X]); i++) {
        double *average = at(&op->in[EMA_AVERAGE], 0, i);

        *average = copies ? IN(EMA_X, 0, i) : *average + rate * (IN(EMA_X, 0, i) - *average);
    }
}

/* Skipped or not, at the first update and later; one row of blocks, and rows with gaps. */
static void ema_kernels(void)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 1, 7 }, { 1, 50003 }, { 37, 264 }, { 5, 33 } };

    for (int i = 0; i < 40; i++) {
        struct op_attributes a = { .rate = 0.125 };
        struct op_case *c = op_case_create(OP_EMA, &a);
        const int64_t *size = sizes[i / 8];

        c->dense = i % 2;
        op_case_input(c, EMA_X, size[0], size[1], i / 2 % 2 ? DTYPE_BF16 : DTYPE_F32, 1);
        op_case_input(c, EMA_SCALARS, 1, OPS_N_SCALARS, DTYPE_F32, 1);
        op_case_input(c, EMA_SKIP_UPDATE, 1, 1, DTYPE_I32, 0);
        op_case_input(c, EMA_AVERAGE, size[0], size[1], DTYPE_F32, 1);
        *(int32_t *)c->op.in[EMA_SKIP_UPDATE].data = i % 8 == 7;
        tensor_set(&c->op.in[EMA_SCALARS], 0, SCALAR_UPDATE, i / 4 % 2 ? 9 : 1);
        op_case_check(c, 3e-7);
        op_case_destroy(c);
    }
}

const struct op_facts ema_facts[N_OP_KINDS] = {
    [OP_EMA] = {
        .example = "ema 20x8 bf16, 1x4 fp32, 1x1 i32, 20x8 fp32, 20x8 i16 :",
        .spreads = "sssss >; rssrr >; csscc >",
        .reference = ema,
        .kernels = ema_kernels,
    },
};
