/*
 * router.c - router, router_grad: the top s of m experts for each token, and the balance loss;
 * balance_bias
 *
 * Softmax and top-s as in Shazeer et al. 2017; the balance is Fedus et al. 2021, eq. 4; sigmoids,
 * groups and the bias are DeepSeek-AI 2024, section 2.1.2.
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

/* Tokens with one balance: all of them, or those of a sequence; a tile's are of one unit. */
struct balance_units {
    int64_t n, rows; /* rows: of each */
    int64_t tiles;   /* of each */
};

struct routing {
    const struct op_shape *op;
    const struct tensor *logits; /* or none */
    struct balance_units units;
    float *keys;         /* router, where they are not the logits: a row a tile [tiles x m] */
    double *sums;        /* router, where it has stats: of probabilities [tiles x m]; else NULL */
    const float *shares; /* router_grad with balance: m / T balance f_e [units x m]; else NULL */
    float *rows;         /* router_grad: rows of softmax and of sigmoids [threads x 2 m] */
    float z;             /* router_grad: 2 / T of its coefficient */
};

static struct balance_units units_of(const struct op_attributes *a, int64_t n_tokens)
{
    int64_t rows = a->by_sequence ? a->seq_len : n_tokens;

    return (struct balance_units){ n_tokens / max_i64(rows, 1), rows, ceil_div(rows, ROWS_A_TILE) };
}

static int64_t n_tiles(const struct balance_units *u)
{
    return u->n * u->tiles;
}

/* The first row of a tile, and the row behind its last one. */
static int64_t tile_begin(const struct balance_units *u, int64_t tile)
{
    return tile / u->tiles * u->rows + tile % u->tiles * ROWS_A_TILE;
}

static int64_t tile_end(const struct balance_units *u, int64_t tile)
{
    return min_i64(tile_begin(u, tile) + ROWS_A_TILE, (tile / u->tiles + 1) * u->rows);
}

static int32_t *expert_row(const struct tensor *t, int64_t row)
{
    return (int32_t *)t->data + row * t->stride;
}

/* ---- choosing ---- */

/* Whether a comes before b: larger, or equal and the lower expert. As torch.topk has it, what is no
 * number is the largest: so the weights show it. */
static int comes_before(const float *keys, int32_t a, int32_t b)
{
    float x = keys[a], y = keys[b];

    if (x != x || y != y)
        return x != x && (y == y || a < b);
    return x > y || (x == y && a < b);
}

/* The best n so far, the best first. */
struct ranking {
    int32_t *list;
    int64_t n, n_listed;
};

/* Put each of [begin, end) into the list, which is in order, and which most are too small for: in
 * range and distinct whatever the keys are. */
static void rank(struct ranking *r, const float *keys, int64_t begin, int64_t end)
{
    int32_t *list = r->list;

    for (int32_t e = (int32_t)begin; e < end; e++) {
        int64_t at;

        if (r->n_listed == r->n && !comes_before(keys, e, list[r->n - 1]))
            continue;
        r->n_listed += r->n_listed < r->n;
        for (at = r->n_listed - 1; at > 0 && comes_before(keys, e, list[at - 1]); at--)
            list[at] = list[at - 1];
        list[at] = e;
    }
}

/* Its largest key, or the sum of its two largest. */
static float group_key(const float *keys, int64_t n, int takes_two)
{
    float first = -INFINITY, second = -INFINITY;

    for (int64_t i = 0; i < n; i++) {
        if (keys[i] != keys[i])
            return keys[i];
        if (keys[i] > first) {
            second = first;
            first = keys[i];
        } else if (keys[i] > second) {
            second = keys[i];
        }
    }
    return takes_two && n > 1 ? first + second : first;
}

static void choose(const struct op_attributes *a, const float *keys, int64_t m, int32_t *experts,
                   int64_t n)
{
    int64_t groups = ops_router_groups(a), size = m / groups;
    struct ranking r = { experts, n, 0 };
    float group_keys[OPS_ROUTER_GROUPS_MAX];
    int32_t kept[OPS_ROUTER_GROUPS_MAX];
    struct ranking best = { kept, a->groups_kept, 0 };

    if (groups == 1) {
        rank(&r, keys, 0, m);
        return;
    }
    for (int64_t g = 0; g < groups; g++)
        group_keys[g] = group_key(keys + g * size, size, a->score == ROUTER_SIGMOID);
    rank(&best, group_keys, 0, groups);
    for (int64_t i = 0; i < best.n; i++)
        rank(&r, keys, kept[i] * size, (kept[i] + 1) * size);
}

