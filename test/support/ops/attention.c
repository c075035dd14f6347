/*
 * attention.c - facts of attention and of rotary positions
 */
#include <math.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

static void rope(const struct op_shape *op, double sign)
{
    const struct op_attributes *a = &op->attributes;
    int64_t half = a->head_dim / 2;

    for (int64_t t = 0; t < op->in[ROPE_X].rows; t++)
        for (int64_t col = 0; col < op->in[ROPE_X].cols; col++) {
            int64_t i = col % a->head_dim;
            int32_t position = int_at(&op->in[ROPE_POSITION], t);
            double other = i < half ? -1 : 1;

            OUT(ROPE_OUT, t, col) = IN(ROPE_X, t, col) * IN(ROPE_TABLE, position, i % half) +
                                    sign * other * IN(ROPE_X, t, col - (int64_t)other * half) *
                                        IN(ROPE_TABLE, position, half + i % half);
        }
}

static double attention_kept(const struct op_shape *op, int sample_input, int64_t sequence,
                             int head, int64_t query, int64_t key)
{
    int64_t sample;

    if (!(op->attributes.p > 0))
        return 1;
    sample = ((const int64_t *)op->in[sample_input].data)[sequence];
    head += begin_of(op, sample_input + 1);
    return reference_kept(&op->attributes, sample, (uint64_t)head << 48 | (uint64_t)query << 24,
                          key);
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
                             .keys = sequence * (v->rows / (op->in[OPS_FIRST].rows / a->seq_len)),
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
    struct head_at h = head_at(op, ATTENTION_HEAD_OFFSET, sequence, head);

    for (int64_t query = 0; query < a->seq_len; query++) {
        struct key_range r = key_range(op, ATTENTION_FIRST, sequence, query);
        double top = -INFINITY, sum = 0, lse;

        for (int64_t key = r.first; key <= r.last; key++)
            top = fmax(top, score(a, &op->in[ATTENTION_Q], &h, query, key, r.last));
        for (int64_t key = r.first; key <= r.last; key++)
            sum += exp(score(a, &op->in[ATTENTION_Q], &h, query, key, r.last) - top);
        lse = OUT(ATTENTION_LSE, h.queries + query, head) = sum > 0 ? top + log(sum) : INFINITY;
        for (int64_t i = 0; i < h.value_dim; i++)
            OUT(ATTENTION_OUT, h.queries + query, h.out + i) = 0;
        for (int64_t key = r.first; key <= r.last; key++) {
            double p = exp(score(a, &op->in[ATTENTION_Q], &h, query, key, r.last) - lse);

            p *= attention_kept(op, ATTENTION_SAMPLE, sequence, head, r.last, key);
            for (int64_t i = 0; i < h.value_dim; i++)
                OUT(ATTENTION_OUT, h.queries + query, h.out + i) +=
                    p * IN(ATTENTION_V, h.keys + key, h.v + i);
        }
    }
}

static void attention_grad_head(const struct op_shape *op, int64_t sequence, int head)
{
    const struct op_attributes *a = &op->attributes;
    struct head_at h = head_at(op, ATTENTION_GRAD_HEAD_OFFSET, sequence, head);

    for (int64_t query = 0; query < a->seq_len; query++) {
        struct key_range r = key_range(op, ATTENTION_GRAD_FIRST, sequence, query);

        for (int64_t key = r.first; key <= r.last; key++) {
            int64_t q = h.queries + query, k = h.keys + key;
            double p = exp(score(a, &op->in[ATTENTION_GRAD_Q], &h, query, key, r.last) -
                           IN(ATTENTION_GRAD_LSE, q, head));
            double m = attention_kept(op, ATTENTION_GRAD_SAMPLE, sequence, head, r.last, key),
                   dp = 0, delta = 0, ds;

            for (int64_t i = 0; i < h.value_dim; i++) {
                dp += IN(ATTENTION_GRAD_DOUT, q, h.out + i) * IN(ATTENTION_GRAD_V, k, h.v + i);
                delta +=
                    IN(ATTENTION_GRAD_DOUT, q, h.out + i) * IN(ATTENTION_GRAD_OUT, q, h.out + i);
            }
            ds = p * (dp * m - delta) * a->scale;
            for (int64_t i = 0; i < a->head_dim; i++) {
                OUT(ATTENTION_GRAD_DQ, q, h.q + i) += ds * IN(ATTENTION_GRAD_K, k, h.kv + i);
                OUT(ATTENTION_GRAD_DK, k, h.kv + i) += ds * IN(ATTENTION_GRAD_Q, q, h.q + i);
            }
            for (int64_t i = 0; i < h.value_dim; i++)
                OUT(ATTENTION_GRAD_DV, k, h.v + i) += p * m * IN(ATTENTION_GRAD_DOUT, q, h.out + i);
        }
    }
}

