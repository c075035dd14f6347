/*
 * experts.c - facts of what goes to experts and back
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

static int32_t *chosen(const struct tensor *t, int64_t row, int64_t i)
{
    return (int32_t *)t->data + row * t->cols + i;
}

static void expert_order(const struct op_shape *op)
{
    const struct tensor *experts = &op->in[EXPERT_ORDER_EXPERT];
    int32_t row = 0, begin = begin_of(op, EXPERT_ORDER_BEGIN);

    for (int64_t i = 0; i < tensor_elements(experts); i++)
        ((int32_t *)op->out[EXPERT_ORDER_PLACE].data)[i] = -1;
    for (int64_t e = 0; e < op->out[EXPERT_ORDER_ENDS].cols; e++) {
        for (int64_t i = 0; i < tensor_elements(experts); i++)
            if (((const int32_t *)experts->data)[i] == begin + e)
                ((int32_t *)op->out[EXPERT_ORDER_PLACE].data)[i] = row++;
        ((int32_t *)op->out[EXPERT_ORDER_ENDS].data)[e] = row;
    }
}

static void dispatch(const struct op_shape *op)
{
    const struct tensor *place = &op->in[DISPATCH_PLACE];

    for (int64_t t = 0; t < place->rows; t++)
        for (int64_t i = 0; i < place->cols; i++)
            for (int64_t col = 0; *chosen(place, t, i) >= 0 && col < op->out[DISPATCH_Y].cols;
                 col++)
                OUT(DISPATCH_Y, *chosen(place, t, i), col) = IN(DISPATCH_X, t, col);
}

static void combine(const struct op_shape *op)
{
    const struct tensor *place = &op->in[COMBINE_PLACE];

    start(&op->out[COMBINE_X]);
    for (int64_t t = 0; t < place->rows; t++)
        for (int64_t i = 0; i < place->cols; i++)
            for (int64_t col = 0; *chosen(place, t, i) >= 0 && col < op->out[COMBINE_X].cols; col++)
                OUT(COMBINE_X, t, col) += IN(COMBINE_Y, *chosen(place, t, i), col);
}

static int64_t expert_of(const struct tensor *ends, int64_t row)
{
    int64_t e = 0;

    while (int_at(ends, e) <= row)
        e++;
    return e;
}

/* That experts have. */
static int64_t n_rows_of(const struct tensor *ends)
{
    return int_at(ends, ends->cols - 1);
}

/* With the operands of both: they lie at the same places (lib/ops/catalogue.c). */
static void expert_linear(const struct op_shape *op)
{
    int dx = op->kind == OP_EXPERT_LINEAR_DX;
    int64_t n = op->in[EXPERT_LINEAR_W].rows / op->in[EXPERT_LINEAR_ENDS].cols;

    start(&op->out[EXPERT_LINEAR_Y]);
    for (int64_t t = 0; t < n_rows_of(&op->in[EXPERT_LINEAR_ENDS]); t++) {
        int64_t w_row = expert_of(&op->in[EXPERT_LINEAR_ENDS], t) * n;

        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < op->in[EXPERT_LINEAR_W].cols; k++)
                OUT(EXPERT_LINEAR_Y, t, dx ? k : i) +=
                    IN(EXPERT_LINEAR_W, w_row + i, k) * IN(EXPERT_LINEAR_X, t, dx ? i : k);
    }
}

static void expert_linear_dw(const struct op_shape *op)
{
    int64_t n = op->in[EXPERT_LINEAR_DW_DY].cols;

    for (int64_t t = 0; t < n_rows_of(&op->in[EXPERT_LINEAR_DW_ENDS]); t++) {
        int64_t w_row = expert_of(&op->in[EXPERT_LINEAR_DW_ENDS], t) * n;

        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < op->in[EXPERT_LINEAR_DW_X].cols; k++)
                OUT(EXPERT_LINEAR_DW_DW, w_row + i, k) +=
                    IN(EXPERT_LINEAR_DW_DY, t, i) * IN(EXPERT_LINEAR_DW_X, t, k);
    }
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void expert_swiglu(const struct op_shape *op)
{
    int64_t f = op->out[EXPERT_SWIGLU_Y].cols;

    for (int64_t t = 0; t < op->in[EXPERT_SWIGLU_WEIGHT].rows; t++)
        for (int64_t i = 0; i < op->in[EXPERT_SWIGLU_WEIGHT].cols; i++) {
            int32_t row = *chosen(&op->in[EXPERT_SWIGLU_PLACE], t, i);

            for (int64_t col = 0; row >= 0 && col < f; col++)
                OUT(EXPERT_SWIGLU_Y, row, col) = IN(EXPERT_SWIGLU_WEIGHT, t, i) *
                                                 silu(IN(EXPERT_SWIGLU_GU, row, col)) *
                                                 IN(EXPERT_SWIGLU_GU, row, f + col);
        }
}