/* ---- weights ---- */

/* e^(logit - max) of all experts; returns their sum. */
CPU_INLINE double probabilities(const float *logits, int64_t m, float *p)
{
    return logit_exp_sum(logits, p, m, logit_max(logits, m));
}

CPU_INLINE void weigh_softmax(const float *logits, int64_t m, const int32_t *experts, int64_t n,
                              const struct op_attributes *a, float *weights)
{
    float max = logits[experts[0]];
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        weights[i] = vec_exp(logits[experts[i]] - max);
        sum += (double)weights[i];
    }
    if (!a->normalize)
        sum = logit_exp_sum(logits, NULL, m, max);
    for (int64_t i = 0; i < n; i++)
        weights[i] = (float)((double)weights[i] / sum * a->scale);
}

/* What weights of sigmoids are divided by. */
CPU_INLINE double sum_of_chosen(const float *logits, const int32_t *experts, int64_t n,
                                int normalize)
{
    double sum = 0;

    for (int64_t i = 0; i < n && normalize; i++)
        sum += (double)vec_sigmoid(logits[experts[i]]);
    return normalize ? sum + 1e-20 : 1;
}

CPU_INLINE void weigh_sigmoid(const float *logits, const int32_t *experts, int64_t n,
                              const struct op_attributes *a, float *weights)
{
    double sum = sum_of_chosen(logits, experts, n, a->normalize);

    for (int64_t i = 0; i < n; i++)
        weights[i] = (float)((double)vec_sigmoid(logits[experts[i]]) / sum * a->scale);
}

CPU_INLINE void add_probabilities(double *sums, const float *logits, int64_t m)
{
    float max = logit_max(logits, m);
    double share = 1 / logit_exp_sum(logits, NULL, m, max);

    for (int64_t e = 0; e < m; e++)
        sums[e] += (double)vec_exp(logits[e] - max) * share;
}

CPU_INLINE void add_sigmoids(double *sums, const float *logits, int64_t m)
{
    double sum = 0;

    for (int64_t e = 0; e < m; e++)
        sum += (double)vec_sigmoid(logits[e]);
    for (int64_t e = 0; e < m; e++)
        sums[e] += (double)vec_sigmoid(logits[e]) / sum;
}

/* Sigmoids, plus the bias if there is one. */
CPU_INLINE void make_keys(const float *logits, const float *bias, int64_t m, float *keys)
{
    for (int64_t e = 0; e < m; e++)
        keys[e] = vec_sigmoid(logits[e]) + (bias ? bias[e] : 0);
}

CPU_INLINE void router_tile_body(void *context, int64_t tile)
{
    const struct routing *r = context;
    const struct op_shape *op = r->op;
    const struct op_attributes *a = &op->attributes;
    int64_t m = op->in[ROUTER_LOGITS].cols, n = op->out[ROUTER_WEIGHT].cols;
    double *sums = r->sums ? r->sums + tile * m : NULL;
    int is_softmax = a->score == ROUTER_SOFTMAX;

    if (sums)
        memset(sums, 0, (size_t)m * sizeof *sums);
    for (int64_t t = tile_begin(&r->units, tile); t < tile_end(&r->units, tile); t++) {
        const float *logits = float_row(&op->in[ROUTER_LOGITS], t);
        float *keys = r->keys + tile * m, *weights = float_row_mut(&op->out[ROUTER_WEIGHT], t);
        int32_t *experts = expert_row(&op->out[ROUTER_EXPERT], t);

        if (is_softmax) {
            choose(a, logits, m, experts, n);
            weigh_softmax(logits, m, experts, n, a, weights);
        } else {
            make_keys(logits, op->in[ROUTER_BIAS].data, m, keys);
            choose(a, keys, m, experts, n);
            weigh_sigmoid(logits, experts, n, a, weights);
        }
        if (sums && is_softmax)
            add_probabilities(sums, logits, m);
        else if (sums)
            add_sigmoids(sums, logits, m);
    }
}

