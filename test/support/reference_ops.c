/*
 * reference_ops.c - see the header; written to be read beside ops.h, not to be fast
 */
#include "support/reference_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "ops/op_info.h"
#include "support/reference_impl.h"

/* Where the rank's part begins. */
static int32_t begin_of(const struct op_shape *op, int input)
{
    return tensor_given(&op->in[input]) ? int_at(&op->in[input], 0) : 0;
}

/* ---- embedding ---- */

static void embed(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[0].rows; t++)
        for (int64_t i = 0; i < op->out[0].cols; i++) {
            int32_t index = int_at(&op->in[0], t), row = index - begin_of(op, 3);

            OUT(0, t, i) = tensor_given(&op->in[2]) ? IN(2, t, i) : 0;
            if (index >= 0 && row >= 0 && row < op->in[1].rows)
                OUT(0, t, i) += IN(1, row, i);
        }
}

static void embed_dw(const struct op_shape *op, int first)
{
    start(&op->out[0], first);
    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t i = 0; i < op->in[0].cols; i++) {
            int32_t index = int_at(&op->in[1], t), row = index - begin_of(op, 2);

            if (index >= 0 && row >= 0 && row < op->out[0].rows)
                OUT(0, row, i) += IN(0, t, i);
        }
}

/* ---- norms ---- */

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

static void norm_kinds(const struct op_shape *op)
{
    const struct tensor *in = op->in, *out = op->out;

    if (op->kind == OP_RMSNORM)
        norm(op, &(struct norm_operands){ .x = in, .w = in + 1, .y = out, .rstd = out + 1 });
    else if (op->kind == OP_LAYERNORM)
        norm(op,
             &(struct norm_operands){
                 .x = in, .w = in + 1, .b = in + 2, .y = out, .mean = out + 1, .rstd = out + 2 });
    else if (op->kind == OP_ADD_RMSNORM)
        norm(
            op,
            &(struct norm_operands){
                .x = in, .delta = in + 1, .w = in + 2, .y = out, .rstd = out + 1, .sum = out + 2 });
    else
        norm(op, &(struct norm_operands){ .x = in,
                                          .delta = in + 1,
                                          .w = in + 2,
                                          .b = in + 3,
                                          .y = out,
                                          .mean = out + 1,
                                          .rstd = out + 2,
                                          .sum = out + 3 });
}

static void norm_grad(const struct op_shape *op, int first)
{
    int layer = op->kind == OP_LAYERNORM_GRAD;
    int64_t d = op->in[1].cols;
    int has_db = layer && tensor_given(&op->out[2]);

    start(&op->out[1], first);
    if (has_db)
        start(&op->out[2], first);
    for (int64_t t = 0; t < op->in[1].rows; t++) {
        double mean = layer ? IN(3, t, 0) : 0, rstd = IN(3 + layer, t, 0), g_mean = 0, gx_mean = 0;

        for (int64_t i = 0; i < d; i++) {
            g_mean += layer ? IN(0, t, i) * IN(2, 0, i) / (double)d : 0;
            gx_mean += IN(0, t, i) * IN(2, 0, i) * (IN(1, t, i) - mean) * rstd / (double)d;
        }
        for (int64_t i = 0; i < d; i++) {
            double xhat = (IN(1, t, i) - mean) * rstd;

            OUT(0, t, i) = rstd * (IN(0, t, i) * IN(2, 0, i) - g_mean - xhat * gx_mean);
            if (tensor_given(&op->in[4 + layer]))
                OUT(0, t, i) += IN(4 + layer, t, i);
            OUT(1, 0, i) += IN(0, t, i) * xhat;
            if (has_db)
                OUT(2, 0, i) += IN(0, t, i);
            if (tensor_given(&op->out[2 + layer]))
                OUT(2 + layer, t, i) = OUT(0, t, i);
        }
    }
}

/* ---- products ---- */

static void linear(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[0].rows; t++)
        for (int64_t n = 0; n < op->out[0].cols; n++) {
            double sum = tensor_given(&op->in[2]) ? IN(2, 0, n) : 0;

            for (int64_t k = 0; k < op->in[0].cols; k++)
                sum += IN(0, t, k) * IN(1, n, k);
            OUT(0, t, n) = sum;
        }
}

