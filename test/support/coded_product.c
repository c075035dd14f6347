/*
 * coded_product.c - weights rounded as a step rounds them, and products of them
 */
#include "support/coded_product.h"

#include <string.h>

static void add_matrices(struct op_case *c, int input, const struct ops_fp8_matrix *matrix)
{
    op_case_input(c, input, 1, OPS_FP8_MATRIX_COLS, DTYPE_I64, 1);
    memcpy(c->op.in[input].data, matrix, sizeof *matrix);
}

/* An op on the weight: fp8_weight_amax, fp8_weight_codes. */
static struct op_case *of_weight(enum op_kind kind, const struct op_case *own,
                                 const struct coded_weight *weight)
{
    struct op_case *c = op_case_create(kind, &own->op.attributes);
    const struct tensor *w = &own->op.in[weight->w];

    c->dense = true;
    op_case_input(c, OPS_FIRST, w->rows, w->cols, DTYPE_BF16, 1);
    op_case_copy(&c->op.in[OPS_FIRST], w);
    return c;
}

/* The codes of own's weight. */
static struct op_case *code_weight(const struct op_case *own, const struct coded_weight *weight)
{
    const struct tensor *w = &own->op.in[weight->w];
    int64_t blocks = ops_fp8_matrix_blocks(&weight->matrix, own->op.attributes.fp8 == FP8_TENSOR);
    struct op_case *amax = of_weight(OP_FP8_WEIGHT_AMAX, own, weight);
    struct op_case *codes = of_weight(OP_FP8_WEIGHT_CODES, own, weight);

    add_matrices(amax, FP8_WEIGHT_AMAX_MATRICES, &weight->matrix);
    op_case_output(amax, FP8_WEIGHT_AMAX_MOST, 1, blocks, DTYPE_F32);
    op_case_run(amax, 2, RUN_FIRST);
    op_case_input(codes, FP8_WEIGHT_CODES_MOST, 1, blocks, DTYPE_F32, 1);
    op_case_copy(&codes->op.in[FP8_WEIGHT_CODES_MOST], &amax->op.out[FP8_WEIGHT_AMAX_MOST]);
    add_matrices(codes, FP8_WEIGHT_CODES_MATRICES, &weight->matrix);
    op_case_output(codes, FP8_WEIGHT_CODES_CODES, w->rows, w->cols, DTYPE_U8);
    op_case_output(codes, FP8_WEIGHT_CODES_JOINED, 1, blocks, DTYPE_F32);
    op_case_run(codes, 2, RUN_FIRST);
    op_case_destroy(amax);
    return codes;
}

void coded_product_fill(struct op_case *coded, const struct op_case *own,
                        const struct coded_weight *weight)
{
    struct op_case *codes = code_weight(own, weight);
    const struct tensor *joined = &codes->op.out[FP8_WEIGHT_CODES_JOINED];

    op_case_copy(&coded->op.in[OPS_FIRST], &own->op.in[OPS_FIRST]);
    op_case_copy(&coded->op.in[weight->w], &codes->op.out[FP8_WEIGHT_CODES_CODES]);
    op_case_input(coded, weight->most, joined->rows, joined->cols, DTYPE_F32, 1);
    op_case_copy(&coded->op.in[weight->most], joined);
    op_case_destroy(codes);
}

void coded_product_check(struct op_case *coded, struct op_case *own, const char *what)
{
    op_case_check(coded, 4e-6);
    op_case_run(own, 2, RUN_FIRST);
    op_case_run(coded, 2, RUN_FIRST);
    op_case_same(&coded->op.out[OPS_FIRST], &own->op.out[OPS_FIRST], what);
    op_case_destroy(own);
    op_case_destroy(coded);
}