CPU_TILES(router_tile);

/* ---- statistics ---- */

/*
 * How often each expert is chosen by the tokens of a unit: their rows of each part, where there are
 * choices of several layers, or of several parts of the same sequences. Integers: exact in any
 * order.
 */
static void count_choices(const struct tensor *experts, const struct balance_units *u, int64_t unit,
                          int64_t m, double *counts)
{
    for (int64_t e = 0; e < m; e++)
        counts[e] = 0;
    for (int64_t part = 0; part < experts->rows; part += u->n * u->rows)
        for (int64_t t = part + unit * u->rows; t < part + (unit + 1) * u->rows; t++)
            for (int64_t i = 0; i < experts->cols; i++) {
                int32_t e = expert_row(experts, t)[i];

                CHECK(e >= 0 && e < m);
                counts[e]++;
            }
}

/* Of one unit m sum_e f_e P_e. */
static double balance_of(const struct routing *r, int64_t unit, const double *counts)
{
    const struct balance_units *u = &r->units;
    int64_t m = r->op->in[ROUTER_LOGITS].cols, n = r->op->out[ROUTER_WEIGHT].cols;
    double balance = 0;

    for (int64_t e = 0; e < m; e++) {
        double p = 0;

        for (int64_t tile = unit * u->tiles; tile < (unit + 1) * u->tiles; tile++)
            p += r->sums[tile * m + e];
        balance += counts[e] / (double)(u->rows * n) * (p / (double)u->rows);
    }
    return (double)m * balance;
}

/* stats of this micro-batch behind sums, and then into the accumulator. */
static void add_stats(const struct routing *r, int first)
{
    const struct op_shape *op = r->op;
    int64_t m = op->in[ROUTER_LOGITS].cols;
    double *stats = op->out[ROUTER_STATS].data, *counts = r->sums + n_tiles(&r->units) * m;
    double balance = 0;

    for (int64_t e = 0; e < m && first; e++)
        stats[1 + e] = 0;
    for (int64_t unit = 0; unit < r->units.n; unit++) {
        count_choices(&op->out[ROUTER_EXPERT], &r->units, unit, m, counts);
        balance += balance_of(r, unit, counts);
        for (int64_t e = 0; e < m; e++)
            stats[1 + e] += counts[e];
    }
    stats[0] = (first ? 0 : stats[0]) + balance / (double)r->units.n;
    if (tensor_given(&op->out[ROUTER_COUNTS]))
        memcpy(op->out[ROUTER_COUNTS].data, stats + 1, (size_t)m * sizeof *stats);
}

/* Elements of scratch: sums and counts, which are doubles, and keys. */
static int64_t n_sums(const struct op_shape *op, const struct balance_units *u)
{
    return tensor_given(&op->out[ROUTER_STATS]) ? (n_tiles(u) + 1) * op->in[ROUTER_LOGITS].cols : 0;
}

static size_t router_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    struct balance_units u = units_of(&op->attributes, op->in[ROUTER_LOGITS].rows);
    int64_t n_keys =
        op->attributes.score == ROUTER_SOFTMAX ? 0 : n_tiles(&u) * op->in[ROUTER_LOGITS].cols;

    (void)kernels;
    return (size_t)n_sums(op, &u) * sizeof(double) + (size_t)n_keys * sizeof(float);
}

static void router_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct routing r = { .op = op,
                         .units = units_of(&op->attributes, op->in[ROUTER_LOGITS].rows),
                         .sums = tensor_given(&op->out[ROUTER_STATS]) ? call->scratch : NULL };

    if (op->attributes.score != ROUTER_SOFTMAX)
        r.keys = (float *)((double *)call->scratch + n_sums(op, &r.units));
    pool_run(kernels->pool, n_tiles(&r.units), router_tile[cpu_of(kernels)->isa], &r);
    if (r.sums)
        add_stats(&r, first);
}

/* ---- the gradient ---- */

/* Of the chosen ones' softmax: w_i (g_i - sum_j w_j g_j / scale). */
static void chosen_gradient(const float *g, const float *w, const int32_t *experts, int64_t n,
                            float scale, float *dlogits)
{
    float mean = 0;

    for (int64_t i = 0; i < n; i++)
        mean = __builtin_fmaf(w[i], g[i], mean);
    mean /= scale;
    for (int64_t i = 0; i < n; i++)
        dlogits[experts[i]] = w[i] * (g[i] - mean);
}