static void lora(const struct op_shape *op)
{
    int64_t begin = 0;

    for (int part = 0; part < OPS_LORA_PARTS; begin += op->attributes.parts[part++])
        for (int64_t t = 0; t < op->out[0].rows; t++)
            for (int64_t n = 0; n < op->attributes.parts[part]; n++) {
                double sum = IN(0, t, begin + n);

                for (int64_t r = 0; r < op->in[1 + 2 * part].cols; r++)
                    sum += IN(1 + 2 * part, t, r) * IN(2 + 2 * part, n, r);
                OUT(0, t, begin + n) = sum;
            }
}

static void linear_dx(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->out[0].rows; t++)
        for (int64_t k = 0; k < op->out[0].cols; k++) {
            double sum = 0;

            for (int64_t n = 0; n < op->in[0].cols; n++)
                sum += IN(0, t, n) * IN(1, n, k);
            OUT(0, t, k) = sum;
        }
}

static void linear_dw(const struct op_shape *op, int first)
{
    int has_db = tensor_given(&op->out[1]);

    start(&op->out[0], first);
    if (has_db)
        start(&op->out[1], first);
    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t n = 0; n < op->in[0].cols; n++) {
            for (int64_t k = 0; k < op->in[1].cols; k++)
                OUT(0, n, k) += IN(0, t, n) * IN(1, t, k);
            if (has_db)
                OUT(1, 0, n) += IN(0, t, n);
        }
}

/* Loss; dx and dw as well where the op has them. */
static void head(const struct op_shape *op, int first)
{
    int grads = op->kind == OP_HEAD_CROSS_ENTROPY;
    const struct tensor *loss = &op->out[grads ? 2 : 0];
    int64_t n_vocab = op->in[1].rows, d = op->in[0].cols;
    double *logits = malloc((size_t)n_vocab * sizeof *logits);

    start(loss, first);
    if (grads) {
        start(&op->out[0], 1);
        start(&op->out[1], first);
    }
    for (int64_t t = 0; t < op->in[0].rows; t++) {
        int32_t target = int_at(&op->in[2], t);
        double top = -INFINITY, sum = 0;

        if (target < 0)
            continue;
        for (int64_t v = 0; v < n_vocab; v++) {
            logits[v] = 0;
            for (int64_t i = 0; i < d; i++)
                logits[v] += IN(0, t, i) * IN(1, v, i);
            top = fmax(top, logits[v]);
        }
        for (int64_t v = 0; v < n_vocab; v++)
            sum += exp(logits[v] - top);
        *at(loss, 0, 0) += top + log(sum) - logits[target];
        for (int64_t v = 0; grads && v < n_vocab; v++) {
            double g = exp(logits[v] - top) / sum - (v == target);

            g *= IN(3, 0, 0);
            for (int64_t i = 0; i < d; i++) {
                OUT(0, t, i) += g * IN(1, v, i);
                OUT(1, v, i) += g * IN(0, t, i);
            }
        }
    }
    free(logits);
}

static void bias_grad(const struct op_shape *op, int first)
{
    start(&op->out[0], first);
    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t n = 0; n < op->in[0].cols; n++)
            OUT(0, 0, n) += IN(0, t, n);
}

/* ---- the vocabulary in parts ---- */

/* How many of a part's columns are tokens. */
static int64_t n_tokens(const struct op_shape *op, int32_t begin)
{
    int64_t n = op->attributes.vocab_size - begin;

    return n < 0 ? 0 : n < op->in[0].cols ? n : op->in[0].cols;
}

static void logit_stats(const struct op_shape *op)
{
    int32_t begin = begin_of(op, 2);
    int64_t n = n_tokens(op, begin);

    for (int64_t t = 0; t < op->in[0].rows; t++) {
        int32_t target = int_at(&op->in[1], t);
        double top = -INFINITY, sum = 0;

        for (int64_t v = 0; v < n; v++)
            top = fmax(top, IN(0, t, v));
        for (int64_t v = 0; v < n; v++)
            sum += exp(IN(0, t, v) - top);
        OUT(0, t, 0) = top;
        OUT(0, t, 1) = sum;
        OUT(0, t, 2) = target >= begin && target < begin + n ? IN(0, t, target - begin) : 0;
    }
}

