/*
 * attention_part.c - facts of attention whose keys come in parts
 */
#include <math.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

/* Where a query's numbers are: rows of its sequence's keys, and a head's first columns. */
struct query_at {
    int64_t row, keys; /* of queries; the first of the keys */
    int64_t q, kv, v, out, width;
    int64_t first, last; /* that it sees, as rows of keys */
};

/* in: q, k and v; ranges: first and last. */
static struct query_at query_at(const struct op_shape *op, const struct tensor *in,
                                const struct tensor *ranges, int64_t row, int head)
{
    const struct op_attributes *a = &op->attributes;
    int64_t kv = head / (a->n_heads / a->n_kv_heads), width = in[ATTENTION_V].cols / a->n_kv_heads;
    int64_t keys = row / a->seq_len * (in[ATTENTION_K].rows / (in[ATTENTION_Q].rows / a->seq_len));

    return (struct query_at){
        .row = row,
        .keys = keys,
        .q = (int64_t)head * a->head_dim,
        .kv = kv * a->head_dim,
        .v = kv * width,
        .out = head * width,
        .width = width,
        .first = keys + (tensor_given(&ranges[0]) ? int_at(&ranges[0], row) : 0),
        .last = keys + (tensor_given(&ranges[1]) ? int_at(&ranges[1], row) : row % a->seq_len)
    };
}

static double score(const struct op_attributes *a, const struct tensor *in,
                    const struct query_at *at_query, int64_t key)
{
    double sum = 0;

    for (int64_t i = 0; i < a->head_dim; i++)
        sum += *at(&in[ATTENTION_Q], at_query->row, at_query->q + i) *
               *at(&in[ATTENTION_K], key, at_query->kv + i);
    return sum * a->scale;
}

/* The outputs, maximum and sum that a state has of a head, which change as keys are seen. */
static void part_query(const struct op_shape *op, int64_t row, int head)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *in = &op->in[ATTENTION_PART_Q];
    struct query_at here = query_at(op, in, &op->in[ATTENTION_PART_FIRST], row, head);
    int64_t max = a->n_heads * here.width + head, sum = max + a->n_heads;
    bool goes_on = tensor_given(&op->in[ATTENTION_PART_STATE]);
    double before = goes_on ? IN(ATTENTION_PART_STATE, row, max) : -INFINITY, top = before, factor;

    for (int64_t key = here.first; key <= here.last; key++)
        top = fmax(top, score(a, in, &here, key));
    factor = before == top ? 1 : exp(before - top);
    OUT(ATTENTION_PART_NEXT, row, max) = top;
    OUT(ATTENTION_PART_NEXT, row, sum) = goes_on ? factor * IN(ATTENTION_PART_STATE, row, sum) : 0;
    for (int64_t i = 0; i < here.width; i++)
        OUT(ATTENTION_PART_NEXT, row, here.out + i) =
            goes_on ? factor * IN(ATTENTION_PART_STATE, row, here.out + i) : 0;
    for (int64_t key = here.first; key <= here.last; key++) {
        double p = exp(score(a, in, &here, key) - top);

        OUT(ATTENTION_PART_NEXT, row, sum) += p;
        for (int64_t i = 0; i < here.width; i++)
            OUT(ATTENTION_PART_NEXT, row, here.out + i) +=
                p * *at(&in[ATTENTION_V], key, here.v + i);
    }
}

static void attention_part(const struct op_shape *op)
{
    for (int64_t row = 0; row < op->in[ATTENTION_PART_Q].rows; row++)
        for (int head = 0; head < op->attributes.n_heads; head++)
            part_query(op, row, head);
}

static void attention_end(const struct op_shape *op)
{
    int64_t n_heads = op->attributes.n_heads;
    int64_t width = op->out[ATTENTION_END_OUT].cols / n_heads;

    for (int64_t row = 0; row < op->in[ATTENTION_END_STATE].rows; row++)
        for (int64_t head = 0; head < n_heads; head++) {
            double max = IN(ATTENTION_END_STATE, row, n_heads * width + head);
            double sum = IN(ATTENTION_END_STATE, row, n_heads * (width + 1) + head);

            OUT(ATTENTION_END_LSE, row, head) = sum > 0 ? max + log(sum) : INFINITY;
            for (int64_t i = head * width; i < (head + 1) * width; i++)
                OUT(ATTENTION_END_OUT, row, i) =
                    sum > 0 ? IN(ATTENTION_END_STATE, row, i) / sum : 0;
        }
}