static void attention(const struct op_shape *op)
{
    int64_t n_sequences = op->in[OPS_FIRST].rows / op->attributes.seq_len;
    int grad = op->kind == OP_ATTENTION_GRAD;

    for (int i = 0; i < 3 && grad; i++)
        start(&op->out[i]);
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
    int64_t kv = head / (a->n_heads / a->n_kv_heads),
            position = int_at(&op->in[ATTENTION_CACHED_POSITION], row);
    int64_t width = op->in[ATTENTION_CACHED_V].cols / a->n_kv_heads;
    double sum = 0;

    for (int64_t i = 0; i < width; i++)
        OUT(ATTENTION_CACHED_OUT, row, head * width + i) = 0;
    for (int64_t key = 0; key <= position; key++) {
        double s = 0;

        if (a->window && !(position - a->window < key))
            continue;

        for (int64_t i = 0; i < e; i++)
            s += IN(ATTENTION_CACHED_Q, row, head * e + i) *
                 IN(ATTENTION_CACHED_KEYS, cache + key, kv * e + i);
        s = exp(s * a->scale +
                slope_of(op, ATTENTION_CACHED_HEAD_OFFSET, head) * (double)(key - position));
        sum += s;
        for (int64_t i = 0; i < width; i++)
            OUT(ATTENTION_CACHED_OUT, row, head * width + i) +=
                s * IN(ATTENTION_CACHED_VALUES, cache + key, kv * width + i);
    }
    for (int64_t i = 0; i < width && sum > 0; i++)
        OUT(ATTENTION_CACHED_OUT, row, head * width + i) /= sum;
}

static void attention_cached(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;

    for (int64_t row = 0; row < op->in[ATTENTION_CACHED_Q].rows; row++) {
        int32_t position = int_at(&op->in[ATTENTION_CACHED_POSITION], row);
        int64_t cache = row / a->seq_len * a->cache_len + position;

        for (int64_t i = 0; i < op->in[ATTENTION_CACHED_K].cols && position >= 0; i++)
            IN(ATTENTION_CACHED_KEYS, cache, i) = IN(ATTENTION_CACHED_K, row, i);
        for (int64_t i = 0; i < op->in[ATTENTION_CACHED_V].cols && position >= 0; i++)
            IN(ATTENTION_CACHED_VALUES, cache, i) = IN(ATTENTION_CACHED_V, row, i);
    }
    for (int64_t row = 0; row < op->in[ATTENTION_CACHED_Q].rows; row++)
        for (int head = 0; head < a->n_heads; head++)
            cached_query(op, row, head);
}

static void rope_forward(const struct op_shape *op)
{
    rope(op, 1);
}

static void rope_backward(const struct op_shape *op)
{
    rope(op, -1);
}

static void rope_gradients(void)
{
    struct op_attributes a = { .n_heads = 2, .n_kv_heads = 1, .head_dim = 4 };
    struct op_case *c = op_case_create(OP_ROPE, &a);

    op_case_input(c, ROPE_X, 5, 12, DTYPE_F32, 1);
    op_case_input(c, ROPE_POSITION, 5, 1, DTYPE_I32, 0);
    op_case_input(c, ROPE_TABLE, 6, 4, DTYPE_F32, 1);
    op_case_output(c, ROPE_OUT, 5, 12, DTYPE_F32);
    for (int t = 0; t < 5; t++)
        tensor_set(&c->op.in[ROPE_POSITION], t, 0, 5 - t);
    gradient_check(c, OP_ROPE_GRAD);
    op_case_destroy(c);
}

