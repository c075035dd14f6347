/*
 * large_softmax.c - what a sample of a large attention's or head's results should be
 *
 * Their rows need all keys, or the whole vocabulary, so they are written out here.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/num.h"
#include "base/rng.h"
#include "device/pool.h"
#include "support/large_case.h"
#include "support/large_sample.h"

/* ---- attention ---- */

#define HEAD_SAMPLES 12 /* of a query and a head */
#define KEY_SAMPLES 3   /* of a key and a head: each needs the queries behind it, of a group */

struct attention_sample {
    const struct op_attributes *a;
    const struct large_case *c;
    int input;                 /* that q is; k and v follow it */
    int64_t start, query, key; /* first row of the sequence; rows */
    int head, kv;
    double q[OPS_HEAD_DIM_MAX];
};

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Row of k (part 1) or v (part 2) of the sample's kv head. */
static void kv_row(const struct attention_sample *s, int64_t row, int part, double *out)
{
    int e = s->a->head_dim;

    large_input_row(s->c, s->input + part, row, (int64_t)s->kv * e, e, out);
}

static struct attention_sample sample_at(const struct large_case *c, int input, int i, int n)
{
    const struct op_attributes *a = &c->op.attributes;
    struct attention_sample s = { .a = a, .c = c, .input = input };
    struct rng_block b = rng_at(3, RNG_TEST, (uint64_t)c->op.kind, (uint64_t)i);
    int64_t n_rows = c->op.in[input].rows;

    s.query = i == 0 ? 0 : i == n - 1 ? n_rows - 1 : (int64_t)(b.word[0] % (uint64_t)n_rows);
    s.start = s.query / a->seq_len * a->seq_len;
    s.head = i == n - 1 ? a->n_heads - 1 : (int)(b.word[1] % (uint32_t)a->n_heads);
    s.kv = s.head / (a->n_heads / a->n_kv_heads);
    large_input_row(c, input, s.query, (int64_t)s.head * a->head_dim, a->head_dim, s.q);
    return s;
}

/* Compare n columns of one row. */
static void compare_row(struct large_case *c, const char *name, const struct tensor *got,
                        int64_t row, int64_t col, int n, double *wanted, double tolerance,
                        double slack)
{
    int64_t cols_at[OPS_HEAD_DIM_MAX];
    struct tensor t = { .data = wanted, .rows = 1, .cols = n, .stride = n, .dtype = DTYPE_F64 };

    for (int i = 0; i < n; i++)
        cols_at[i] = col + i;
    large_compare(c, name, got, &(struct large_picks){ 1, &row },
                  &(struct large_picks){ n, cols_at }, &t, tolerance, 1, slack);
}

static void check_query(struct large_case *c, const struct attention_sample *s)
{
    int e = s->a->head_dim;
    double out[OPS_HEAD_DIM_MAX] = { 0 }, k[OPS_HEAD_DIM_MAX], v[OPS_HEAD_DIM_MAX], top = -1e300;
    double sum = 0, lse;

    for (int64_t row = s->start; row <= s->query; row++) {
        kv_row(s, row, 1, k);
        kv_row(s, row, 2, v);
        double score = dot(s->q, k, e) * s->a->scale;

        if (score > top) {
            double shrink = exp(top - score);

            for (int i = 0; i < e; i++)
                out[i] *= shrink;
            sum *= shrink;
            top = score;
        }
        double p = exp(score - top);

        sum += p;
        for (int i = 0; i < e; i++)
            out[i] += p * v[i];
    }
    for (int i = 0; i < e; i++)
        out[i] /= sum;
    lse = top + log(sum);
    compare_row(c, "out", &c->op.out[0], s->query, (int64_t)s->head * e, e, out, 1e-2, 0);
    compare_row(c, "lse", &c->op.out[1], s->query, s->head, 1, &lse, 1e-4, 0);
}

void large_check_attention(struct large_case *c)
{
    for (int i = 0; i < HEAD_SAMPLES; i++) {
        struct attention_sample s = sample_at(c, 0, i, HEAD_SAMPLES);

        check_query(c, &s);
    }
}

/* dS of one score, and its probability; dout and q are the query's, k and v the key's. */
static double score_gradient(const struct attention_sample *s, int64_t query, int head,
                             const double *q, const double *dout, const double *k, const double *v,
                             double *p)
{
    int e = s->a->head_dim;
    double out[OPS_HEAD_DIM_MAX], lse;

    large_input_row(s->c, 4, query, (int64_t)head * e, e, out);
    large_input_row(s->c, 5, query, head, 1, &lse);
    *p = exp(dot(q, k, e) * s->a->scale - lse);
    return *p * (dot(dout, v, e) - dot(dout, out, e)) * s->a->scale;
}

