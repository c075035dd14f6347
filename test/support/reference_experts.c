/*
 * reference_experts.c - routers, and what goes to experts and back, in double precision
 */
#include <math.h>

#include "support/reference_impl.h"

static int32_t *chosen(const struct tensor *t, int64_t row, int64_t i)
{
    return (int32_t *)t->data + row * t->cols + i;
}

/* Of e of the softmax over the row, all of it or what `among` names. */
static double softmax_of(const struct op_shape *op, int input, int64_t t, int64_t e,
                         const struct tensor *among)
{
    int64_t n = among ? among->cols : op->in[input].cols;
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += exp(IN(input, t, among ? *chosen(among, t, i) : i) - IN(input, t, e));
    return 1 / sum;
}

/* How many of its row's logits are larger, or equal and of a lower expert. */
static int64_t rank_of(const struct op_shape *op, int64_t t, int64_t e)
{
    int64_t n = 0;

    for (int64_t other = 0; other < op->in[0].cols; other++)
        n += IN(0, t, other) > IN(0, t, e) || (IN(0, t, other) == IN(0, t, e) && other < e);
    return n;
}

static double share_of(const struct tensor *experts, int64_t e)
{
    double n = 0;

    for (int64_t i = 0; i < tensor_elements(experts); i++)
        n += ((const int32_t *)experts->data)[i] == e;
    return n / (double)tensor_elements(experts);
}

static void router(const struct op_shape *op, int first)
{
    const struct tensor *experts = &op->out[1];
    int64_t n_tokens = op->in[0].rows, m = op->in[0].cols;
    int has_stats = tensor_given(&op->out[2]);

    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t e = 0; e < m; e++)
            if (rank_of(op, t, e) < experts->cols)
                *chosen(experts, t, rank_of(op, t, e)) = (int32_t)e;
        for (int64_t i = 0; i < experts->cols; i++)
            OUT(0, t, i) = softmax_of(op, 0, t, *chosen(experts, t, i),
                                      op->attributes.normalize ? experts : NULL);
    }
    if (has_stats)
        start(&op->out[2], first);
    for (int64_t e = 0; has_stats && e < m; e++) {
        double mean = 0;

        for (int64_t t = 0; t < n_tokens; t++)
            mean += softmax_of(op, 0, t, e, NULL) / (double)n_tokens;
        OUT(2, 0, 0) += (double)m * share_of(experts, e) * mean;
        OUT(2, 0, 1 + e) += share_of(experts, e) * (double)tensor_elements(experts);
    }
}

#define EXPERTS_MAX 1024

/* By the whole Jacobians of softmax. */
static void router_grad(const struct op_shape *op)
{
    const struct tensor *experts = &op->in[2];
    int64_t m = op->out[0].cols, n = experts->cols;
    double scale = op->attributes.balance * (double)m / (double)op->out[0].rows;
    double shares[EXPERTS_MAX], p[EXPERTS_MAX];

    CHECK(m <= EXPERTS_MAX);
    if (tensor_given(&op->in[4]))
        scale *= IN(4, 0, 0);
    start(&op->out[0], 1);
    for (int64_t e = 0; e < m; e++)
        shares[e] = share_of(tensor_given(&op->in[5]) ? &op->in[5] : experts, e);
    for (int64_t t = 0; t < op->out[0].rows; t++) {
        for (int64_t o = 0; tensor_given(&op->in[3]) && o < m; o++)
            p[o] = softmax_of(op, 3, t, o, NULL);
        for (int64_t i = 0; i < n; i++) {
            int32_t e = *chosen(experts, t, i);

            for (int64_t j = 0; op->attributes.normalize && j < n; j++)
                OUT(0, t, *chosen(experts, t, j)) +=
                    IN(0, t, i) * IN(1, t, i) * ((i == j) - IN(1, t, j));
            for (int64_t o = 0; !op->attributes.normalize && o < m; o++)
                OUT(0, t, o) += IN(0, t, i) * IN(1, t, i) * ((e == o) - p[o]);
        }
        for (int64_t e = 0; scale > 0 && e < m; e++)
            for (int64_t o = 0; o < m; o++)
                OUT(0, t, o) += scale * shares[e] * p[e] * ((e == o) - p[o]);
    }
}

