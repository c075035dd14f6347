/*
 * router.c - router, router_grad: the top s of m experts for each token, and the balance loss
 *
 * Softmax and top-s as in Shazeer et al. 2017; the balance is Fedus et al. 2021, eq. 4.
 *
 * A tile takes ROWS_A_TILE tokens. Choosing is a few passes over m numbers: m is up to a few
 * hundred, so all of this is a thousandth of what the experts do. Shares and mean probabilities
 * are added up by tile, then tile after tile, in fp64.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/rows_impl.h"
#include "kernels/cpu/softmax_impl.h"

#define ROWS_A_TILE 64

struct routing {
    const struct op_shape *op;
    const struct tensor *logits; /* or none */
    double *sums;        /* router, where it has stats: of probabilities [tiles x m]; else NULL */
    const float *shares; /* router_grad with balance: m / T balance f_e [m]; else NULL */
    float *rows;         /* router_grad: a row of probabilities a thread [threads x m] */
};

static int64_t n_tiles(int64_t rows)
{
    return ceil_div(rows, ROWS_A_TILE);
}

static int32_t *expert_row(const struct tensor *t, int64_t row)
{
    return (int32_t *)t->data + row * t->stride;
}

/* Whether a comes before b: larger, or equal and the lower expert. As torch.topk has it, what is no
 * number is the largest: so the weights show it. */
static int comes_before(const float *logits, int32_t a, int32_t b)
{
    float x = logits[a], y = logits[b];

    if (x != x || y != y)
        return x != x && (y == y || a < b);
    return x > y || (x == y && a < b);
}

/* The largest first; in range and distinct whatever the logits are. Each expert is put into a list
 * that is in order, which most are too small for. */
static void choose(const float *logits, int64_t m, int32_t *experts, int64_t n)
{
    int64_t n_listed = 0;

    for (int32_t e = 0; e < m; e++) {
        int64_t at;

        if (n_listed == n && !comes_before(logits, e, experts[n - 1]))
            continue;
        n_listed += n_listed < n;
        for (at = n_listed - 1; at > 0 && comes_before(logits, e, experts[at - 1]); at--)
            experts[at] = experts[at - 1];
        experts[at] = e;
    }
}

/* e^(logit - max) of all experts; returns their sum. */
CPU_INLINE double probabilities(const float *logits, int64_t m, float *p)
{
    return logit_exp_sum(logits, p, m, logit_max(logits, m));
}

CPU_INLINE void weigh(const float *logits, int64_t m, const int32_t *experts, int64_t n,
                      int normalize, float *weights)
{
    float max = logits[experts[0]];
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        weights[i] = vec_exp(logits[experts[i]] - max);
        sum += (double)weights[i];
    }
    if (!normalize)
        sum = logit_exp_sum(logits, NULL, m, max);
    for (int64_t i = 0; i < n; i++)
        weights[i] = (float)((double)weights[i] / sum);
}

CPU_INLINE void add_probabilities(double *sums, const float *logits, int64_t m)
{
    float max = logit_max(logits, m);
    double share = 1 / logit_exp_sum(logits, NULL, m, max);

    for (int64_t e = 0; e < m; e++)
        sums[e] += (double)vec_exp(logits[e] - max) * share;
}

CPU_INLINE void router_tile_body(void *context, int64_t tile)
{
    const struct routing *r = context;
    const struct op_shape *op = r->op;
    int64_t m = op->in[ROUTER_LOGITS].cols, n = op->out[ROUTER_WEIGHT].cols;
    int64_t end = min_i64((tile + 1) * ROWS_A_TILE, op->in[ROUTER_LOGITS].rows);
    double *sums = r->sums ? r->sums + tile * m : NULL;

    if (sums)
        memset(sums, 0, (size_t)m * sizeof *sums);
    for (int64_t t = tile * ROWS_A_TILE; t < end; t++) {
        const float *logits = float_row(&op->in[ROUTER_LOGITS], t);
        int32_t *experts = expert_row(&op->out[ROUTER_EXPERT], t);

        choose(logits, m, experts, n);
        weigh(logits, m, experts, n, op->attributes.normalize,
              float_row_mut(&op->out[ROUTER_WEIGHT], t));
        if (sums)
            add_probabilities(sums, logits, m);
    }
}

CPU_TILES(router_tile);

/* Integers: exact in any order. */
static void count_choices(const struct tensor *experts, int64_t m, double *counts)
{
    for (int64_t e = 0; e < m; e++)
        counts[e] = 0;
    for (int64_t t = 0; t < experts->rows; t++)
        for (int64_t i = 0; i < experts->cols; i++) {
            int32_t e = expert_row(experts, t)[i];

            CHECK(e >= 0 && e < m);
            counts[e]++;
        }
}

/* stats of this micro-batch in the first row of sums, and then into the accumulator. */
static void add_stats(const struct routing *r, int first)
{
    const struct op_shape *op = r->op;
    int64_t m = op->in[ROUTER_LOGITS].cols, T = op->in[ROUTER_LOGITS].rows,
            n = op->out[ROUTER_WEIGHT].cols;
    double *stats = op->out[ROUTER_STATS].data, *counts = r->sums + n_tiles(T) * m, balance = 0;

    count_choices(&op->out[ROUTER_EXPERT], m, counts);
    for (int64_t e = 0; e < m; e++) {
        double p = 0;

        for (int64_t tile = 0; tile < n_tiles(T); tile++)
            p += r->sums[tile * m + e];
        balance += counts[e] / (double)(T * n) * (p / (double)T);
        stats[1 + e] = (first ? 0 : stats[1 + e]) + counts[e];
    }
    stats[0] = (first ? 0 : stats[0]) + (double)m * balance;
}

