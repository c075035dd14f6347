/*
 * large_reference.c - what a sample of a large op's results should be
 *
 * Most ops' samples are small ops: 16 rows of a norm are a norm of 16 rows, 16 x 16 elements of a
 * product are a product of 16 rows and 16 columns. These are given to the reference of the kernels'
 * tests (op_facts.h). Attention's and the head's rows need all keys, or the whole vocabulary:
 * they are written out here.
 *
 * Tolerances are of the largest wanted number: sums in fp32 of up to 60,000 products, 1e-3 (a
 * tensor core cuts off what it adds up); what is rounded to 16 bits within the op (P and dS of
 * attention, a head's gradients of logits), 1e-2.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/num.h"
#include "base/rng.h"
#include "device/pool.h"
#include "support/large_case.h"
#include "support/op_case.h"
#include "support/op_facts.h"

#define N_PICKS 16

struct sampled {
    int64_t rows_at[N_PICKS], cols_at[N_PICKS];
    struct large_picks rows, cols;
};

/* The first, the last and others between. */
static struct large_picks choose(int64_t n, uint64_t place, int64_t at[N_PICKS])
{
    for (int i = 0; i < N_PICKS; i++) {
        struct rng_block b = rng_at(2, RNG_TEST, place, (uint64_t)i);

        at[i] = i == 0 ? 0 : i == N_PICKS - 1 ? n - 1 : (int64_t)(b.word[0] % (uint64_t)n);
    }
    return (struct large_picks){ N_PICKS, at };
}

/* Of a tensor; each kind of another place, so that kinds have samples of their own. */
static void choose_both(struct sampled *s, const struct tensor *t, enum op_kind kind)
{
    s->rows = choose(t->rows, (uint64_t)kind * 2, s->rows_at);
    s->cols = choose(t->cols, (uint64_t)kind * 2 + 1, s->cols_at);
}

static struct tensor zeros(int64_t rows, int64_t cols, enum dtype dtype)
{
    struct tensor t = { .rows = rows, .cols = cols, .stride = cols, .dtype = dtype };

    t.data = calloc((size_t)(rows * cols), dtype_bytes(dtype));
    CHECK(t.data);
    return t;
}

/* The reference's operands: inputs as restricted by masks of rows and of columns, outputs all of
 * their restricted size. */
struct restriction {
    unsigned in_rows, in_cols, out_rows, out_cols;
};

static void make_reference(const struct large_case *c, const struct restriction *r,
                           const struct large_picks *rows, const struct large_picks *cols,
                           struct op_shape *reference)
{
    *reference = (struct op_shape){ .kind = c->op.kind, .attributes = c->op.attributes };
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        reference->in[i] =
            large_part(c, i, r->in_rows >> i & 1 ? rows : NULL, r->in_cols >> i & 1 ? cols : NULL);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++) {
        const struct tensor *t = &c->op.out[i];

        if (tensor_given(t))
            reference->out[i] = zeros(r->out_rows >> i & 1 ? rows->n : t->rows,
                                      r->out_cols >> i & 1 ? cols->n : t->cols,
                                      t->dtype == DTYPE_I32 ? DTYPE_I32 : DTYPE_F64);
    }
}

static void compare_output(struct large_case *c, int output, const struct large_picks *rows,
                           const struct large_picks *cols, const struct op_shape *reference,
                           double tolerance)
{
    if (tensor_given(&c->op.out[output]))
        large_compare(c, op_info(c->op.kind)->outputs[output].name, &c->op.out[output], rows, cols,
                      &reference->out[output], tolerance, 1);
}

/* ---- what goes row by row ---- */

/* in, out: operands of one row a token; sums: outputs that are sums over tokens, of each column. */
struct row_kind {
    enum op_kind kind;
    unsigned in, out, sums;
    double tolerance;
};

static const struct row_kind row_kinds[] = {
    { OP_RMSNORM, 1, 3, 0, 1e-4 },       { OP_ADD_RMSNORM, 3, 7, 0, 1e-4 },
    { OP_RMSNORM_GRAD, 27, 1, 2, 1e-4 }, { OP_ROPE, 3, 1, 0, 1e-4 },
    { OP_ROPE_GRAD, 3, 1, 0, 1e-4 },     { OP_SWIGLU, 1, 1, 0, 1e-4 },
    { OP_SWIGLU_GRAD, 3, 1, 0, 1e-4 },   { OP_CAST, 1, 1, 0, 1e-6 },
    { OP_ADD, 3, 1, 0, 1e-6 },           { OP_ADD_BIAS, 1, 1, 0, 1e-6 },
};

