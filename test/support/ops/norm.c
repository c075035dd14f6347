/*
 * norm.c - facts of norms: of rows, of heads, of a matrix's rows
 */
#include <math.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

struct norm_operands {
    const struct tensor *x, *delta, *w, *b, *y, *mean, *rstd, *sum;
};

static void norm(const struct op_shape *op, const struct norm_operands *n)
{
    int64_t d = n->x->cols;

    for (int64_t t = 0; t < n->x->rows; t++) {
        double mean = 0, square = 0, rstd;

        for (int64_t i = 0; i < d; i++) {
            double x = *at(n->x, t, i) + (n->delta ? *at(n->delta, t, i) : 0);

            if (n->sum)
                *at(n->sum, t, i) = x;
            mean += x / (double)d;
        }
        if (!n->mean)
            mean = 0;
        for (int64_t i = 0; i < d; i++) {
            double x = *at(n->x, t, i) + (n->delta ? *at(n->delta, t, i) : 0);

            square += (x - mean) * (x - mean) / (double)d;
        }
        rstd = 1 / sqrt(square + op->attributes.eps);
        *at(n->rstd, t, 0) = rstd;
        if (n->mean)
            *at(n->mean, t, 0) = mean;
        for (int64_t i = 0; i < d; i++) {
            double x = *at(n->x, t, i) + (n->delta ? *at(n->delta, t, i) : 0);

            *at(n->y, t, i) = (x - mean) * rstd * *at(n->w, 0, i);
            if (n->b && tensor_given(n->b))
                *at(n->y, t, i) += *at(n->b, 0, i);
        }
    }
}

static void rmsnorm(const struct op_shape *op)
{
    norm(op, &(struct norm_operands){ .x = &op->in[RMSNORM_X],
                                      .w = &op->in[RMSNORM_W],
                                      .y = &op->out[RMSNORM_Y],
                                      .rstd = &op->out[RMSNORM_RSTD] });
}

static void layernorm(const struct op_shape *op)
{
    norm(op, &(struct norm_operands){ .x = &op->in[LAYERNORM_X],
                                      .w = &op->in[LAYERNORM_W],
                                      .b = &op->in[LAYERNORM_B],
                                      .y = &op->out[LAYERNORM_Y],
                                      .mean = &op->out[LAYERNORM_MEAN],
                                      .rstd = &op->out[LAYERNORM_RSTD] });
}

static void add_rmsnorm(const struct op_shape *op)
{
    norm(op, &(struct norm_operands){ .x = &op->in[ADD_RMSNORM_X],
                                      .delta = &op->in[ADD_RMSNORM_DELTA],
                                      .w = &op->in[ADD_RMSNORM_W],
                                      .y = &op->out[ADD_RMSNORM_Y],
                                      .rstd = &op->out[ADD_RMSNORM_RSTD],
                                      .sum = &op->out[ADD_RMSNORM_SUM] });
}

static void add_layernorm(const struct op_shape *op)
{
    norm(op, &(struct norm_operands){ .x = &op->in[ADD_LAYERNORM_X],
                                      .delta = &op->in[ADD_LAYERNORM_DELTA],
                                      .w = &op->in[ADD_LAYERNORM_W],
                                      .b = &op->in[ADD_LAYERNORM_B],
                                      .y = &op->out[ADD_LAYERNORM_Y],
                                      .mean = &op->out[ADD_LAYERNORM_MEAN],
                                      .rstd = &op->out[ADD_LAYERNORM_RSTD],
                                      .sum = &op->out[ADD_LAYERNORM_SUM] });
}