/* By log sum exp of each part, not by joined sums. */
static void cross_entropy(const struct op_shape *op, int first)
{
    int32_t begin = begin_of(op, 4);
    int64_t n = n_tokens(op, begin), n_rows = op->in[0].rows;

    start(&op->out[1], first);
    if (tensor_given(&op->out[0]))
        start(&op->out[0], 1);
    for (int64_t t = 0; t < n_rows; t++) {
        int32_t target = int_at(&op->in[2], t);
        double lse = -INFINITY, logit = 0;

        if (target < 0)
            continue;
        for (int64_t row = t; row < op->in[1].rows; row += n_rows) {
            double part = IN(1, row, 0) + log(IN(1, row, 1)), top = fmax(lse, part);

            if (IN(1, row, 1) > 0)
                lse = top + log(exp(lse - top) + exp(part - top));
            logit += IN(1, row, 2);
        }
        OUT(1, 0, 0) += lse - logit;
        for (int64_t v = 0; tensor_given(&op->out[0]) && v < n; v++)
            OUT(0, t, v) = IN(3, 0, 0) * (exp(IN(0, t, v) - lse) - (begin + v == target));
    }
}

/* ---- attention ---- */

static void rope(const struct op_shape *op, double sign)
{
    const struct op_attributes *a = &op->attributes;
    int64_t half = a->head_dim / 2;

    for (int64_t t = 0; t < op->in[0].rows; t++)
        for (int64_t col = 0; col < op->in[0].cols; col++) {
            int64_t i = col % a->head_dim;
            int32_t position = int_at(&op->in[1], t);
            double other = i < half ? -1 : 1;

            OUT(0, t, col) = IN(0, t, col) * IN(2, position, i % half) +
                             sign * other * IN(0, t, col - (int64_t)other * half) *
                                 IN(2, position, half + i % half);
        }
}

/* 0 where dropped, 1 / (1 - p) where kept. */
static double kept(const struct op_attributes *a, int64_t sample, uint64_t place_low,
                   int64_t element)
{
    uint64_t place_high = a->place * 0x9E3779B97F4A7C15u + (uint64_t)sample;
    struct rng_block words =
        rng_at(a->seed, RNG_DROPOUT, place_high, place_low | (uint64_t)(element / 4));

    return rng_uniform(words.word[element % 4]) >= (float)a->p ? 1 / (1 - a->p) : 0;
}

static double attention_kept(const struct op_shape *op, int sample_input, int64_t sequence,
                             int head, int64_t query, int64_t key)
{
    int64_t sample;

    if (!(op->attributes.p > 0))
        return 1;
    sample = ((const int64_t *)op->in[sample_input].data)[sequence];
    head += begin_of(op, sample_input + 1);
    return kept(&op->attributes, sample, (uint64_t)head << 48 | (uint64_t)query << 24, key);
}

struct head_at {
    int64_t queries, keys; /* first rows of the sequence */
    int64_t q, kv, v, out; /* first columns: of q; of k; of v; of out */
    int64_t value_dim;
    double slope;
};

/* As the paper has it for powers of two, else those of the lower one and every second of the higher
 * one's; begin: of the heads that are here. */
static double slope_of(const struct op_shape *op, int begin_input, int head)
{
    int n = op->attributes.alibi, number = head + begin_of(op, begin_input);
    int lower = n ? 1 << (int)log2(n) : 1;

    if (!n)
        return 0;
    return number < lower ? pow(pow(2, -8.0 / lower), number + 1)
                          : pow(pow(2, -8.0 / (2 * lower)), 2 * (number - lower) + 1);
}

/* The keys that the query of a sequence sees; the last is its own position. */
struct key_range {
    int64_t first, last;
};

/* ranges: number of the input `first`, behind which `last` is. */
static struct key_range key_range(const struct op_shape *op, int ranges, int64_t sequence,
                                  int64_t query)
{
    const struct op_attributes *a = &op->attributes;
    struct key_range range = { 0, query };

    if (tensor_given(&op->in[ranges + 1]))
        range.last = int_at(&op->in[ranges + 1], sequence * a->seq_len + query);
    if (tensor_given(&op->in[ranges]))
        range.first = int_at(&op->in[ranges], sequence * a->seq_len + query);
    while (a->window && !(range.last - a->window < range.first))
        range.first++;
    return range;
}

