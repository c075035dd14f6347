/*
 * elementwise.c - facts of what is computed element by element
 */
#include <math.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The tanh of gelu. */
static double gelu_tanh(double x)
{
    return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

static void swiglu(const struct op_shape *op)
{
    int64_t f = op->out[SWIGLU_Y].cols;

    for (int64_t t = 0; t < op->out[SWIGLU_Y].rows; t++)
        for (int64_t i = 0; i < f; i++) {
            double gate = IN(SWIGLU_GU, t, i);

            OUT(SWIGLU_Y, t, i) = gate * sigmoid(gate) * IN(SWIGLU_GU, t, f + i);
        }
}

static void swiglu_grad(const struct op_shape *op)
{
    int64_t f = op->in[SWIGLU_GRAD_DY].cols;

    for (int64_t t = 0; t < op->in[SWIGLU_GRAD_DY].rows; t++)
        for (int64_t i = 0; i < f; i++) {
            double dy = IN(SWIGLU_GRAD_DY, t, i), gate = IN(SWIGLU_GRAD_GU, t, i);
            double s = sigmoid(gate), up = IN(SWIGLU_GRAD_GU, t, f + i);

            OUT(SWIGLU_GRAD_DGU, t, i) = dy * up * s * (1 + gate * (1 - s));
            OUT(SWIGLU_GRAD_DGU, t, f + i) = dy * gate * s;
        }
}

static void gelu(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[GELU_Y].rows; t++)
        for (int64_t i = 0; i < op->out[GELU_Y].cols; i++) {
            double x = IN(GELU_X, t, i);

            OUT(GELU_Y, t, i) = 0.5 * x * (1 + gelu_tanh(x));
        }
}

static void gelu_grad(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[GELU_GRAD_DX].rows; t++)
        for (int64_t i = 0; i < op->out[GELU_GRAD_DX].cols; i++) {
            double x = IN(GELU_GRAD_X, t, i), h = gelu_tanh(x);
            double inner = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
            double slope = 0.5 * (1 + h) + 0.5 * x * (1 - h * h) * inner;

            OUT(GELU_GRAD_DX, t, i) = IN(GELU_GRAD_DY, t, i) * slope;
        }
}

static void scale(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[SCALE_Y].rows; t++)
        for (int64_t i = 0; i < op->out[SCALE_Y].cols; i++)
            OUT(SCALE_Y, t, i) = op->attributes.scale * IN(SCALE_X, t, i);
}

/* Its gradient's operands lie at the same places (lib/ops/catalogue.c). */
static void dropout(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    const int32_t *numbers = op->in[DROPOUT_ROW].data;
    int32_t begin = begin_of(op, DROPOUT_OFFSET);

    for (int64_t t = 0; t < op->out[DROPOUT_Y].rows; t++)
        for (int64_t i = 0; i < op->out[DROPOUT_Y].cols; i++) {
            int64_t row = (a->by_columns ? 0 : begin) + t, col = a->by_columns ? begin + i : i;

            const int64_t *samples = op->in[DROPOUT_SAMPLE].data;

            row = numbers ? numbers[row] : row;
            OUT(DROPOUT_Y, t, i) =
                IN(DROPOUT_X, t, i) * reference_kept(a, samples[row / a->seq_len],
                                                     (uint64_t)(row % a->seq_len) << 32, col);
        }
}

static void add(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[ADD_Y].rows; t++)
        for (int64_t i = 0; i < op->out[ADD_Y].cols; i++)
            OUT(ADD_Y, t, i) = IN(ADD_A, t, i) + IN(ADD_B, t, i);
}

static void cast(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[CAST_Y].rows; t++)
        for (int64_t i = 0; i < op->out[CAST_Y].cols; i++)
            OUT(CAST_Y, t, i) = IN(CAST_X, t, i);
}

static void accumulate(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[ACCUMULATE_Y].rows; t++)
        for (int64_t i = 0; i < op->out[ACCUMULATE_Y].cols; i++)
            OUT(ACCUMULATE_Y, t, i) += IN(ACCUMULATE_X, t, i);
}

static void elementwise_gradients(enum op_kind kind, enum op_kind gradient, int in_cols,
                                  int out_cols)
{
    struct op_attributes a = { .seq_len = 2, .p = 0.4 };
    struct op_case *c = op_case_create(kind, &a);

    op_case_input(c, OPS_FIRST, 4, in_cols, DTYPE_F32, 2);
    if (kind == OP_DROPOUT)
        op_case_input(c, DROPOUT_SAMPLE, 2, 1, DTYPE_I64, 0);
    op_case_output(c, OPS_FIRST, 4, out_cols, DTYPE_F32);
    gradient_check(c, gradient);
    op_case_destroy(c);
}