/* Sums over all tokens, of a few columns: the other results of that reference mean nothing. */
static void check_sums(struct large_case *c, const struct row_kind *kind, const struct sampled *s)
{
    struct restriction r = { .out_cols = ~0u };
    struct op_shape reference;

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        if (c->op.in[i].cols == c->op.in[0].cols)
            r.in_cols |= 1u << i;
    make_reference(c, &r, NULL, &s->cols, &reference);
    reference_run(&reference, RUN_FIRST);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        if (kind->sums >> i & 1)
            compare_output(c, i, NULL, &s->cols, &reference, kind->tolerance);
    reference_release(&reference);
}

static void check_rows(struct large_case *c, const struct row_kind *kind)
{
    struct restriction r = { .in_rows = kind->in, .out_rows = kind->out };
    struct op_shape reference;
    struct sampled s;

    choose_both(&s, &c->op.out[0], kind->kind);
    make_reference(c, &r, &s.rows, NULL, &reference);
    reference_run(&reference, RUN_FIRST);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        if (kind->out >> i & 1)
            compare_output(c, i, &s.rows, NULL, &reference, kind->tolerance);
    reference_release(&reference);
    if (kind->sums)
        check_sums(c, kind, &s);
}

/* ---- products ---- */

/* linear: rows of x and of w; dx: rows of dy, columns of w; dw: columns of dy and of x. */
static void check_product(struct large_case *c)
{
    static const struct restriction of_x = { .in_rows = 1, .out_rows = 1, .out_cols = 1 };
    const struct tensor *out = &c->op.out[0];
    struct op_shape reference = { .kind = c->op.kind };
    struct sampled s;

    choose_both(&s, out, c->op.kind);
    if (c->op.kind == OP_LINEAR_DX) {
        struct restriction r = of_x;

        r.in_cols = 2;
        make_reference(c, &r, &s.rows, &s.cols, &reference);
    } else {
        int is_dw = c->op.kind == OP_LINEAR_DW;

        reference.in[0] = large_part(c, 0, is_dw ? NULL : &s.rows, is_dw ? &s.rows : NULL);
        reference.in[1] = large_part(c, 1, is_dw ? NULL : &s.cols, is_dw ? &s.cols : NULL);
        reference.in[2] = large_part(c, 2, NULL, &s.cols);
        reference.out[0] = zeros(N_PICKS, N_PICKS, DTYPE_F64);
        if (is_dw && tensor_given(&c->op.out[1]))
            reference.out[1] = zeros(1, N_PICKS, DTYPE_F64);
    }
    reference_run(&reference, RUN_FIRST);
    /* A 16-bit result may have a rounded bias in it (cuda/gemm.cuh): 2e-3 of the largest. */
    compare_output(c, 0, &s.rows, &s.cols, &reference, tensor_given(&c->op.in[2]) ? 3e-3 : 1e-3);
    compare_output(c, 1, NULL, &s.rows, &reference, 1e-3);
    reference_release(&reference);
}

/* ---- the embedding ---- */

/* The picked tokens' rows of the table, one after the other, are the reference's. */
static void check_embed(struct large_case *c)
{
    struct op_shape reference = { .kind = OP_EMBED };
    struct sampled s;
    int64_t tokens[N_PICKS];

    choose_both(&s, &c->op.out[0], OP_EMBED);
    reference.in[0] = large_part(c, 0, &s.rows, NULL);
    for (int i = 0; i < N_PICKS; i++) {
        tokens[i] = (int64_t)tensor_get(&reference.in[0], i, 0);
        tensor_set(&reference.in[0], i, 0, i);
    }
    reference.in[1] = large_part(c, 1, &(struct large_picks){ N_PICKS, tokens }, NULL);
    reference.in[2] = large_part(c, 2, &s.rows, NULL);
    reference.out[0] = zeros(N_PICKS, c->op.out[0].cols, DTYPE_F64);
    reference_run(&reference, RUN_FIRST);
    compare_output(c, 0, &s.rows, NULL, &reference, 1e-6);
    reference_release(&reference);
}