static struct head_at head_at(const struct op_shape *op, int begin_input, int64_t sequence,
                              int head)
{
    const struct op_attributes *a = &op->attributes;
    int64_t kv = head / (a->n_heads / a->n_kv_heads), e = a->head_dim;
    const struct tensor *v = &op->in[op->kind == OP_ATTENTION ? ATTENTION_V : ATTENTION_GRAD_V];
    int64_t width = v->cols / a->n_kv_heads;

    return (struct head_at){ .slope = slope_of(op, begin_input, head),
                             .queries = sequence * a->seq_len,
                             .keys = sequence * (v->rows / (op->in[0].rows / a->seq_len)),
                             .q = head * e,
                             .kv = kv * e,
                             .v = kv * width,
                             .out = head * width,
                             .value_dim = width };
}

/* q: of the op's q and k, which follows it. query is a row, key and own are positions. */
static double score(const struct op_attributes *a, const struct tensor *q, const struct head_at *h,
                    int64_t query, int64_t key, int64_t own)
{
    double sum = 0;

    for (int64_t i = 0; i < a->head_dim; i++)
        sum += *at(&q[0], h->queries + query, h->q + i) * *at(&q[1], h->keys + key, h->kv + i);
    return sum * a->scale + h->slope * (double)(key - own);
}

static void attention_head(const struct op_shape *op, int64_t sequence, int head)
{
    const struct op_attributes *a = &op->attributes;
    struct head_at h = head_at(op, 4, sequence, head);

    for (int64_t query = 0; query < a->seq_len; query++) {
        struct key_range r = key_range(op, ATTENTION_FIRST, sequence, query);
        double top = -INFINITY, sum = 0, lse;

        for (int64_t key = r.first; key <= r.last; key++)
            top = fmax(top, score(a, &op->in[0], &h, query, key, r.last));
        for (int64_t key = r.first; key <= r.last; key++)
            sum += exp(score(a, &op->in[0], &h, query, key, r.last) - top);
        lse = OUT(1, h.queries + query, head) = sum > 0 ? top + log(sum) : INFINITY;
        for (int64_t i = 0; i < h.value_dim; i++)
            OUT(0, h.queries + query, h.out + i) = 0;
        for (int64_t key = r.first; key <= r.last; key++) {
            double p = exp(score(a, &op->in[0], &h, query, key, r.last) - lse);

            p *= attention_kept(op, 3, sequence, head, r.last, key);
            for (int64_t i = 0; i < h.value_dim; i++)
                OUT(0, h.queries + query, h.out + i) += p * IN(2, h.keys + key, h.v + i);
        }
    }
}

static void attention_grad_head(const struct op_shape *op, int64_t sequence, int head)
{
    const struct op_attributes *a = &op->attributes;
    struct head_at h = head_at(op, 7, sequence, head);

    for (int64_t query = 0; query < a->seq_len; query++) {
        struct key_range r = key_range(op, ATTENTION_GRAD_FIRST, sequence, query);

        for (int64_t key = r.first; key <= r.last; key++) {
            int64_t q = h.queries + query, k = h.keys + key;
            double p = exp(score(a, &op->in[1], &h, query, key, r.last) - IN(5, q, head));
            double m = attention_kept(op, 6, sequence, head, r.last, key), dp = 0, delta = 0, ds;

            for (int64_t i = 0; i < h.value_dim; i++) {
                dp += IN(0, q, h.out + i) * IN(3, k, h.v + i);
                delta += IN(0, q, h.out + i) * IN(4, q, h.out + i);
            }
            ds = p * (dp * m - delta) * a->scale;
            for (int64_t i = 0; i < a->head_dim; i++) {
                OUT(0, q, h.q + i) += ds * IN(2, k, h.kv + i);
                OUT(1, k, h.kv + i) += ds * IN(1, q, h.q + i);
            }
            for (int64_t i = 0; i < h.value_dim; i++)
                OUT(2, k, h.v + i) += p * m * IN(0, q, h.out + i);
        }
    }
}

static void attention(const struct op_shape *op)
{
    int64_t n_sequences = op->in[0].rows / op->attributes.seq_len;
    int grad = op->kind == OP_ATTENTION_GRAD;

    for (int i = 0; i < 3 && grad; i++)
        start(&op->out[i], 1);
    for (int64_t sequence = 0; sequence < n_sequences; sequence++)
        for (int head = 0; head < op->attributes.n_heads; head++)
            if (grad)
                attention_grad_head(op, sequence, head);
            else
                attention_head(op, sequence, head);
}

