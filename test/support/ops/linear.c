/*
 * linear.c - facts of products with weights, and of biases
 */
#include "support/gradient_check.h"
#include "support/ops/op_family.h"

/* Operands are dense: runs of rows lie one below the other. */
static void linear(const struct op_shape *given)
{
    const struct op_shape in_rows = op_in_rows(given), *op = &in_rows;

    for (int64_t t = 0; t < op->out[LINEAR_Y].rows; t++)
        for (int64_t n = 0; n < op->out[LINEAR_Y].cols; n++) {
            double sum = tensor_given(&op->in[LINEAR_B]) ? IN(LINEAR_B, 0, n) : 0;

            for (int64_t k = 0; k < op->in[LINEAR_X].cols; k++)
                sum += IN(LINEAR_X, t, k) * IN(LINEAR_W, n, k);
            OUT(LINEAR_Y, t, n) = sum;
        }
}

static void lora(const struct op_shape *op)
{
    int64_t begin = 0;

    for (int part = 0; part < OPS_LORA_PARTS; begin += op->attributes.parts[part++])
        for (int64_t t = 0; t < op->out[LORA_OUT].rows; t++)
            for (int64_t n = 0; n < op->attributes.parts[part]; n++) {
                double sum = IN(LORA_Y, t, begin + n);

                for (int64_t r = 0; r < op->in[LORA_H0 + 2 * part].cols; r++)
                    sum += IN(LORA_H0 + 2 * part, t, r) * IN(LORA_B0 + 2 * part, n, r);
                OUT(LORA_OUT, t, begin + n) = sum;
            }
}

static void linear_dx(const struct op_shape *given)
{
    const struct op_shape in_rows = op_in_rows(given), *op = &in_rows;

    for (int64_t t = 0; t < op->out[LINEAR_DX_DX].rows; t++)
        for (int64_t k = 0; k < op->out[LINEAR_DX_DX].cols; k++) {
            double sum = 0;

            for (int64_t n = 0; n < op->in[LINEAR_DX_DY].cols; n++)
                sum += IN(LINEAR_DX_DY, t, n) * IN(LINEAR_DX_W, n, k);
            OUT(LINEAR_DX_DX, t, k) = sum;
        }
}

static void linear_dw(const struct op_shape *op)
{
    int has_db = tensor_given(&op->out[LINEAR_DW_DB]);

    for (int64_t t = 0; t < op->in[LINEAR_DW_DY].rows; t++)
        for (int64_t n = 0; n < op->in[LINEAR_DW_DY].cols; n++) {
            for (int64_t k = 0; k < op->in[LINEAR_DW_X].cols; k++)
                OUT(LINEAR_DW_DW, n, k) += IN(LINEAR_DW_DY, t, n) * IN(LINEAR_DW_X, t, k);
            if (has_db)
                OUT(LINEAR_DW_DB, 0, n) += IN(LINEAR_DW_DY, t, n);
        }
}

static void add_bias(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[ADD_BIAS_Y].rows; t++)
        for (int64_t i = 0; i < op->out[ADD_BIAS_Y].cols; i++)
            OUT(ADD_BIAS_Y, t, i) = IN(ADD_BIAS_X, t, i) + IN(ADD_BIAS_B, 0, i);
}

static void bias_grad(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->in[BIAS_GRAD_DY].rows; t++)
        for (int64_t n = 0; n < op->in[BIAS_GRAD_DY].cols; n++)
            OUT(BIAS_GRAD_DB, 0, n) += IN(BIAS_GRAD_DY, t, n);
}

static void linear_gradients(void)
{
    struct op_case *c = op_case_create(OP_LINEAR, &(struct op_attributes){ 0 });

    op_case_input(c, LINEAR_X, 4, 5, DTYPE_F32, 1);
    op_case_input(c, LINEAR_W, 3, 5, DTYPE_F32, 1);
    op_case_input(c, LINEAR_B, 1, 3, DTYPE_F32, 1);
    op_case_output(c, LINEAR_Y, 4, 3, DTYPE_F32);
    gradient_check(c, OP_LINEAR_DX);
    gradient_check(c, OP_LINEAR_DW);
    op_case_destroy(c);
}

static void add_bias_gradients(void)
{
    struct op_case *c = op_case_create(OP_ADD_BIAS, &(struct op_attributes){ 0 });

    op_case_input(c, ADD_BIAS_X, 4, 5, DTYPE_F32, 1);
    op_case_input(c, ADD_BIAS_B, 1, 5, DTYPE_F32, 1);
    op_case_output(c, ADD_BIAS_Y, 4, 5, DTYPE_F32);
    gradient_check(c, OP_BIAS_GRAD);
    op_case_destroy(c);
}

const struct op_facts linear_facts[N_OP_KINDS] = {
    [OP_LINEAR] = {
        .example = "linear 12x8 bf16, 6x8 bf16, 1x6 fp32 : 12x6 bf16",
        .spreads = "sss > s; rss > r; src > c",
        .reference = linear,
        .gradients = linear_gradients,
    },
    [OP_LINEAR_DX] = {
        .example = "linear_dx 12x6 bf16, 6x8 bf16 : 12x8 bf16",
        .spreads = "ss > s; rs > r; cr > p; sc > c; ps > p",
        .reference = linear_dx,
    },
    [OP_LINEAR_DW] = {
        .example = "linear_dw 12x6 bf16, 12x8 bf16 : 6x8 fp32, 1x6 fp32",
        .spreads = "ss > ss; rr > pp; cs > rc; sc > cs; sp > ps; ps > pp",
        .reference = linear_dw,
    },
    [OP_ADD_BIAS] = {
        .example = "add_bias 12x6 bf16, 1x6 fp32 : 12x6 bf16",
        .spreads = "ss > s; rs > r; cc > c",
        .reference = add_bias,
        .gradients = add_bias_gradients,
    },
    [OP_BIAS_GRAD] = {
        .example = "bias_grad *12x6 bf16 : 1x6 fp32",
        .spreads = "s > s; r > p; c > c",
        .reference = bias_grad,
    },
    [OP_LORA] = {
        .example = "lora 12x6 bf16, 12x5 bf16, 2x5 bf16, 12x1 bf16, 1x1 bf16, 12x4 "
                   "bf16, 3x4 bf16 : 12x6 bf16",
        .spreads = "sssssss > s; rrsrsrs > r; csrsrsr > c; ppspsps > p",
        .reference = lora,
    },
};