/* One query's part of all three gradients. */
static void part_grad_query(const struct op_shape *op, int64_t row, int head)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *in = &op->in[ATTENTION_PART_GRAD_Q];
    struct query_at here = query_at(op, in, &op->in[ATTENTION_PART_GRAD_FIRST], row, head);
    double delta = 0;

    for (int64_t i = here.out; i < here.out + here.width; i++)
        delta += IN(ATTENTION_PART_GRAD_DOUT, row, i) * IN(ATTENTION_PART_GRAD_OUT, row, i);
    for (int64_t key = here.first; key <= here.last; key++) {
        double p = exp(score(a, in, &here, key) - IN(ATTENTION_PART_GRAD_LSE, row, head));
        double ds = -delta;

        for (int64_t i = 0; i < here.width; i++) {
            double dout = IN(ATTENTION_PART_GRAD_DOUT, row, here.out + i);

            ds += dout * *at(&in[ATTENTION_V], key, here.v + i);
            OUT(ATTENTION_PART_GRAD_DV, key, here.v + i) += p * dout;
        }
        for (int64_t i = 0; i < a->head_dim; i++) {
            OUT(ATTENTION_PART_GRAD_DQ, row, here.q + i) +=
                p * ds * *at(&in[ATTENTION_K], key, here.kv + i);
            OUT(ATTENTION_PART_GRAD_DK, key, here.kv + i) +=
                p * ds * a->scale * *at(&in[ATTENTION_Q], row, here.q + i);
        }
    }
}

static void attention_part_grad(const struct op_shape *op)
{
    for (int i = ATTENTION_PART_GRAD_DQ; i <= ATTENTION_PART_GRAD_DV; i++)
        start(&op->out[i]);
    if (tensor_given(&op->in[ATTENTION_PART_GRAD_SUM]))
        op_case_copy(&op->out[ATTENTION_PART_GRAD_DQ], &op->in[ATTENTION_PART_GRAD_SUM]);
    for (int64_t row = 0; row < op->in[ATTENTION_PART_GRAD_Q].rows; row++)
        for (int head = 0; head < op->attributes.n_heads; head++)
            part_grad_query(op, row, head);
}

static void attention_dq_end(const struct op_shape *op)
{
    const struct tensor *dq = &op->out[ATTENTION_DQ_END_DQ];

    for (int64_t row = 0; row < dq->rows; row++)
        for (int64_t i = 0; i < dq->cols; i++)
            OUT(ATTENTION_DQ_END_DQ, row, i) =
                op->attributes.scale * IN(ATTENTION_DQ_END_SUM, row, i);
}

/* All keys in one part are attention; scaled by 1, dq is the sum. */
static void part_gradients(void)
{
    struct op_attributes a = {
        .n_heads = 4, .n_kv_heads = 2, .head_dim = 3, .seq_len = 6, .scale = 1
    };
    struct op_case *c = op_case_create(OP_ATTENTION, &a);

    op_case_attention_keys(c, 12, 20, DTYPE_F32);
    op_case_input(c, ATTENTION_FIRST, 12, 1, DTYPE_I32, 0);
    op_case_input(c, ATTENTION_LAST, 12, 1, DTYPE_I32, 0);
    for (int t = 0; t < 12; t++) {
        tensor_set(&c->op.in[ATTENTION_FIRST], t, 0, t < 6 ? 0 : t % 6 / 2);
        tensor_set(&c->op.in[ATTENTION_LAST], t, 0, t % 6 < 3 ? t % 6 : t % 6 + 4);
    }
    gradient_check(c, OP_ATTENTION_PART_GRAD);
    op_case_destroy(c);
}

const struct op_facts attention_part_facts[N_OP_KINDS] = {
    [OP_ATTENTION_PART] = {
        .example = "attention_part 12x16 fp32, 12x8 bf16, 12x4 bf16, 12x4 bf16, 12x1 i32, 12x1 i32 "
                   ": 12x16 fp32",
        .spreads = "ssssss > s; rrrrrr > r; rrssrr > r; ccccss > c",
        .reference = attention_part,
    },
    [OP_ATTENTION_END] = {
        .example = "attention_end 12x16 fp32 : 12x8 bf16, 12x4 fp32",
        .spreads = "s > ss; r > rr; c > cc",
        .reference = attention_end,
    },
    [OP_ATTENTION_PART_GRAD] = {
        .example = "attention_part_grad 12x8 fp32, 12x8 bf16, 12x8 bf16, 12x4 bf16, 12x4 bf16, "
                   "12x8 bf16, 12x4 fp32, 12x1 i32, 12x1 i32 : 12x8 fp32, 12x4 bf16, 12x4 bf16",
        .spreads = "sssssssss > sss; rrrrrrrrr > rrr; rrrssrrrr > rpp; cccccccss > ccc",
        .reference = attention_part_grad,
        .gradients = part_gradients,
    },
    [OP_ATTENTION_DQ_END] = {
        .example = "attention_dq_end 12x8 fp32 : 12x8 bf16",
        .spreads = "s > s; r > r; c > c",
        .reference = attention_dq_end,
    },
};