static void cached_query(const struct op_shape *op, int64_t row, int head)
{
    const struct op_attributes *a = &op->attributes;
    int64_t cache = row / a->seq_len * a->cache_len, e = a->head_dim;
    int64_t kv = head / (a->n_heads / a->n_kv_heads), position = int_at(&op->in[3], row);
    int64_t width = op->in[2].cols / a->n_kv_heads;
    double sum = 0;

    for (int64_t i = 0; i < width; i++)
        OUT(0, row, head * width + i) = 0;
    for (int64_t key = 0; key <= position; key++) {
        double s = 0;

        if (a->window && !(position - a->window < key))
            continue;

        for (int64_t i = 0; i < e; i++)
            s += IN(0, row, head * e + i) * IN(4, cache + key, kv * e + i);
        s = exp(s * a->scale + slope_of(op, 6, head) * (double)(key - position));
        sum += s;
        for (int64_t i = 0; i < width; i++)
            OUT(0, row, head * width + i) += s * IN(5, cache + key, kv * width + i);
    }
    for (int64_t i = 0; i < width && sum > 0; i++)
        OUT(0, row, head * width + i) /= sum;
}

static void attention_cached(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;

    for (int64_t row = 0; row < op->in[0].rows; row++) {
        int32_t position = int_at(&op->in[3], row);
        int64_t cache = row / a->seq_len * a->cache_len + position;

        for (int64_t i = 0; i < op->in[1].cols && position >= 0; i++)
            IN(4, cache, i) = IN(1, row, i);
        for (int64_t i = 0; i < op->in[2].cols && position >= 0; i++)
            IN(5, cache, i) = IN(2, row, i);
    }
    for (int64_t row = 0; row < op->in[0].rows; row++)
        for (int head = 0; head < a->n_heads; head++)
            cached_query(op, row, head);
}

/* ---- element by element ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void element(const struct op_shape *op, int64_t t, int64_t i)
{
    const struct op_attributes *a = &op->attributes;
    int64_t f, sample, place;
    double s, gate;

    switch (op->kind) {
    case OP_SWIGLU:
        f = op->out[0].cols;
        OUT(0, t, i) = IN(0, t, i) * sigmoid(IN(0, t, i)) * IN(0, t, f + i);
        break;
    case OP_SWIGLU_GRAD:
        f = op->in[0].cols;
        gate = IN(1, t, i % f);
        s = sigmoid(gate);
        OUT(0, t, i) = i < f ? IN(0, t, i) * IN(1, t, f + i) * s * (1 + gate * (1 - s))
                             : IN(0, t, i - f) * gate * s;
        break;
    case OP_GELU:
        OUT(0, t, i) = gelu(IN(0, t, i));
        break;
    case OP_GELU_GRAD:
        OUT(0, t, i) = IN(0, t, i) * gelu_slope(IN(1, t, i));
        break;
    case OP_DROPOUT:
    case OP_DROPOUT_GRAD:
        place = (a->by_columns ? 0 : begin_of(op, 2)) + t;
        sample = ((const int64_t *)op->in[1].data)[place / a->seq_len];
        OUT(0, t, i) = IN(0, t, i) * kept(a, sample, (uint64_t)(place % a->seq_len) << 32,
                                          a->by_columns ? begin_of(op, 2) + i : i);
        break;
    case OP_SCALE:
        OUT(0, t, i) = a->scale * IN(0, t, i);
        break;
    case OP_ADD:
        OUT(0, t, i) = IN(0, t, i) + IN(1, t, i);
        break;
    case OP_ADD_BIAS:
        OUT(0, t, i) = IN(0, t, i) + IN(1, 0, i);
        break;
    case OP_CAST:
        OUT(0, t, i) = IN(0, t, i);
        break;
    case OP_SELECT_ROWS:
        OUT(0, t, i) = IN(0, int_at(&op->in[1], t), i);
        break;
    case OP_ACCUMULATE:
        OUT(0, t, i) += IN(0, t, i);
        break;
    default:
        fprintf(stderr, "reference_ops.c has no %s\n", op_info(op->kind)->name);
        CHECK(!"each kind that a test runs has a reference");
    }
}

/* ---- the update ---- */

static void sumsq(const struct op_shape *op)
{
    start(&op->out[0], 1);
    for (int64_t i = 0; i < tensor_elements(&op->in[0]); i++)
        OUT(0, 0, i / OPS_NORM_BLOCK) += IN(0, 0, i) * IN(0, 0, i);
}