/* A LayerNorm's has mean before rstd and db before the copy. */
static void norm_grad(const struct op_shape *op)
{
    int layer = op->kind == OP_LAYERNORM_GRAD, rstd_at = RMSNORM_GRAD_RSTD + layer;
    int add = RMSNORM_GRAD_ADD + layer, copy = RMSNORM_GRAD_COPY + layer;
    int64_t d = op->in[RMSNORM_GRAD_X].cols;

    for (int64_t t = 0; t < op->in[RMSNORM_GRAD_X].rows; t++) {
        double mean = layer ? IN(LAYERNORM_GRAD_MEAN, t, 0) : 0, rstd = IN(rstd_at, t, 0);
        double g_mean = 0, gx_mean = 0;

        for (int64_t i = 0; i < d; i++) {
            double g = IN(RMSNORM_GRAD_DY, t, i) * IN(RMSNORM_GRAD_W, 0, i) / (double)d;

            g_mean += layer ? g : 0;
            gx_mean += g * (IN(RMSNORM_GRAD_X, t, i) - mean) * rstd;
        }
        for (int64_t i = 0; i < d; i++) {
            double dy = IN(RMSNORM_GRAD_DY, t, i), xhat = (IN(RMSNORM_GRAD_X, t, i) - mean) * rstd;
            double dx = rstd * (dy * IN(RMSNORM_GRAD_W, 0, i) - g_mean - xhat * gx_mean);

            if (tensor_given(&op->in[add]))
                dx += IN(add, t, i);
            OUT(RMSNORM_GRAD_DX, t, i) = dx;
            OUT(RMSNORM_GRAD_DW, 0, i) += dy * xhat;
            if (layer && tensor_given(&op->out[LAYERNORM_GRAD_DB]))
                OUT(LAYERNORM_GRAD_DB, 0, i) += dy;
            if (tensor_given(&op->out[copy]))
                OUT(copy, t, i) = dx;
        }
    }
}

/* Head by head, w of the q heads and of the k heads. */
static void head_norm(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    int64_t e = a->head_dim;

    for (int64_t t = 0; t < op->in[HEAD_NORM_QK].rows; t++)
        for (int64_t head = 0; head < a->n_heads + a->n_kv_heads; head++) {
            int input = head < a->n_heads ? HEAD_NORM_WQ : HEAD_NORM_WK;
            double square = 0, rstd;

            for (int64_t i = 0; i < e; i++)
                square += pow(IN(HEAD_NORM_QK, t, head * e + i), 2) / (double)e;
            rstd = 1 / sqrt(square + a->eps);
            OUT(HEAD_NORM_RSTD, t, head) = rstd;
            for (int64_t i = 0; i < e; i++)
                OUT(HEAD_NORM_OUT, t, head * e + i) =
                    IN(HEAD_NORM_QK, t, head * e + i) * rstd * IN(input, 0, i);
        }
}

static void head_norm_grad(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    int64_t e = a->head_dim;

    for (int64_t t = 0; t < op->in[HEAD_NORM_GRAD_DOUT].rows; t++)
        for (int64_t col = 0; col < op->in[HEAD_NORM_GRAD_DOUT].cols; col++) {
            int64_t head = col / e;
            int is_key = head >= a->n_heads;
            double mean = 0, xhat;

            for (int64_t i = 0; i < e; i++)
                mean += IN(HEAD_NORM_GRAD_DOUT, t, head * e + i) *
                        IN(HEAD_NORM_GRAD_WQ + is_key, 0, i) *
                        IN(HEAD_NORM_GRAD_QK, t, head * e + i) * IN(HEAD_NORM_GRAD_RSTD, t, head) /
                        (double)e;
            xhat = IN(HEAD_NORM_GRAD_QK, t, col) * IN(HEAD_NORM_GRAD_RSTD, t, head);
            OUT(HEAD_NORM_GRAD_DQK, t, col) =
                IN(HEAD_NORM_GRAD_RSTD, t, head) *
                (IN(HEAD_NORM_GRAD_DOUT, t, col) * IN(HEAD_NORM_GRAD_WQ + is_key, 0, col % e) -
                 xhat * mean);
            if (tensor_given(&op->out[HEAD_NORM_GRAD_DWQ + is_key]))
                OUT(HEAD_NORM_GRAD_DWQ + is_key, 0, col % e) +=
                    IN(HEAD_NORM_GRAD_DOUT, t, col) * xhat;
        }
}