static void check_dq(struct large_case *c, const struct attention_sample *s)
{
    int e = s->a->head_dim;
    double dq[OPS_HEAD_DIM_MAX] = { 0 }, k[OPS_HEAD_DIM_MAX], v[OPS_HEAD_DIM_MAX];
    double dout[OPS_HEAD_DIM_MAX], p, slack = 0;

    large_input_row(c, 0, s->query, (int64_t)s->head * e, e, dout);
    for (int64_t row = s->start; row <= s->query; row++) {
        kv_row(s, row, 1, k);
        kv_row(s, row, 2, v);
        double ds = score_gradient(s, s->query, s->head, s->q, dout, k, v, &p);

        for (int i = 0; i < e; i++)
            dq[i] += ds * k[i];
        /* dS is a difference, which is nothing where a query sees one key alone. */
        slack += 1e-6 * p * fabs(dot(dout, v, e) * s->a->scale);
    }
    compare_row(c, "dq", &c->op.out[0], s->query, (int64_t)s->head * e, e, dq, 1e-2, slack);
}

/* The sample's query is the key here. */
static void check_dkv(struct large_case *c, const struct attention_sample *s)
{
    int e = s->a->head_dim, group = s->a->n_heads / s->a->n_kv_heads;
    double dk[OPS_HEAD_DIM_MAX] = { 0 }, dv[OPS_HEAD_DIM_MAX] = { 0 }, k[OPS_HEAD_DIM_MAX];
    double v[OPS_HEAD_DIM_MAX], q[OPS_HEAD_DIM_MAX], dout[OPS_HEAD_DIM_MAX], p;
    int64_t end = s->start + s->a->seq_len;

    kv_row(s, s->query, 1, k);
    kv_row(s, s->query, 2, v);
    for (int head = s->kv * group; head < (s->kv + 1) * group; head++)
        for (int64_t row = s->query; row < end; row++) {
            large_input_row(c, 1, row, (int64_t)head * e, e, q);
            large_input_row(c, 0, row, (int64_t)head * e, e, dout);
            double ds = score_gradient(s, row, head, q, dout, k, v, &p);

            for (int i = 0; i < e; i++) {
                dk[i] += ds * q[i];
                dv[i] += p * dout[i];
            }
        }
    compare_row(c, "dk", &c->op.out[1], s->query, (int64_t)s->kv * e, e, dk, 1e-2, 0);
    compare_row(c, "dv", &c->op.out[2], s->query, (int64_t)s->kv * e, e, dv, 1e-2, 0);
}

void large_check_attention_grad(struct large_case *c)
{
    for (int i = 0; i < HEAD_SAMPLES; i++) {
        struct attention_sample s = sample_at(c, 1, i, HEAD_SAMPLES);

        check_dq(c, &s);
        if (i < KEY_SAMPLES || i == HEAD_SAMPLES - 1)
            check_dkv(c, &s);
    }
}

/* ---- the head ---- */

#define LEARNED_MAX 16
#define SLAB 512 /* rows of the vocabulary that one thread takes */

/* Tokens that are learned, few by large_operand.c's targets, and what each logit of theirs does. */
struct head {
    const struct large_case *c;
    int64_t d, n_vocab, n_slabs;
    int n;
    int64_t tokens[LEARNED_MAX], targets[LEARNED_MAX];
    double *x;      /* [n x d] */
    double *logits; /* [n_vocab x n], later their gradients */
    const struct large_picks *cols;
    double *dx; /* [n_slabs x n x cols] */
};

static void slab_logits(void *context, int64_t slab, int thread)
{
    struct head *h = context;
    double *w = malloc(sizeof *w * (size_t)h->d);

    (void)thread;
    CHECK(w);
    for (int64_t v = slab * SLAB; v < min_i64((slab + 1) * SLAB, h->n_vocab); v++) {
        large_input_row(h->c, 1, v, 0, h->d, w);
        for (int t = 0; t < h->n; t++)
            h->logits[v * h->n + t] = dot(w, h->x + t * h->d, (int)h->d);
    }
    free(w);
}

static void slab_dx(void *context, int64_t slab, int thread)
{
    struct head *h = context;
    double *dx = h->dx + slab * h->n * N_PICKS, w;

    (void)thread;
    for (int64_t v = slab * SLAB; v < min_i64((slab + 1) * SLAB, h->n_vocab); v++)
        for (int k = 0; k < N_PICKS; k++) {
            large_input_row(h->c, 1, v, h->cols->at[k], 1, &w);
            for (int t = 0; t < h->n; t++)
                dx[t * N_PICKS + k] += h->logits[v * h->n + t] * w;
        }
}