/* Rows of the table of some tokens' own, of some that may be nowhere; dx of those tokens alone. */
static void check_embed_dw(struct large_case *c)
{
    int64_t n_rows = c->op.in[1].rows, *at = malloc(sizeof *at * (size_t)n_rows);
    int64_t *row_of = malloc(sizeof *row_of * (size_t)n_rows);
    struct large_picks found = { 0, at };
    struct op_shape reference = { .kind = OP_EMBED_DW };
    struct sampled s;
    double token;

    CHECK(at && row_of);
    choose_both(&s, &c->op.out[0], OP_EMBED_DW);
    for (int i = 1; i < N_PICKS / 2; i++) {
        large_input_row(c, 1, i * n_rows / N_PICKS, 0, 1, &token);
        s.rows_at[i] = (int64_t)token;
    }
    for (int64_t t = 0; t < n_rows; t++) {
        large_input_row(c, 1, t, 0, 1, &token);
        for (int i = 0; i < N_PICKS; i++)
            if (s.rows_at[i] == (int64_t)token) {
                row_of[found.n] = i;
                at[found.n++] = t;
                break;
            }
    }
    reference.in[0] = large_part(c, 0, &found, &s.cols);
    reference.in[1] = zeros(found.n, 1, DTYPE_I32);
    reference.out[0] = zeros(N_PICKS, N_PICKS, DTYPE_F64);
    for (int64_t i = 0; i < found.n; i++)
        tensor_set(&reference.in[1], i, 0, (double)row_of[i]);
    reference_run(&reference, RUN_FIRST);
    /* A token that was picked twice has its sum in the first of its rows. */
    for (int i = 0; i < N_PICKS; i++)
        for (int k = 0; k < i; k++)
            if (s.rows_at[i] == s.rows_at[k])
                for (int col = 0; col < N_PICKS; col++)
                    tensor_set(&reference.out[0], i, col, tensor_get(&reference.out[0], k, col));
    compare_output(c, 0, &s.rows, &s.cols, &reference, 1e-5);
    reference_release(&reference);
    free(at);
    free(row_of);
}

/* ---- the update ---- */

/* Elements know nothing of one another where decay and place are attributes. */
static int check_adamw(struct large_case *c)
{
    static const struct restriction r = {
        .in_rows = 0x71, .in_cols = 0x71, .out_rows = 1, .out_cols = 1
    };
    const struct op_info *info = op_info(OP_ADAMW);
    struct op_shape reference;
    struct sampled s;

    if (tensor_given(&c->op.in[7]) || tensor_given(&c->op.in[8]) || tensor_given(&c->op.in[9]))
        return -1;
    choose_both(&s, &c->op.in[4], OP_ADAMW);
    make_reference(c, &r, &s.rows, &s.cols, &reference);
    reference_run(&reference, RUN_FIRST);
    /* States of two bytes are rounded by chance: by up to a whole step. */
    for (int i = 4; i < 7; i++)
        large_compare(c, info->inputs[i].name, &c->op.in[i], &s.rows, &s.cols, &reference.in[i],
                      1e-5, 2);
    if (tensor_given(&c->op.out[0]))
        large_compare(c, "weight", &c->op.out[0], &s.rows, &s.cols, &reference.out[0], 1e-5, 2);
    reference_release(&reference);
    return 0;
}

static void check_sumsq(struct large_case *c)
{
    const struct tensor *x = &c->op.in[0];
    struct sampled s;
    int64_t n_elements = tensor_elements(x);

    CHECK(x->stride == x->cols);
    choose_both(&s, &c->op.out[0], OP_SUMSQ);
    struct tensor wanted = zeros(1, N_PICKS, DTYPE_F64);
    for (int i = 0; i < N_PICKS; i++) {
        int64_t begin = s.cols_at[i] * OPS_NORM_BLOCK;
        int64_t end = min_i64(begin + OPS_NORM_BLOCK, n_elements);
        double sum = 0, value;

        for (int64_t k = begin; k < end; k++) {
            large_input_row(c, 0, k / x->cols, k % x->cols, 1, &value);
            sum += value * value;
        }
        tensor_set(&wanted, 0, i, sum);
    }
    large_compare(c, "sums", &c->op.out[0], NULL, &s.cols, &wanted, 1e-12, 0);
    free(wanted.data);
}