static void swiglu_gradients(void)
{
    elementwise_gradients(OP_SWIGLU, OP_SWIGLU_GRAD, 10, 5);
}

static void gelu_gradients(void)
{
    elementwise_gradients(OP_GELU, OP_GELU_GRAD, 7, 7);
}

static void dropout_gradients(void)
{
    elementwise_gradients(OP_DROPOUT, OP_DROPOUT_GRAD, 9, 9);
}

/* Columns of inputs and of the output by those of the sizes; 0: absent. */
static void activation_kernels(enum op_kind kind, int in, int in2, int out)
{
    /* Odd, one wide row of several tiles, many rows of several tiles; without gaps between rows of
     * whole multiples of 16 bytes. */
    static const int64_t sizes[][2] = {
        { 1, 1 }, { 5, 33 }, { 1, 40001 }, { 700, 50 }, { 37, 264 }
    };

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            int64_t rows = sizes[s][0], cols = sizes[s][1];
            struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });
            enum dtype act = act_at(i_act);

            c->dense = cols % 8 == 0;
            op_case_input(c, SWIGLU_GRAD_DY, rows, in * cols, act, 3);
            if (in2)
                op_case_input(c, SWIGLU_GRAD_GU, rows, in2 * cols, act, 3);
            op_case_output(c, OPS_FIRST, rows, out * cols, act);
            op_case_check(c, 5e-6); /* gelu cancels left of zero */
            op_case_destroy(c);
        }
}

static void swiglu_kernels(void)
{
    activation_kernels(OP_SWIGLU, 2, 0, 1);
}

static void swiglu_grad_kernels(void)
{
    activation_kernels(OP_SWIGLU_GRAD, 1, 2, 2);
}

static void gelu_kernels(void)
{
    activation_kernels(OP_GELU, 1, 0, 1);
}

static void gelu_grad_kernels(void)
{
    activation_kernels(OP_GELU_GRAD, 1, 1, 1);
}

const struct op_facts elementwise_facts[N_OP_KINDS] = {
    [OP_SWIGLU] = {
        .example = "swiglu 12x20 bf16 : 12x10 bf16, 12x10 u8, 12x1 fp32",
        .spreads = "s > sss; r > rrr; c > ccc",
        .reference = swiglu,
        .gradients = swiglu_gradients,
        .kernels = swiglu_kernels,
    },
    [OP_SWIGLU_GRAD] = {
        .example = "swiglu_grad 12x10 bf16, 12x20 bf16 : 12x20 bf16, 12x20 u8, 12x1 fp32",
        .spreads = "ss > sss; rr > rrr; cc > ccc",
        .reference = swiglu_grad,
        .kernels = swiglu_grad_kernels,
    },
    [OP_GELU] = {
        .example = "gelu 12x10 bf16 : 12x10 bf16, 12x10 u8, 12x1 fp32",
        .spreads = "s > sss; r > rrr; c > ccc",
        .reference = gelu,
        .gradients = gelu_gradients,
        .kernels = gelu_kernels,
    },
    [OP_GELU_GRAD] = {
        .example = "gelu_grad 12x10 bf16, 12x10 bf16 : 12x10 bf16, 12x10 u8, 12x1 fp32",
        .spreads = "ss > sss; rr > rrr; cc > ccc",
        .reference = gelu_grad,
        .kernels = gelu_grad_kernels,
    },
    [OP_SCALE] = {
        .example = "scale 12x8 bf16 : 12x8 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
        .reference = scale,
    },
    [OP_DROPOUT] = {
        .example = "dropout 12x8 fp32, *2x1 i64, 1x1 i32, 12x1 i32 : 12x8 fp32",
        .spreads = "ssss > s; rrsr > r; rssr > r; rscs > r",
        .reference = dropout,
        .gradients = dropout_gradients,
    },
    [OP_DROPOUT_GRAD] = {
        .example = "dropout_grad 12x8 bf16, *2x1 i64, 1x1 i32, 12x1 i32 : 12x8 bf16",
        .spreads = "ssss > s; rrsr > r; rssr > r; rscs > r",
        .reference = dropout,
    },
    [OP_ADD] = {
        .example = "add 12x8 fp32, 12x8 bf16 : 12x8 fp32",
        .spreads = "ss > s; rr > r; cc > c; pp > p",
        .reference = add,
    },
    [OP_CAST] = {
        .example = "cast 12x8 fp32 : 12x8 bf16",
        .spreads = "s > s; r > r; c > c",
        .reference = cast,
    },
    [OP_ACCUMULATE] = {
        .example = "accumulate 20x8 fp32 : 20x8 fp32",
        .spreads = "s > s; r > r; c > c; p > p",
        .reference = accumulate,
    },
    [OP_AWAIT] = {
        .example = "await *20x*8 fp32 :",
        .spreads = "s >; r >; c >; p >",
    },
};