static void expert_swiglu_grad(const struct op_shape *op)
{
    int64_t f = op->in[EXPERT_SWIGLU_GRAD_DY].cols;

    start(&op->out[EXPERT_SWIGLU_GRAD_DWEIGHT]);
    for (int64_t t = 0; t < op->in[EXPERT_SWIGLU_GRAD_WEIGHT].rows; t++)
        for (int64_t i = 0; i < op->in[EXPERT_SWIGLU_GRAD_WEIGHT].cols; i++) {
            int32_t row = *chosen(&op->in[EXPERT_SWIGLU_GRAD_PLACE], t, i);

            for (int64_t col = 0; row >= 0 && col < f; col++) {
                double gate = IN(EXPERT_SWIGLU_GRAD_GU, row, col),
                       up = IN(EXPERT_SWIGLU_GRAD_GU, row, f + col), s = 1 / (1 + exp(-gate));
                double g = IN(EXPERT_SWIGLU_GRAD_DY, row, col);

                OUT(EXPERT_SWIGLU_GRAD_DGU, row, col) =
                    IN(EXPERT_SWIGLU_GRAD_WEIGHT, t, i) * g * up * (s + gate * s * (1 - s));
                OUT(EXPERT_SWIGLU_GRAD_DGU, row, f + col) =
                    IN(EXPERT_SWIGLU_GRAD_WEIGHT, t, i) * g * silu(gate);
                OUT(EXPERT_SWIGLU_GRAD_DWEIGHT, t, i) += g * silu(gate) * up;
            }
        }
}

static void experts_gradients(void)
{
    static const int ends[] = { 2, 2, 6 }, places[] = { 4, 0, 5, 2, 1, 3 };
    struct op_case *linear = op_case_create(OP_EXPERT_LINEAR, &(struct op_attributes){ 0 });
    struct op_case *swiglu = op_case_create(OP_EXPERT_SWIGLU, &(struct op_attributes){ 0 });

    op_case_input(linear, EXPERT_LINEAR_X, 6, 4, DTYPE_F32, 1);
    op_case_input(linear, EXPERT_LINEAR_ENDS, 1, 3, DTYPE_I32, 0);
    op_case_input(linear, EXPERT_LINEAR_W, 3 * 5, 4, DTYPE_F32, 1);
    op_case_output(linear, EXPERT_LINEAR_Y, 6, 5, DTYPE_F32);
    op_case_input(swiglu, EXPERT_SWIGLU_WEIGHT, 3, 2, DTYPE_F32, 1);
    op_case_input(swiglu, EXPERT_SWIGLU_PLACE, 3, 2, DTYPE_I32, 0);
    op_case_input(swiglu, EXPERT_SWIGLU_GU, 6, 8, DTYPE_F32, 1);
    op_case_output(swiglu, EXPERT_SWIGLU_Y, 6, 4, DTYPE_F32);
    for (int i = 0; i < 3; i++)
        tensor_set(&linear->op.in[EXPERT_LINEAR_ENDS], 0, i, ends[i]);
    for (int i = 0; i < 6; i++)
        tensor_set(&swiglu->op.in[EXPERT_SWIGLU_PLACE], i / 2, i % 2, places[i]);
    gradient_check(linear, OP_EXPERT_LINEAR_DX);
    gradient_check(linear, OP_EXPERT_LINEAR_DW);
    gradient_check(swiglu, OP_EXPERT_SWIGLU_GRAD);
    op_case_destroy(linear);
    op_case_destroy(swiglu);
}

const struct op_facts experts_facts[N_OP_KINDS] = {
    [OP_EXPERT_ORDER] = {
        .example = "expert_order 12x2 i32, 1x1 i32 : 12x2 i32, 1x*5 i32",
        .spreads = "ss > ss; rs > rr; sc > rc",
        .reference = expert_order,
    },
    [OP_DISPATCH] = {
        .example = "dispatch 12x*2 i32, 12x8 bf16, 1x*5 i32 : *20x8 bf16",
        .spreads = "sss > s; rrr > r; rrc > r; scs > c; sps > p",
        .reference = dispatch,
    },
    [OP_COMBINE] = {
        .example = "combine 12x*2 i32, *20x8 bf16 : 12x8 bf16",
        .spreads = "ss > s; rr > r; sc > c; sp > p",
        .reference = combine,
    },
    [OP_EXPERT_LINEAR] = {
        .example = "expert_linear 24x8 bf16, 1x5 i32, 30x8 bf16 : 24x6 bf16",
        .spreads = "sss > s; rrs > r; rcr > r; ssr > c; csc > p",
        .reference = expert_linear,
        .gradients = experts_gradients,
    },
    [OP_EXPERT_LINEAR_DX] = {
        .example = "expert_linear_dx 24x6 bf16, 1x5 i32, 30x8 bf16 : 24x8 bf16",
        .spreads = "sss > s; rrs > r; rcr > r; ssc > c; csr > p; pss > p",
        .reference = expert_linear,
    },
    [OP_EXPERT_LINEAR_DW] = {
        .example = "expert_linear_dw 24x6 bf16, 24x8 bf16, 1x5 i32 : 30x8 fp32",
        .spreads = "sss > s; rrr > p; rrc > r; css > r; scs > c; sps > p; pss > p",
        .reference = expert_linear_dw,
    },
    [OP_EXPERT_SWIGLU] = {
        .example = "expert_swiglu 12x2 fp32, 12x2 i32, 24x20 bf16, 1x*5 i32 : 24x10 bf16",
        .spreads = "ssss > s; rrrr > r; rrrc > r; srrr > r; srrc > r; sscs > c",
        .reference = expert_swiglu,
    },
    [OP_EXPERT_SWIGLU_GRAD] = {
        .example = "expert_swiglu_grad 12x2 fp32, 12x2 i32, 24x10 bf16, 24x20 bf16, 1x*5 i32 : "
                   "24x20 bf16, 12x2 fp32",
        .spreads = "sssss > ss; rrrrr > rr; rrrrc > rr; srrrr > rp; srrrc > rp; ssccs > cp",
        .reference = expert_swiglu_grad,
    },
};