static size_t router_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    if (!tensor_given(&op->out[ROUTER_STATS]))
        return 0;
    return (size_t)((n_tiles(op->in[ROUTER_LOGITS].rows) + 1) * op->in[ROUTER_LOGITS].cols) *
           sizeof(double);
}

static void router_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct routing r = { .op = op,
                         .sums = tensor_given(&op->out[ROUTER_STATS]) ? call->scratch : NULL };

    pool_run(kernels->pool, n_tiles(op->in[ROUTER_LOGITS].rows), router_tile[cpu_of(kernels)->isa],
             &r);
    if (r.sums)
        add_stats(&r, first);
}

/* ---- the gradient ---- */

/* Of the chosen ones' softmax: w_i (g_i - sum_j w_j g_j). */
static void chosen_gradient(const float *g, const float *w, const int32_t *experts, int64_t n,
                            float *dlogits, int64_t m)
{
    float mean = 0;

    memset(dlogits, 0, (size_t)m * sizeof *dlogits);
    for (int64_t i = 0; i < n; i++)
        mean = __builtin_fmaf(w[i], g[i], mean);
    for (int64_t i = 0; i < n; i++)
        dlogits[experts[i]] = w[i] * (g[i] - mean);
}

/* Of the softmax over all, of which the chosen ones' are read: p_e (g_e - sum_j p_j g_j). */
static void softmax_gradient(const float *g, const float *w, const int32_t *experts, int64_t n,
                             const float *p, float *dlogits, int64_t m)
{
    float mean = 0;

    for (int64_t i = 0; i < n; i++)
        mean = __builtin_fmaf(w[i], g[i], mean);
    for (int64_t e = 0; e < m; e++)
        dlogits[e] = -p[e] * mean;
    for (int64_t i = 0; i < n; i++)
        dlogits[experts[i]] = w[i] * (g[i] - mean);
}

/* The balance': p_e (share_e - sum_j share_j p_j). */
static void add_balance_gradient(const float *shares, const float *p, float *dlogits, int64_t m)
{
    float mean = 0;

    for (int64_t e = 0; e < m; e++)
        mean = __builtin_fmaf(shares[e], p[e], mean);
    for (int64_t e = 0; e < m; e++)
        dlogits[e] += p[e] * (shares[e] - mean);
}

static void router_grad_row(const struct routing *r, int64_t t, float *p)
{
    const struct op_shape *op = r->op;
    const float *g = float_row(&op->in[ROUTER_GRAD_DWEIGHT], t),
                *w = float_row(&op->in[ROUTER_GRAD_WEIGHT], t);
    const int32_t *experts = expert_row(&op->in[ROUTER_GRAD_EXPERT], t);
    float *dlogits = float_row_mut(&op->out[ROUTER_GRAD_DLOGITS], t);
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols, n = op->in[ROUTER_GRAD_DWEIGHT].cols;

    if (r->logits) {
        float sum = (float)probabilities(float_row(r->logits, t), m, p);

        for (int64_t e = 0; e < m; e++)
            p[e] /= sum;
    }
    if (op->attributes.normalize)
        chosen_gradient(g, w, experts, n, dlogits, m);
    else
        softmax_gradient(g, w, experts, n, p, dlogits, m);
    if (r->shares)
        add_balance_gradient(r->shares, p, dlogits, m);
}

static void router_grad_tile(void *context, int64_t tile, int thread)
{
    const struct routing *r = context;
    int64_t end = min_i64((tile + 1) * ROWS_A_TILE, r->op->out[ROUTER_GRAD_DLOGITS].rows);

    for (int64_t t = tile * ROWS_A_TILE; t < end; t++)
        router_grad_row(r, t, r->rows + thread * r->op->out[ROUTER_GRAD_DLOGITS].cols);
}

static size_t router_grad_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols;

    return (size_t)m *
           (sizeof(double) + sizeof(float) * (size_t)(1 + cpu_n_threads(cpu_of(kernels))));
}

static void router_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols, T = op->out[ROUTER_GRAD_DLOGITS].rows;
    double *counts = call->scratch;
    float *shares = (float *)(counts + m);
    struct routing r = { .op = op, .rows = shares + m };

    (void)first;
    if (tensor_given(&op->in[ROUTER_GRAD_LOGITS]))
        r.logits = &op->in[ROUTER_GRAD_LOGITS];
    if (op->attributes.balance > 0) {
        double balance = op->attributes.balance;

        if (tensor_given(&op->in[ROUTER_GRAD_SCALE]))
            balance *= (double)*(const float *)op->in[ROUTER_GRAD_SCALE].data;
        const struct tensor *choices =
            &op->in[tensor_given(&op->in[ROUTER_GRAD_CHOICES]) ? ROUTER_GRAD_CHOICES
                                                               : ROUTER_GRAD_EXPERT];
        double n_choices = (double)tensor_elements(choices);

        count_choices(choices, m, counts);
        for (int64_t e = 0; e < m; e++)
            shares[e] = (float)(balance * (double)m / (double)T * counts[e] / n_choices);
        r.shares = shares;
    }
    pool_run(kernels->pool, n_tiles(T), router_grad_tile, &r);
}

void cpu_register_router(struct kernels_backend *table)
{
    table->entries[OP_ROUTER] =
        (struct kernel_entry){ .run = router_run, .scratch_bytes = router_scratch_bytes };
    table->entries[OP_ROUTER_GRAD] =
        (struct kernel_entry){ .run = router_grad_run, .scratch_bytes = router_grad_scratch_bytes };
}