static void expert_order(const struct op_shape *op)
{
    const struct tensor *experts = &op->in[0];
    int32_t row = 0;

    for (int64_t e = 0; e < op->out[1].cols; e++) {
        for (int64_t i = 0; i < tensor_elements(experts); i++)
            if (((const int32_t *)experts->data)[i] == e)
                ((int32_t *)op->out[0].data)[i] = row++;
        ((int32_t *)op->out[1].data)[e] = row;
    }
}

static void dispatch(const struct op_shape *op)
{
    const struct tensor *place = &op->in[0];

    for (int64_t t = 0; t < place->rows; t++)
        for (int64_t i = 0; i < place->cols; i++)
            for (int64_t col = 0; col < op->out[0].cols; col++)
                OUT(0, *chosen(place, t, i), col) = IN(1, t, col);
}

static void combine(const struct op_shape *op)
{
    const struct tensor *place = &op->in[0];

    start(&op->out[0], 1);
    for (int64_t t = 0; t < place->rows; t++)
        for (int64_t i = 0; i < place->cols; i++)
            for (int64_t col = 0; col < op->out[0].cols; col++)
                OUT(0, t, col) += IN(1, *chosen(place, t, i), col);
}

static int64_t expert_of(const struct tensor *ends, int64_t row)
{
    int64_t e = 0;

    while (int_at(ends, e) <= row)
        e++;
    return e;
}

static void expert_linear(const struct op_shape *op)
{
    int dx = op->kind == OP_EXPERT_LINEAR_DX;
    int64_t n = op->in[2].rows / op->in[1].cols;

    start(&op->out[0], 1);
    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < op->in[2].cols; k++) {
                double w = IN(2, expert_of(&op->in[1], t) * n + i, k);

                OUT(0, t, dx ? k : i) += w * IN(0, t, dx ? i : k);
            }
}

static void expert_linear_dw(const struct op_shape *op, int first)
{
    int64_t n = op->in[0].cols;

    start(&op->out[0], first);
    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < op->in[1].cols; k++)
                OUT(0, expert_of(&op->in[2], t) * n + i, k) += IN(0, t, i) * IN(1, t, k);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void expert_swiglu(const struct op_shape *op)
{
    int64_t f = op->out[0].cols;

    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t i = 0; i < op->in[0].cols; i++) {
            int32_t row = *chosen(&op->in[1], t, i);

            for (int64_t col = 0; col < f; col++)
                OUT(0, row, col) = IN(0, t, i) * silu(IN(2, row, col)) * IN(2, row, f + col);
        }
}

static void expert_swiglu_grad(const struct op_shape *op)
{
    int64_t f = op->in[2].cols;

    start(&op->out[1], 1);
    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t i = 0; i < op->in[0].cols; i++) {
            int32_t row = *chosen(&op->in[1], t, i);

            for (int64_t col = 0; col < f; col++) {
                double gate = IN(3, row, col), up = IN(3, row, f + col), s = 1 / (1 + exp(-gate));
                double g = IN(2, row, col);

                OUT(0, row, col) = IN(0, t, i) * g * up * (s + gate * s * (1 - s));
                OUT(0, row, f + col) = IN(0, t, i) * g * silu(gate);
                OUT(1, t, i) += g * silu(gate) * up;
            }
        }
}

int reference_run_expert(const struct op_shape *op, int first)
{
    switch (op->kind) {
    case OP_ROUTER:
        router(op, first);
        return 1;
    case OP_ROUTER_GRAD:
        router_grad(op);
        return 1;
    case OP_EXPERT_ORDER:
        expert_order(op);
        return 1;
    case OP_DISPATCH:
        dispatch(op);
        return 1;
    case OP_COMBINE:
        combine(op);
        return 1;
    case OP_EXPERT_LINEAR:
    case OP_EXPERT_LINEAR_DX:
        expert_linear(op);
        return 1;
    case OP_EXPERT_LINEAR_DW:
        expert_linear_dw(op, first);
        return 1;
    case OP_EXPERT_SWIGLU:
        expert_swiglu(op);
        return 1;
    case OP_EXPERT_SWIGLU_GRAD:
        expert_swiglu_grad(op);
        return 1;
    default:
        return 0;
    }
}