static void normalize_rows(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->in[NORMALIZE_ROWS_W].rows; t++) {
        double square = 0;

        for (int64_t i = 0; i < op->in[NORMALIZE_ROWS_W].cols; i++)
            square += pow(IN(NORMALIZE_ROWS_W, t, i), 2);
        OUT(NORMALIZE_ROWS_NORM, t, 0) = fmax(sqrt(square), op->attributes.eps);
        for (int64_t i = 0; i < op->in[NORMALIZE_ROWS_W].cols; i++)
            OUT(NORMALIZE_ROWS_Y, t, i) =
                IN(NORMALIZE_ROWS_W, t, i) / OUT(NORMALIZE_ROWS_NORM, t, 0);
    }
}

static void normalize_rows_grad(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->in[NORMALIZE_ROWS_GRAD_DY].rows; t++) {
        double norm = IN(NORMALIZE_ROWS_GRAD_NORM, t, 0), dot = 0;

        for (int64_t i = 0; i < op->in[NORMALIZE_ROWS_GRAD_DY].cols && norm > op->attributes.eps;
             i++)
            dot += IN(NORMALIZE_ROWS_GRAD_DY, t, i) * IN(NORMALIZE_ROWS_GRAD_W, t, i) / norm;
        for (int64_t i = 0; i < op->in[NORMALIZE_ROWS_GRAD_DY].cols; i++)
            OUT(NORMALIZE_ROWS_GRAD_DW, t, i) +=
                (IN(NORMALIZE_ROWS_GRAD_DY, t, i) - dot * IN(NORMALIZE_ROWS_GRAD_W, t, i) / norm) /
                norm;
    }
}

static void norm_gradients(void)
{
    for (int layer = 0; layer < 2; layer++) {
        struct op_attributes a = { .eps = 1e-3 };
        struct op_case *c = op_case_create(layer ? OP_LAYERNORM : OP_RMSNORM, &a);

        op_case_input(c, LAYERNORM_X, 4, 7, DTYPE_F32, 1);
        op_case_input(c, LAYERNORM_W, 1, 7, DTYPE_F32, 1);
        if (layer)
            op_case_input(c, LAYERNORM_B, 1, 7, DTYPE_F32, 1);
        op_case_output(c, LAYERNORM_Y, 4, 7, DTYPE_F32);
        for (int i = 1; i < 2 + layer; i++)
            op_case_output(c, i, 4, 1, DTYPE_F32);
        gradient_check(c, layer ? OP_LAYERNORM_GRAD : OP_RMSNORM_GRAD);
        op_case_destroy(c);
    }
}

static void head_norm_gradients(void)
{
    struct op_attributes a = { .n_heads = 4, .n_kv_heads = 2, .head_dim = 3, .eps = 1e-3 };
    struct op_case *c = op_case_create(OP_HEAD_NORM, &a);

    op_case_input(c, HEAD_NORM_QK, 5, 18, DTYPE_F32, 1);
    op_case_input(c, HEAD_NORM_WQ, 1, 3, DTYPE_F32, 1);
    op_case_input(c, HEAD_NORM_WK, 1, 3, DTYPE_F32, 1);
    op_case_output(c, HEAD_NORM_OUT, 5, 18, DTYPE_F32);
    op_case_output(c, HEAD_NORM_RSTD, 5, 6, DTYPE_F32);
    gradient_check(c, OP_HEAD_NORM_GRAD);
    op_case_destroy(c);
}

/* Also where the length is less than eps. */
static void normalize_rows_gradients(void)
{
    for (int short_row = -1; short_row < 3; short_row++) {
        struct op_attributes a = { .eps = 0.01 };
        struct op_case *c = op_case_create(OP_NORMALIZE_ROWS, &a);

        op_case_input(c, NORMALIZE_ROWS_W, 3, 5, DTYPE_F32, 1);
        for (int i = 0; short_row >= 0 && i < 5; i++)
            tensor_set(&c->op.in[NORMALIZE_ROWS_W], short_row, i,
                       1e-3 * tensor_get(&c->op.in[NORMALIZE_ROWS_W], short_row, i));
        op_case_output(c, NORMALIZE_ROWS_Y, 3, 5, DTYPE_F32);
        op_case_output(c, NORMALIZE_ROWS_NORM, 3, 1, DTYPE_F32);
        gradient_check(c, OP_NORMALIZE_ROWS_GRAD);
        op_case_destroy(c);
    }
}