static void sum_runs(const struct op_shape *op)
{
    start(&op->out[0], 1);
    for (int64_t k = 0; k < op->out[0].cols; k++)
        for (int64_t i = k ? int_at(&op->in[1], k - 1) : 0; i < int_at(&op->in[1], k); i++)
            OUT(0, 0, k) += IN(0, 0, tensor_given(&op->in[2]) ? int_at(&op->in[2], i) : i);
}

static void gradient_norm(const struct op_shape *op)
{
    double sum = 0, clip = op->attributes.clip;

    if (tensor_given(&op->in[1]))
        for (int64_t i = 0; i < op->in[1].cols; i++)
            sum += IN(0, 0, int_at(&op->in[1], i));
    else
        for (int64_t i = 0; i < op->in[0].cols; i++)
            sum += IN(0, 0, i);
    double scale = tensor_given(&op->in[2]) ? IN(2, 0, 0) : 1;
    sum = sqrt(sum) / scale;
    OUT(0, 0, 0) = sum;
    OUT(1, 0, 0) = (clip > 0 && sum > clip ? clip / sum : 1) / scale;
    *(int32_t *)op->out[2].data = !isfinite(sum);
}

static void adamw(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    double lr = IN(1, 0, SCALAR_LR), bias1 = IN(1, 0, SCALAR_BIAS1), bias2 = IN(1, 0, SCALAR_BIAS2);

    if (int_at(&op->in[3], 0))
        return;
    for (int64_t i = 0; i < tensor_elements(&op->in[0]); i++) {
        double g = IN(0, 0, i) * IN(2, 0, 0), *p = at(&op->in[4], 0, i);
        double *m = at(&op->in[5], 0, i), *v = at(&op->in[6], 0, i);
        double decay = tensor_given(&op->in[7]) ? IN(7, 0, i / OPS_NORM_BLOCK) : a->weight_decay;

        *m = a->beta1 * *m + (1 - a->beta1) * g;
        *v = a->beta2 * *v + (1 - a->beta2) * g * g;
        *p -= lr * (*m / bias1 / (sqrt(*v / bias2) + a->eps) + decay * *p);
        if (tensor_given(&op->out[0]))
            OUT(0, 0, i) = *p;
    }
}

static void elements(const struct op_shape *op, int first)
{
    start(&op->out[0], op->kind != OP_ACCUMULATE || first);
    for (int64_t t = 0; t < op->out[0].rows; t++)
        for (int64_t i = 0; i < op->out[0].cols; i++)
            element(op, t, i);
}

void reference_run(const struct op_shape *op, int first)
{
    switch (op->kind) {
    case OP_EMBED:
        embed(op);
        break;
    case OP_EMBED_DW:
        embed_dw(op, first);
        break;
    case OP_RMSNORM:
    case OP_LAYERNORM:
    case OP_ADD_RMSNORM:
    case OP_ADD_LAYERNORM:
        norm_kinds(op);
        break;
    case OP_RMSNORM_GRAD:
    case OP_LAYERNORM_GRAD:
        norm_grad(op, first);
        break;
    case OP_LINEAR:
    case OP_LORA:
        (op->kind == OP_LORA ? lora : linear)(op);
        break;
    case OP_LINEAR_DX:
        linear_dx(op);
        break;
    case OP_LINEAR_DW:
        linear_dw(op, first);
        break;
    case OP_ROPE:
    case OP_ROPE_GRAD:
        rope(op, op->kind == OP_ROPE ? 1 : -1);
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
        attention(op);
        break;
    case OP_ATTENTION_CACHED:
        attention_cached(op);
        break;
    case OP_HEAD_CROSS_ENTROPY:
    case OP_HEAD_LOSS:
        head(op, first);
        break;
    case OP_BIAS_GRAD:
        bias_grad(op, first);
        break;
    case OP_LOGIT_STATS:
        logit_stats(op);
        break;
    case OP_CROSS_ENTROPY:
        cross_entropy(op, first);
        break;
    case OP_SUMSQ:
        sumsq(op);
        break;
    case OP_SUM_RUNS:
        sum_runs(op);
        break;
    case OP_GRADIENT_NORM:
        gradient_norm(op);
        break;
    case OP_ADAMW:
        adamw(op);
        break;
    default:
        if (!reference_run_norm(op, first) && !reference_run_expert(op, first))
            elements(op, first);
    }
}