/* Bits of form: dropout, a window, slopes of 6 heads, documents, queries that are a part of 10. */
static void attention_gradients(void)
{
    for (int form = 0; form < 32; form++) {
        int drop = form & 1;
        struct op_attributes a = { .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 3,
                                   .seq_len = 6,
                                   .scale = 0.6,
                                   .window = form & 2 ? 3 : 0,
                                   .alibi = form & 4 ? 6 : 0,
                                   .p = drop ? 0.3 : 0,
                                   .seed = 5,
                                   .rng_site = 2 };
        struct op_case *c = op_case_create(OP_ATTENTION, &a);

        op_case_attention_keys(c, 12, form & 16 ? 20 : 12, DTYPE_F32);
        if (drop)
            op_case_input(c, ATTENTION_SAMPLE, 2, 1, DTYPE_I64, 0);
        if (form & 4) {
            op_case_input(c, ATTENTION_HEAD_OFFSET, 1, 1, DTYPE_I32, 0);
            tensor_set(&c->op.in[ATTENTION_HEAD_OFFSET], 0, 0, 2);
        }
        if (form & 8)
            op_case_input(c, ATTENTION_FIRST, 12, 1, DTYPE_I32, 0);
        for (int t = 0; form & 8 && t < 12; t++)
            tensor_set(&c->op.in[ATTENTION_FIRST], t, 0,
                       t < 6 ? (t > 0) + (t > 3) * 3 : (t > 8) * 2);
        if (form & 16)
            op_case_input(c, ATTENTION_LAST, 12, 1, DTYPE_I32, 0);
        for (int t = 0; form & 16 && t < 12; t++)
            tensor_set(&c->op.in[ATTENTION_LAST], t, 0, t % 6 < 3 ? t % 6 : t % 6 + 4);
        gradient_check(c, OP_ATTENTION_GRAD);
        op_case_destroy(c);
    }
}

const struct op_facts attention_facts[N_OP_KINDS] = {
    [OP_ROPE] = {
        .example = "rope 12x12 bf16, 12x1 i32, *30x2 fp32 : 12x12 bf16",
        .spreads = "sss > s; rrs > r; css > c",
        .reference = rope_forward,
        .gradients = rope_gradients,
    },
    [OP_ROPE_GRAD] = {
        .example = "rope_grad 12x12 bf16, 12x1 i32, *30x2 fp32 : 12x12 bf16",
        .spreads = "sss > s; rrs > r; css > c",
        .reference = rope_backward,
    },
    [OP_ATTENTION] = {
        .example = "attention 12x8 bf16, 12x4 bf16, 12x4 bf16, 2x1 i64, 1x1 i32, 12x1 "
                   "i32, 12x1 i32 : 12x8 bf16, 12x4 fp32",
        .spreads = "sssssss > ss; rrrrsrr > rr; rssssrr > rr; cccscss > cc",
        .reference = attention,
        .gradients = attention_gradients,
    },
    [OP_ATTENTION_GRAD] = {
        .example = "attention_grad 12x8 bf16, 12x8 bf16, 12x4 bf16, 12x4 bf16, 12x8 "
                   "bf16, 12x4 fp32, 2x1 i64, 1x1 i32, 12x1 i32, 12x1 i32 : 12x8 bf16, "
                   "12x4 bf16, 12x4 bf16",
        .spreads = "ssssssssss > sss; rrrrrrrsrr > rrr; rrssrrssrr > rpp; "
                   "ccccccscss > ccc",
        .reference = attention,
    },
    [OP_ATTENTION_CACHED] = {
        .example = "attention_cached 12x8 bf16, 12x4 bf16, 12x4 bf16, 12x1 i32, 9x4 "
                   "bf16, 9x4 bf16, 1x1 i32, 12x1 i32, *5x3 i32 : 12x8 bf16",
        .spreads = "sssssssss > s; cccscccss > c",
        .reference = attention_cached,
    },
};