const struct op_facts norm_facts[N_OP_KINDS] = {
    [OP_RMSNORM] = {
        .example = "rmsnorm 12x8 fp32, 1x8 fp32 : 12x8 bf16, 12x1 fp32, 12x8 u8, 12x1 fp32",
        .spreads = "ss > ssss; rs > rrrr",
        .reference = rmsnorm,
        .gradients = norm_gradients,
    },
    [OP_RMSNORM_GRAD] = {
        .example = "rmsnorm_grad 12x8 bf16, 12x8 fp32, 1x8 fp32, 12x1 fp32, 12x8 fp32 : "
                   "12x8 fp32, 1x8 fp32, 12x8 bf16, 12x8 u8, 12x1 fp32",
        .spreads = "sssss > sssss; rrsrr > rprrr",
        .reference = norm_grad,
    },
    [OP_LAYERNORM] = {
        .example = "layernorm 12x8 fp32, 1x8 fp32, 1x8 fp32 : 12x8 bf16, 12x1 fp32, "
                   "12x1 fp32, 12x8 u8, 12x1 fp32",
        .spreads = "sss > sssss; rss > rrrrr",
        .reference = layernorm,
    },
    [OP_LAYERNORM_GRAD] = {
        .example = "layernorm_grad 12x8 bf16, 12x8 fp32, 1x8 fp32, 12x1 fp32, 12x1 "
                   "fp32, 12x8 fp32 : 12x8 fp32, 1x8 fp32, 1x8 fp32, 12x8 bf16, 12x8 u8, 12x1 fp32",
        .spreads = "ssssss > ssssss; rrsrrr > rpprrr",
        .reference = norm_grad,
    },
    [OP_ADD_RMSNORM] = {
        .example = "add_rmsnorm 12x8 fp32, 12x8 bf16, 1x8 fp32 : 12x8 bf16, 12x1 fp32, "
                   "12x8 fp32, 12x8 u8, 12x1 fp32",
        .spreads = "sss > sssss; rrs > rrrrr",
        .reference = add_rmsnorm,
    },
    [OP_ADD_LAYERNORM] = {
        .example = "add_layernorm 12x8 fp32, 12x8 bf16, 1x8 fp32, 1x8 fp32 : 12x8 bf16, "
                   "12x1 fp32, 12x1 fp32, 12x8 fp32, 12x8 u8, 12x1 fp32",
        .spreads = "ssss > ssssss; rrss > rrrrrr",
        .reference = add_layernorm,
    },
    [OP_HEAD_NORM] = {
        .example = "head_norm 12x12 bf16, 1x2 fp32, 1x2 fp32 : 12x12 bf16, 12x6 fp32",
        .spreads = "sss > ss; rss > rr; css > cc",
        .reference = head_norm,
        .gradients = head_norm_gradients,
    },
    [OP_HEAD_NORM_GRAD] = {
        .example = "head_norm_grad 12x12 bf16, 12x12 bf16, 1x2 fp32, 1x2 fp32, 12x6 "
                   "fp32 : 12x12 bf16, 1x2 fp32, 1x2 fp32",
        .spreads = "sssss > sss; rrssr > rpp; ccssc > cpp",
        .reference = head_norm_grad,
    },
    [OP_NORMALIZE_ROWS] = {
        .example = "normalize_rows 20x8 bf16 : 20x8 bf16, 20x1 fp32",
        .spreads = "s > ss; r > rr",
        .reference = normalize_rows,
        .gradients = normalize_rows_gradients,
    },
    [OP_NORMALIZE_ROWS_GRAD] = {
        .example = "normalize_rows_grad 20x8 fp32, 20x8 bf16, 20x1 fp32 : 20x8 fp32",
        .spreads = "sss > s; rrr > r; pss > p",
        .reference = normalize_rows_grad,
    },
};