/* Of the softmax over all, of which the chosen ones' are read: scale p_e (g_e - sum_j p_j g_j). */
static void softmax_gradient(const float *g, const float *w, const int32_t *experts, int64_t n,
                             const float *p, float scale, float *dlogits, int64_t m)
{
    float mean = 0;

    for (int64_t i = 0; i < n; i++)
        mean = __builtin_fmaf(w[i], g[i], mean);
    for (int64_t e = 0; e < m; e++)
        dlogits[e] = -p[e] * mean;
    mean /= scale;
    for (int64_t i = 0; i < n; i++)
        dlogits[experts[i]] = w[i] * (g[i] - mean);
}

/* Of sigmoids s_i over their sum S: (scale g_i - sum_j w_j g_j) / S s_i (1 - s_i). */
static void sigmoid_gradient(const float *g, const float *w, const int32_t *experts, int64_t n,
                             const float *logits, const struct op_attributes *a, float *dlogits)
{
    float sum = (float)sum_of_chosen(logits, experts, n, a->normalize), mean = 0;

    for (int64_t i = 0; i < n && a->normalize; i++)
        mean = __builtin_fmaf(w[i], g[i], mean);
    for (int64_t i = 0; i < n; i++) {
        float s = vec_sigmoid(logits[experts[i]]);

        dlogits[experts[i]] = ((float)a->scale * g[i] - mean) / sum * (s * (1 - s));
    }
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

/* The same of sigmoids s_e over their sum S: s_e (1 - s_e) (share_e - sum_j share_j s_j / S) / S.
 */
static void add_sigmoid_balance(const float *shares, const float *logits, float *s, float *dlogits,
                                int64_t m)
{
    float mean = 0, all;
    double sum = 0;

    for (int64_t e = 0; e < m; e++) {
        s[e] = vec_sigmoid(logits[e]);
        sum += (double)s[e];
    }
    all = (float)sum;
    for (int64_t e = 0; e < m; e++)
        mean = __builtin_fmaf(shares[e], s[e] / all, mean);
    for (int64_t e = 0; e < m; e++)
        dlogits[e] += s[e] * (1 - s[e]) * (shares[e] - mean) / all;
}

static void router_grad_row(const struct routing *r, int64_t t, float *p)
{
    const struct op_shape *op = r->op;
    const struct op_attributes *a = &op->attributes;
    const float *g = float_row(&op->in[ROUTER_GRAD_DWEIGHT], t),
                *w = float_row(&op->in[ROUTER_GRAD_WEIGHT], t);
    const float *logits = r->logits ? float_row(r->logits, t) : NULL;
    const int32_t *experts = expert_row(&op->in[ROUTER_GRAD_EXPERT], t);
    float *dlogits = float_row_mut(&op->out[ROUTER_GRAD_DLOGITS], t), log_sum = 0;
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols, n = op->in[ROUTER_GRAD_DWEIGHT].cols;
    const float *shares = r->shares ? r->shares + t / r->units.rows * m : NULL;
    int is_softmax = a->score == ROUTER_SOFTMAX;

    if (logits && (is_softmax || r->z > 0)) {
        double all = probabilities(logits, m, p);
        float sum = (float)all;

        for (int64_t e = 0; e < m; e++)
            p[e] /= sum;
        if (r->z > 0)
            log_sum = logit_max(logits, m) + (float)log(all);
    }
    if (!is_softmax || a->normalize)
        memset(dlogits, 0, (size_t)m * sizeof *dlogits);
    if (!is_softmax)
        sigmoid_gradient(g, w, experts, n, logits, a, dlogits);
    else if (a->normalize)
        chosen_gradient(g, w, experts, n, (float)a->scale, dlogits);
    else
        softmax_gradient(g, w, experts, n, p, (float)a->scale, dlogits, m);
    if (shares && is_softmax)
        add_balance_gradient(shares, p, dlogits, m);
    else if (shares)
        add_sigmoid_balance(shares, logits, p + m, dlogits, m);
    for (int64_t e = 0; e < m && r->z > 0; e++)
        dlogits[e] = __builtin_fmaf(r->z * log_sum, p[e], dlogits[e]);
}

static void router_grad_tile(void *context, int64_t tile, int thread)
{
    const struct routing *r = context;

    for (int64_t t = tile_begin(&r->units, tile); t < tile_end(&r->units, tile); t++)
        router_grad_row(r, t, r->rows + thread * 2 * r->op->out[ROUTER_GRAD_DLOGITS].cols);
}

static size_t router_grad_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols;
    struct balance_units u = units_of(&op->attributes, op->out[ROUTER_GRAD_DLOGITS].rows);

    return (size_t)m *
           (sizeof(double) + sizeof(float) * (size_t)(u.n + 2 * cpu_n_threads(cpu_of(kernels))));
}