/* sum_runs and gradient_norm are small. */
static void check_whole(struct large_case *c)
{
    static const struct restriction nothing = { 0 };
    struct op_shape reference;

    make_reference(c, &nothing, NULL, NULL, &reference);
    reference_run(&reference, RUN_FIRST);
    for (int i = 0; i < op_info(c->op.kind)->n_outputs; i++)
        compare_output(c, i, NULL, NULL, &reference,
                       c->op.out[i].dtype == DTYPE_F32 ? 1e-6 : 1e-12);
    reference_release(&reference);
}

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
                        int64_t row, int64_t col, int n, double *wanted, double tolerance)
{
    int64_t cols_at[OPS_HEAD_DIM_MAX];
    struct tensor t = { .data = wanted, .rows = 1, .cols = n, .stride = n, .dtype = DTYPE_F64 };

    for (int i = 0; i < n; i++)
        cols_at[i] = col + i;
    large_compare(c, name, got, &(struct large_picks){ 1, &row },
                  &(struct large_picks){ n, cols_at }, &t, tolerance, 1);
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
    compare_row(c, "out", &c->op.out[0], s->query, (int64_t)s->head * e, e, out, 1e-2);
    compare_row(c, "lse", &c->op.out[1], s->query, s->head, 1, &lse, 1e-4);
}

static void check_attention(struct large_case *c)
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
    double dout[OPS_HEAD_DIM_MAX], p;

    large_input_row(c, 0, s->query, (int64_t)s->head * e, e, dout);
    for (int64_t row = s->start; row <= s->query; row++) {
        kv_row(s, row, 1, k);
        kv_row(s, row, 2, v);
        double ds = score_gradient(s, s->query, s->head, s->q, dout, k, v, &p);

        for (int i = 0; i < e; i++)
            dq[i] += ds * k[i];
    }
    compare_row(c, "dq", &c->op.out[0], s->query, (int64_t)s->head * e, e, dq, 1e-2);
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
    compare_row(c, "dk", &c->op.out[1], s->query, (int64_t)s->kv * e, e, dk, 1e-2);
    compare_row(c, "dv", &c->op.out[2], s->query, (int64_t)s->kv * e, e, dv, 1e-2);
}

static void check_attention_grad(struct large_case *c)
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

/* Tokens that are learned, few by large_case.c's targets, and what each logit of theirs does. */
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
    large_compare(c, "dx", &c->op.out[0], &rows, h->cols, &wanted, 1e-2, 1);
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
                  &wanted, 1e-2, 1);
    free(wanted.data);
}

static void check_head(struct large_case *c)
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
    compare_row(c, "loss", &c->op.out[has_gradients ? 2 : 0], 0, 0, 1, &loss, 1e-4);
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

int large_check(struct large_case *c)
{
    const struct op_attributes *a = &c->op.attributes;

    for (size_t i = 0; i < sizeof row_kinds / sizeof *row_kinds; i++)
        if (row_kinds[i].kind == c->op.kind) {
            check_rows(c, &row_kinds[i]);
            return 0;
        }
    switch (c->op.kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
        check_product(c);
        return 0;
    case OP_EMBED:
        check_embed(c);
        return 0;
    case OP_EMBED_DW:
        check_embed_dw(c);
        return 0;
    case OP_ADAMW:
        return check_adamw(c);
    case OP_SUMSQ:
        check_sumsq(c);
        return 0;
    case OP_SUM_RUNS:
    case OP_GRADIENT_NORM:
        check_whole(c);
        return 0;
    case OP_ATTENTION:
        check_attention(c);
        return a->window || a->alibi || a->p > 0 || tensor_given(&c->op.in[5]) ? -1 : 0;
    case OP_ATTENTION_GRAD:
        check_attention_grad(c);
        return a->window || a->alibi || a->p > 0 || tensor_given(&c->op.in[8]) ? -1 : 0;
    case OP_HEAD_CROSS_ENTROPY:
    case OP_HEAD_LOSS:
        check_head(c);
        return 0;
    default:
        return -1;
    }
}