static void head_open(struct head *h, const struct large_case *c)
{
    double target;

    *h = (struct head){ .c = c, .d = c->op.in[0].cols, .n_vocab = c->op.in[1].rows };
    h->n_slabs = ceil_div(h->n_vocab, SLAB);
    for (int64_t t = 0; t < c->op.in[2].rows; t++) {
        large_input_row(c, 2, t, 0, 1, &target);
        if (target < 0)
            continue;
        CHECK(h->n < LEARNED_MAX);
        h->tokens[h->n] = t;
        h->targets[h->n++] = (int64_t)target;
    }
    h->x = malloc(sizeof *h->x * (size_t)(h->n * h->d));
    h->logits = malloc(sizeof *h->logits * (size_t)(h->n_vocab * h->n));
    h->dx = calloc((size_t)(h->n_slabs * h->n * N_PICKS), sizeof *h->dx);
    CHECK(h->x && h->logits && h->dx);
    for (int t = 0; t < h->n; t++)
        large_input_row(c, 0, h->tokens[t], 0, h->d, h->x + t * h->d);
}

/* Logits become their gradients. */
static double finish_loss(struct head *h)
{
    double loss = 0;

    for (int t = 0; t < h->n; t++) {
        double top = -1e300, sum = 0;

        for (int64_t v = 0; v < h->n_vocab; v++)
            top = fmax(top, h->logits[v * h->n + t]);
        for (int64_t v = 0; v < h->n_vocab; v++)
            sum += exp(h->logits[v * h->n + t] - top);
        loss += top + log(sum) - h->logits[h->targets[t] * h->n + t];
        for (int64_t v = 0; v < h->n_vocab; v++)
            h->logits[v * h->n + t] =
                exp(h->logits[v * h->n + t] - top) / sum - (v == h->targets[t]);
    }
    return loss;
}

/* dx of the learned tokens, and of others, where it is 0. */
static void check_head_dx(struct large_case *c, const struct head *h)
{
    int64_t rows_at[LEARNED_MAX + 2];
    struct large_picks rows = { h->n + 2, rows_at };
    struct tensor wanted = zeros(rows.n, N_PICKS, DTYPE_F64);

    for (int t = 0; t < h->n; t++) {
        rows_at[t] = h->tokens[t];
        for (int64_t slab = 0; slab < h->n_slabs; slab++)
            for (int k = 0; k < N_PICKS; k++)
                ((double *)wanted.data)[t * N_PICKS + k] += h->dx[(slab * h->n + t) * N_PICKS + k];
    }
    rows_at[h->n] = 0;
    rows_at[h->n + 1] = c->op.in[0].rows - 1;
    large_compare(c, "dx", &c->op.out[0], &rows, h->cols, &wanted, 1e-2, 1, 0);
    free(wanted.data);
}

static void check_head_dw(struct large_case *c, const struct head *h, int64_t rows_at[N_PICKS])
{
    struct tensor wanted = zeros(N_PICKS, N_PICKS, DTYPE_F64);

    for (int i = 0; i < N_PICKS; i++) {
        if (i < h->n) /* targets' rows, whose gradients are the large ones */
            rows_at[i] = h->targets[i];
        for (int k = 0; k < N_PICKS; k++)
            for (int t = 0; t < h->n; t++)
                ((double *)wanted.data)[i * N_PICKS + k] +=
                    h->logits[rows_at[i] * h->n + t] * h->x[t * h->d + h->cols->at[k]];
    }
    large_compare(c, "dw", &c->op.out[1], &(struct large_picks){ N_PICKS, rows_at }, h->cols,
                  &wanted, 1e-2, 1, 0);
    free(wanted.data);
}

void large_check_head(struct large_case *c)
{
    int has_gradients = c->op.kind == OP_HEAD_CROSS_ENTROPY;
    struct sampled s;
    struct head h;
    struct pool *pool;
    struct err err;

    choose_both(&s, &c->op.in[1], OP_HEAD_CROSS_ENTROPY);
    head_open(&h, c);
    h.cols = &s.cols;
    if (pool_create(&pool, (int)max_i64(1, sysconf(_SC_NPROCESSORS_ONLN)), NULL, &err) < 0)
        CHECK(!"threads for the reference");
    pool_run(pool, h.n_slabs, slab_logits, &h);
    double loss = finish_loss(&h);
    compare_row(c, "loss", &c->op.out[has_gradients ? 2 : 0], 0, 0, 1, &loss, 1e-4, 0);
    if (has_gradients) {
        pool_run(pool, h.n_slabs, slab_dx, &h);
        check_head_dx(c, &h);
        check_head_dw(c, &h, s.rows_at);
    }
    pool_destroy(pool);
    free(h.x);
    free(h.logits);
    free(h.dx);
}