/* shares of all units; counts: m numbers of scratch. */
static void make_shares(const struct routing *r, double *counts, float *shares, double scale)
{
    const struct op_shape *op = r->op;
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols, T = op->out[ROUTER_GRAD_DLOGITS].rows;
    const struct tensor *choices =
        &op->in[tensor_given(&op->in[ROUTER_GRAD_CHOICES]) ? ROUTER_GRAD_CHOICES
                                                           : ROUTER_GRAD_EXPERT];
    double n_choices = (double)tensor_elements(choices) / (double)r->units.n;

    for (int64_t unit = 0; unit < r->units.n; unit++) {
        const double *of_unit = counts;

        if (tensor_given(&op->in[ROUTER_GRAD_COUNTS])) {
            of_unit = op->in[ROUTER_GRAD_COUNTS].data;
            n_choices = 0;
            for (int64_t e = 0; e < m; e++)
                n_choices += of_unit[e];
        } else {
            count_choices(choices, &r->units, unit, m, counts);
        }
        for (int64_t e = 0; e < m; e++)
            shares[unit * m + e] = (float)(scale * (double)m / (double)T * of_unit[e] / n_choices);
    }
}

static void router_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols, T = op->out[ROUTER_GRAD_DLOGITS].rows;
    struct routing r = { .op = op, .units = units_of(&op->attributes, T) };
    double *counts = call->scratch, scale = 1;
    float *shares = (float *)(counts + m);

    (void)first;
    r.rows = shares + r.units.n * m;
    if (tensor_given(&op->in[ROUTER_GRAD_LOGITS]))
        r.logits = &op->in[ROUTER_GRAD_LOGITS];
    if (tensor_given(&op->in[ROUTER_GRAD_SCALE]))
        scale = (double)*(const float *)op->in[ROUTER_GRAD_SCALE].data;
    r.z = (float)(2 * op->attributes.z * scale / (double)T);
    if (op->attributes.balance > 0) {
        make_shares(&r, counts, shares, op->attributes.balance * scale);
        r.shares = shares;
    }
    pool_run(kernels->pool, n_tiles(&r.units), router_grad_tile, &r);
}

/* ---- the bias ---- */

/* Counts are integers: the sum is exact, and m times a count is, too. */
static void balance_bias_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const double *counts = op->in[BALANCE_BIAS_COUNTS].data;
    float *bias = op->in[BALANCE_BIAS_BIAS].data, rate = (float)op->attributes.rate;
    int64_t m = op->in[BALANCE_BIAS_BIAS].cols;
    double sum = 0;

    (void)kernels;
    (void)first;
    if (*(const int32_t *)op->in[BALANCE_BIAS_SKIP_UPDATE].data)
        return;
    for (int64_t e = 0; e < m; e++)
        sum += counts[e];
    for (int64_t e = 0; e < m; e++) {
        double over = counts[e] * (double)m - sum;

        bias[e] += over > 0 ? -rate : over < 0 ? rate : 0;
    }
}

void cpu_register_router(struct kernels_backend *table)
{
    table->entries[OP_ROUTER] =
        (struct kernel_entry){ .run = router_run, .scratch_bytes = router_scratch_bytes };
    table->entries[OP_ROUTER_GRAD] =
        (struct kernel_entry){ .run = router_grad_run, .scratch_bytes = router_grad_scratch_bytes };
    table->entries[OP_BALANCE_BIAS] = (struct kernel_entry){ .run = balance_bias_run };
}
