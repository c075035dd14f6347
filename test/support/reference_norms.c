/*
 * reference_norms.c - norms of heads and of a matrix's rows, in double precision
 */
#include <math.h>

#include "support/reference_impl.h"

/* Head by head, w of the q heads and of the k heads. */
static void head_norm(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    int64_t e = a->head_dim;

    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t head = 0; head < a->n_heads + a->n_kv_heads; head++) {
            int input = head < a->n_heads ? 1 : 2;
            double square = 0, rstd;

            for (int64_t i = 0; i < e; i++)
                square += pow(IN(0, t, head * e + i), 2) / (double)e;
            rstd = 1 / sqrt(square + a->eps);
            OUT(1, t, head) = rstd;
            for (int64_t i = 0; i < e; i++)
                OUT(0, t, head * e + i) = IN(0, t, head * e + i) * rstd * IN(input, 0, i);
        }
}

static void head_norm_grad(const struct op_shape *op, int first)
{
    const struct op_attributes *a = &op->attributes;
    int64_t e = a->head_dim;

    for (int k = 1; k < 3; k++)
        if (tensor_given(&op->out[k]))
            start(&op->out[k], first);
    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t col = 0; col < op->in[0].cols; col++) {
            int64_t head = col / e;
            int is_key = head >= a->n_heads;
            double mean = 0, xhat;

            for (int64_t i = 0; i < e; i++)
                mean += IN(0, t, head * e + i) * IN(2 + is_key, 0, i) * IN(1, t, head * e + i) *
                        IN(4, t, head) / (double)e;
            xhat = IN(1, t, col) * IN(4, t, head);
            OUT(0, t, col) =
                IN(4, t, head) * (IN(0, t, col) * IN(2 + is_key, 0, col % e) - xhat * mean);
            if (tensor_given(&op->out[1 + is_key]))
                OUT(1 + is_key, 0, col % e) += IN(0, t, col) * xhat;
        }
}

static void normalize_rows(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->in[0].rows; t++) {
        double square = 0;

        for (int64_t i = 0; i < op->in[0].cols; i++)
            square += pow(IN(0, t, i), 2);
        OUT(1, t, 0) = fmax(sqrt(square), op->attributes.eps);
        for (int64_t i = 0; i < op->in[0].cols; i++)
            OUT(0, t, i) = IN(0, t, i) / OUT(1, t, 0);
    }
}

static void normalize_rows_grad(const struct op_shape *op, int first)
{
    start(&op->out[0], first);
    for (int64_t t = 0; t < op->in[0].rows; t++) {
        double norm = IN(2, t, 0), dot = 0;

        for (int64_t i = 0; i < op->in[0].cols && norm > op->attributes.eps; i++)
            dot += IN(0, t, i) * IN(1, t, i) / norm;
        for (int64_t i = 0; i < op->in[0].cols; i++)
            OUT(0, t, i) += (IN(0, t, i) - dot * IN(1, t, i) / norm) / norm;
    }
}

int reference_run_norm(const struct op_shape *op, int first)
{
    switch (op->kind) {
    case OP_HEAD_NORM:
        head_norm(op);
        return 1;
    case OP_HEAD_NORM_GRAD:
        head_norm_grad(op, first);
        return 1;
    case OP_NORMALIZE_ROWS:
        normalize_rows(op);
        return 1;
    case OP_NORMALIZE_ROWS_GRAD:
        normalize_rows_grad(op, first);
        return 1;
    default:
        return 0;
    }
}
