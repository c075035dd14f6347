/*
 * router.c - facts of routers, of the bias that balances them, and of gates
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

static int32_t *chosen(const struct tensor *t, int64_t row, int64_t i)
{
    return (int32_t *)t->data + row * t->cols + i;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- scores ---- */

#define EXPERTS_MAX 1024

/* A token's row of logits: what weights are made of, of these the sum, and the softmax. */
struct token {
    int64_t m;
    enum router_score kind;
    double score[EXPERTS_MAX], sum;
    double softmax[EXPERTS_MAX], log_sum;
    double key[EXPERTS_MAX]; /* of a router */
};

/* Borrowed until the next call. */
static struct token *token_of(const struct op_shape *op, int input, int64_t t)
{
    static struct token token;
    double sum = 0;

    token.m = op->in[input].cols;
    token.kind = op->attributes.score;
    token.sum = 0;
    CHECK(token.m <= EXPERTS_MAX);
    for (int64_t e = 0; e < token.m; e++)
        sum += exp(IN(input, t, e));
    token.log_sum = log(sum);
    for (int64_t e = 0; e < token.m; e++) {
        token.softmax[e] = exp(IN(input, t, e)) / sum;
        token.score[e] = token.kind == ROUTER_SIGMOID ? sigmoid(IN(input, t, e)) : token.softmax[e];
        token.sum += token.score[e];
    }
    return &token;
}

static double sum_of_chosen(const struct token *token, const struct tensor *experts, int64_t t)
{
    double sum = token->kind == ROUTER_SIGMOID ? 1e-20 : 0;

    for (int64_t i = 0; i < experts->cols; i++)
        sum += token->score[*chosen(experts, t, i)];
    return sum;
}

/* ---- choosing ---- */

/* How many experts of [begin, end) are better, or as good and lower. */
static int64_t rank_among(const struct token *token, int64_t e, int64_t begin, int64_t end)
{
    int64_t n = 0;

    for (int64_t other = begin; other < end; other++)
        n += token->key[other] > token->key[e] || (token->key[other] == token->key[e] && other < e);
    return n;
}

static double group_key(const struct token *token, int64_t group, int64_t size)
{
    int64_t begin = group * size, n = token->kind == ROUTER_SIGMOID ? 2 : 1;
    double sum = 0;

    for (int64_t e = begin; e < begin + size; e++)
        sum += rank_among(token, e, begin, begin + size) < n ? token->key[e] : 0;
    return sum;
}

static int is_kept(const struct op_shape *op, const struct token *token, int64_t group)
{
    int64_t groups = ops_router_groups(&op->attributes), size = token->m / groups;
    double own;
    int n = 0;

    if (groups == 1)
        return 1;
    own = group_key(token, group, size);
    for (int64_t g = 0; g < groups; g++)
        n += group_key(token, g, size) > own || (group_key(token, g, size) == own && g < group);
    return n < op->attributes.groups_kept;
}

/* Which choice of the token e is; at least m: none. */
static int64_t rank_of(const struct op_shape *op, const struct token *token, int64_t e)
{
    int64_t groups = ops_router_groups(&op->attributes), size = token->m / groups, n = 0;

    if (!is_kept(op, token, e / size))
        return token->m;
    for (int64_t g = 0; g < groups; g++)
        n += is_kept(op, token, g) ? rank_among(token, e, g * size, (g + 1) * size) : 0;
    return n;
}

/* Sigmoids have the bias, if there is one. */
static const struct token *router_token(const struct op_shape *op, int64_t t)
{
    struct token *token = token_of(op, ROUTER_LOGITS, t);

    for (int64_t e = 0; e < token->m; e++)
        token->key[e] = token->kind == ROUTER_SOFTMAX ? IN(ROUTER_LOGITS, t, e)
                        : tensor_given(&op->in[ROUTER_BIAS])
                            ? token->score[e] + IN(ROUTER_BIAS, 0, e)
                            : token->score[e];
    return token;
}

/* ---- balance ---- */

/* Tokens that have one balance: from that of t on, so many. */
static int64_t unit_rows(const struct op_shape *op, int64_t n_tokens)
{
    return op->attributes.by_sequence ? op->attributes.seq_len : n_tokens;
}

/* e's share of the choices of a unit's tokens, in all parts of n_tokens that there are. */
static double share_of(const struct tensor *experts, int64_t e, int64_t begin, int64_t rows,
                       int64_t n_tokens)
{
    double n = 0;

    for (int64_t t = 0; t < experts->rows; t++)
        for (int64_t i = 0; i < experts->cols && t % n_tokens / rows == begin / rows; i++)
            n += *chosen(experts, t, i) == e;
    return n / (double)(experts->rows / n_tokens * rows * experts->cols);
}

static void add_stats(const struct op_shape *op)
{
    const struct tensor *experts = &op->out[ROUTER_EXPERT];
    int64_t T = op->in[ROUTER_LOGITS].rows, m = op->in[ROUTER_LOGITS].cols, rows = unit_rows(op, T);
    static double mean[EXPERTS_MAX];

    for (int64_t begin = 0; begin < T; begin += rows) {
        for (int64_t e = 0; e < m; e++)
            mean[e] = 0;
        for (int64_t t = begin; t < begin + rows; t++) {
            const struct token *token = token_of(op, ROUTER_LOGITS, t);

            for (int64_t e = 0; e < m; e++)
                mean[e] += token->score[e] / token->sum / (double)rows;
        }
        for (int64_t e = 0; e < m; e++)
            OUT(ROUTER_STATS, 0, 0) += (double)m * share_of(experts, e, begin, rows, T) * mean[e] *
                                       (double)rows / (double)T;
    }
    for (int64_t e = 0; e < m; e++) {
        OUT(ROUTER_STATS, 0, 1 + e) +=
            share_of(experts, e, 0, T, T) * (double)tensor_elements(experts);
        if (tensor_given(&op->out[ROUTER_COUNTS]))
            OUT(ROUTER_COUNTS, 0, e) = OUT(ROUTER_STATS, 0, 1 + e);
    }
}

static void router(const struct op_shape *op)
{
    const struct tensor *experts = &op->out[ROUTER_EXPERT];
    const struct op_attributes *a = &op->attributes;
    int64_t m = op->in[ROUTER_LOGITS].cols;

    for (int64_t t = 0; t < op->in[ROUTER_LOGITS].rows; t++) {
        const struct token *token = router_token(op, t);

        for (int64_t e = 0; e < m; e++) {
            int64_t rank = rank_of(op, token, e);

            if (rank < experts->cols)
                *chosen(experts, t, rank) = (int32_t)e;
        }
        for (int64_t i = 0; i < experts->cols; i++)
            OUT(ROUTER_WEIGHT, t, i) = a->scale * token->score[*chosen(experts, t, i)] /
                                       (a->normalize ? sum_of_chosen(token, experts, t) : 1);
    }
    if (tensor_given(&op->out[ROUTER_STATS]))
        add_stats(op);
}

/* ---- the gradient ---- */

/* d score_e / d logit_o */
static double slope(const struct token *token, int64_t e, int64_t o)
{
    double p = token->score[e];

    if (token->kind == ROUTER_SIGMOID)
        return e == o ? p * (1 - p) : 0;
    return p * ((e == o) - token->score[o]);
}

/* The gradient of the token's weight i in logit o, by the scores' whole Jacobian; without logits
 * (token NULL) of the softmax over the chosen, by the weights alone. */
static double weight_slope(const struct op_shape *op, const struct token *token, int64_t t,
                           int64_t i, int64_t o)
{
    const struct tensor *experts = &op->in[ROUTER_GRAD_EXPERT];
    double w = IN(ROUTER_GRAD_WEIGHT, t, i), of_sum = 0, scale = op->attributes.scale;

    for (int64_t j = 0; !token && j < experts->cols; j++)
        if (*chosen(experts, t, j) == o)
            return w * ((i == j) - IN(ROUTER_GRAD_WEIGHT, t, j) / scale);
    if (!token)
        return 0;
    if (!op->attributes.normalize)
        return scale * slope(token, *chosen(experts, t, i), o);
    for (int64_t j = 0; j < experts->cols; j++)
        of_sum += slope(token, *chosen(experts, t, j), o);
    return (scale * slope(token, *chosen(experts, t, i), o) - w * of_sum) /
           sum_of_chosen(token, experts, t);
}

static double balanced_share(const struct op_shape *op, int64_t e, int64_t t)
{
    const struct tensor *choices =
        &op->in[tensor_given(&op->in[ROUTER_GRAD_CHOICES]) ? ROUTER_GRAD_CHOICES
                                                           : ROUTER_GRAD_EXPERT];
    int64_t T = op->out[ROUTER_GRAD_DLOGITS].rows, rows = unit_rows(op, T);
    double sum = 0;

    if (!tensor_given(&op->in[ROUTER_GRAD_COUNTS]))
        return share_of(choices, e, t / rows * rows, rows, T);
    for (int64_t i = 0; i < op->in[ROUTER_GRAD_COUNTS].cols; i++)
        sum += IN(ROUTER_GRAD_COUNTS, 0, i);
    return IN(ROUTER_GRAD_COUNTS, 0, e) / sum;
}

/* What the losses' coefficients are divided and multiplied by. */
static double loss_scale(const struct op_shape *op)
{
    double scale = tensor_given(&op->in[ROUTER_GRAD_SCALE]) ? IN(ROUTER_GRAD_SCALE, 0, 0) : 1;

    return scale / (double)op->out[ROUTER_GRAD_DLOGITS].rows;
}

static void add_losses(const struct op_shape *op, const struct token *token, int64_t t)
{
    const struct op_attributes *a = &op->attributes;
    int64_t m = op->out[ROUTER_GRAD_DLOGITS].cols;
    static double shares[EXPERTS_MAX];

    for (int64_t e = 0; a->balance > 0 && e < m; e++)
        if (t == 0 || (a->by_sequence && t % a->seq_len == 0))
            shares[e] = balanced_share(op, e, t);
    for (int64_t o = 0; o < m; o++) {
        double of_sum = 0;

        for (int64_t e = 0; e < m; e++)
            of_sum += slope(token, e, o);
        for (int64_t e = 0; a->balance > 0 && e < m; e++)
            OUT(ROUTER_GRAD_DLOGITS, t, o) +=
                loss_scale(op) * a->balance * (double)m * shares[e] *
                (slope(token, e, o) - token->score[e] / token->sum * of_sum) / token->sum;
        OUT(ROUTER_GRAD_DLOGITS, t, o) +=
            loss_scale(op) * a->z * 2 * token->log_sum * token->softmax[o];
    }
}

static void router_grad(const struct op_shape *op)
{
    int has_logits = tensor_given(&op->in[ROUTER_GRAD_LOGITS]);

    start(&op->out[ROUTER_GRAD_DLOGITS]);
    for (int64_t t = 0; t < op->out[ROUTER_GRAD_DLOGITS].rows; t++) {
        const struct token *token = has_logits ? token_of(op, ROUTER_GRAD_LOGITS, t) : NULL;

        for (int64_t i = 0; i < op->in[ROUTER_GRAD_EXPERT].cols; i++)
            for (int64_t o = 0; o < op->out[ROUTER_GRAD_DLOGITS].cols; o++)
                OUT(ROUTER_GRAD_DLOGITS, t, o) +=
                    IN(ROUTER_GRAD_DWEIGHT, t, i) * weight_slope(op, token, t, i, o);
        if (token)
            add_losses(op, token, t);
    }
}

/* ---- gradients by differences ---- */

/* Logits that no step of the differences makes change places. */
static void fill_logits(const struct tensor *t)
{
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t e = 0; e < t->cols; e++)
            tensor_set(t, row, e,
                       0.4 * (double)((3 * row + 5 * e) % (t->cols + 1)) - 0.1 * (double)row);
}

#define TOKENS 4
#define EXPERTS 6

static struct op_case *router_case(const struct op_attributes *attributes)
{
    struct op_case *c = op_case_create(OP_ROUTER, attributes);

    op_case_input(c, ROUTER_LOGITS, TOKENS, EXPERTS, DTYPE_F32, 0);
    fill_logits(&c->op.in[ROUTER_LOGITS]);
    if (attributes->score == ROUTER_SIGMOID) {
        op_case_input(c, ROUTER_BIAS, 1, EXPERTS, DTYPE_F32, 0);
        for (int e = 0; e < EXPERTS; e++)
            tensor_set(&c->op.in[ROUTER_BIAS], 0, e, 0.07 * (double)(e * e % 5));
    }
    op_case_output(c, ROUTER_WEIGHT, TOKENS, 2, DTYPE_F32);
    op_case_output(c, ROUTER_EXPERT, TOKENS, 2, DTYPE_I32);
    return c;
}

/* All kinds of scores, of weights and of choices. */
static struct op_attributes form(int number)
{
    return (struct op_attributes){ .score = number & 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                                   .normalize = number >> 1 & 1,
                                   .groups = number >> 2 & 1 ? 3 : 0,
                                   .groups_kept = 2,
                                   .scale = 1.3 };
}

#define N_FORMS 8

static void weights_gradients(void)
{
    for (int number = 0; number < N_FORMS; number++) {
        struct op_attributes a = form(number);
        struct op_case *c = router_case(&a);

        gradient_check(c, OP_ROUTER_GRAD);
        op_case_destroy(c);
    }
}

static double losses(const struct op_shape *forward)
{
    const struct op_attributes *a = &forward->attributes;
    double z = 0;

    reference_run(forward, RUN_FIRST);
    for (int t = 0; t < TOKENS; t++)
        z += pow(token_of(forward, ROUTER_LOGITS, t)->log_sum, 2) / TOKENS;
    return a->balance * *(double *)forward->out[ROUTER_STATS].data + a->z * z;
}

/* Of balance and z alone: the weights' gradients are nothing. */
static void losses_gradients(void)
{
    for (int number = 0; number < 2 * N_FORMS; number++) {
        struct op_attributes a = form(number);
        double none[2 * TOKENS] = { 0 }, dlogits[TOKENS * EXPERTS];

        a.by_sequence = number >> 3;
        a.seq_len = TOKENS / 2;
        a.balance = 0.7;
        a.z = number & 2 ? 0.2 : 0;
        struct op_case *c = router_case(&a);
        struct op_shape forward = { 0 }, gradient = { .kind = OP_ROUTER_GRAD, .attributes = a };
        op_case_output(c, ROUTER_STATS, 1, 1 + EXPERTS, DTYPE_F64);
        op_case_to_reference(c, &forward);
        reference_run(&forward, RUN_FIRST);
        gradient.in[ROUTER_GRAD_DWEIGHT] = (struct tensor){ none, TOKENS, 2, 2, DTYPE_F64 };
        gradient.in[ROUTER_GRAD_WEIGHT] = forward.out[ROUTER_WEIGHT];
        gradient.in[ROUTER_GRAD_EXPERT] = forward.out[ROUTER_EXPERT];
        gradient.in[ROUTER_GRAD_LOGITS] = forward.in[ROUTER_LOGITS];
        gradient.out[ROUTER_GRAD_DLOGITS] =
            (struct tensor){ dlogits, TOKENS, EXPERTS, EXPERTS, DTYPE_F64 };
        reference_run(&gradient, RUN_FIRST);
        double *logits = forward.in[ROUTER_LOGITS].data;
        for (int i = 0; i < TOKENS * EXPERTS; i++) {
            double kept = logits[i], above, below;

            logits[i] = kept + GRADIENT_STEP;
            above = losses(&forward);
            logits[i] = kept - GRADIENT_STEP;
            below = losses(&forward);
            logits[i] = kept;
            assert_true(fabs((above - below) / (2 * GRADIENT_STEP) - dlogits[i]) < 1e-8);
        }
        reference_release(&forward);
        op_case_destroy(c);
    }
}

static void router_gradients(void)
{
    weights_gradients();
    losses_gradients();
}

/* ---- the bias, gates ---- */

static void balance_bias(const struct op_shape *op)
{
    int64_t m = op->in[BALANCE_BIAS_COUNTS].cols;
    double mean = 0;

    if (int_at(&op->in[BALANCE_BIAS_SKIP_UPDATE], 0))
        return;
    for (int64_t e = 0; e < m; e++)
        mean += IN(BALANCE_BIAS_COUNTS, 0, e) / (double)m;
    for (int64_t e = 0; e < m; e++) {
        double under = mean - IN(BALANCE_BIAS_COUNTS, 0, e);

        if (fabs(under) > 1e-9)
            IN(BALANCE_BIAS_BIAS, 0, e) += copysign(op->attributes.rate, under);
    }
}

/* Counts below, at and above their mean; and a step that is skipped. */
static void balance_bias_kernels(void)
{
    for (int skip = 0; skip < 2; skip++)
        for (int64_t m = 1; m < 1500; m = 3 * m + 2) {
            struct op_attributes a = { .rate = 0.01 };
            struct op_case *c = op_case_create(OP_BALANCE_BIAS, &a);

            op_case_input(c, BALANCE_BIAS_COUNTS, 1, m, DTYPE_F64, 0);
            op_case_input(c, BALANCE_BIAS_SKIP_UPDATE, 1, 1, DTYPE_I32, 0);
            op_case_input(c, BALANCE_BIAS_BIAS, 1, m, DTYPE_F32, 0.1);
            for (int64_t e = 0; e < m; e++)
                tensor_set(&c->op.in[BALANCE_BIAS_COUNTS], 0, e, (double)(7 + e % 3 - (e == 0)));
            tensor_set(&c->op.in[BALANCE_BIAS_SKIP_UPDATE], 0, 0, skip);
            op_case_check(c, 1e-6);
            op_case_destroy(c);
        }
}

static void gate_rows(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->in[GATE_ROWS_X].rows; t++)
        for (int64_t i = 0; i < op->in[GATE_ROWS_X].cols; i++)
            OUT(GATE_ROWS_Y, t, i) = sigmoid(IN(GATE_ROWS_GATE, t, 0)) * IN(GATE_ROWS_X, t, i);
}

static void gate_rows_grad(const struct op_shape *op)
{
    for (int64_t t = 0; t < op->in[GATE_ROWS_GRAD_X].rows; t++) {
        double s = sigmoid(IN(GATE_ROWS_GRAD_GATE, t, 0)), sum = 0;

        for (int64_t i = 0; i < op->in[GATE_ROWS_GRAD_X].cols; i++) {
            OUT(GATE_ROWS_GRAD_DX, t, i) = s * IN(GATE_ROWS_GRAD_DY, t, i);
            sum += IN(GATE_ROWS_GRAD_DY, t, i) * IN(GATE_ROWS_GRAD_X, t, i);
        }
        OUT(GATE_ROWS_GRAD_DGATE, t, 0) = s * (1 - s) * sum;
    }
}

static void gate_rows_gradients(void)
{
    struct op_case *c = op_case_create(OP_GATE_ROWS, &(struct op_attributes){ 0 });

    op_case_input(c, GATE_ROWS_X, 3, 5, DTYPE_F32, 1);
    op_case_input(c, GATE_ROWS_GATE, 3, 1, DTYPE_F32, 1);
    op_case_output(c, GATE_ROWS_Y, 3, 5, DTYPE_F32);
    gradient_check(c, OP_GATE_ROWS_GRAD);
    op_case_destroy(c);
}

static void gate_rows_kernels(void)
{
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
    static const int64_t sizes[][2] = { { 1, 1 }, { 5, 33 }, { 70, 96 }, { 3, 1000 } };

    for (int d = 0; d < 3; d++)
        for (int s = 0; s < 4; s++) {
            int64_t rows = sizes[s][0], cols = sizes[s][1];
            struct op_case *c = op_case_create(OP_GATE_ROWS, &(struct op_attributes){ 0 });
            struct op_case *g = op_case_create(OP_GATE_ROWS_GRAD, &(struct op_attributes){ 0 });

            op_case_input(c, GATE_ROWS_X, rows, cols, dtypes[d], 1);
            op_case_input(c, GATE_ROWS_GATE, rows, 1, DTYPE_F32, 2);
            op_case_output(c, GATE_ROWS_Y, rows, cols, dtypes[d]);
            op_case_input(g, GATE_ROWS_GRAD_DY, rows, cols, dtypes[d], 1);
            op_case_input(g, GATE_ROWS_GRAD_X, rows, cols, dtypes[d], 1);
            op_case_input(g, GATE_ROWS_GRAD_GATE, rows, 1, DTYPE_F32, 2);
            op_case_output(g, GATE_ROWS_GRAD_DX, rows, cols, dtypes[d]);
            op_case_output(g, GATE_ROWS_GRAD_DGATE, rows, 1, DTYPE_F32);
            op_case_check(c, 2e-6);
            op_case_check(g, 5e-6);
            op_case_destroy(c);
            op_case_destroy(g);
        }
}

/* ---- capacities ---- */

/* How many of the expert's choices come before the c-th: by larger weights, or earlier tokens. */
static int64_t n_before(const struct op_shape *op, int64_t c)
{
    const struct tensor *experts = &op->in[LIMIT_CHOICES_EXPERT],
                        *weights = &op->in[LIMIT_CHOICES_WEIGHT];
    int64_t n = 0, s = experts->cols;

    for (int64_t b = 0; b < tensor_elements(experts); b++) {
        double difference =
            !weights->rows ? 0
                           : tensor_get(weights, b / s, b % s) - tensor_get(weights, c / s, c % s);

        if (*chosen(experts, b / s, b % s) == *chosen(experts, c / s, c % s))
            n += difference > 0 || (!(difference < 0) && b < c);
    }
    return n;
}

static void limit_choices(const struct op_shape *op)
{
    const struct tensor *experts = &op->in[LIMIT_CHOICES_EXPERT];
    int64_t s = experts->cols;

    for (int64_t c = 0; c < tensor_elements(experts); c++) {
        int keeps = n_before(op, c) < op->attributes.capacity;

        *chosen(&op->out[LIMIT_CHOICES_KEPT], c / s, c % s) =
            keeps ? *chosen(experts, c / s, c % s) : -1;
        if (op->out[LIMIT_CHOICES_DROPPED].rows && !keeps)
            OUT(LIMIT_CHOICES_DROPPED, 0, 0) += 1;
    }
}

const struct op_facts router_facts[N_OP_KINDS] = {
    [OP_ROUTER] = {
        .example = "router 12x5 fp32, 1x5 fp32 : 12x2 fp32, 12x2 i32, 1x6 fp64, 1x5 fp64",
        .spreads = "ss > ssss; rs > rrpp",
        .reference = router,
        .gradients = router_gradients,
    },
    [OP_ROUTER_GRAD] = {
        .example = "router_grad 12x2 fp32, 12x2 fp32, 12x2 i32, 12x5 fp32, 1x1 fp32, "
                   "36x2 i32, 1x5 fp64 : 12x5 fp32",
        .spreads = "sssssss > s; rrrrsrs > r; rrrrsss > r",
        .reference = router_grad,
    },
    [OP_LIMIT_CHOICES] = {
        .example = "limit_choices 12x2 i32, 12x2 fp32 : 12x2 i32, 1x1 fp64",
        .spreads = "ss > ss; rr > rp",
        .reference = limit_choices,
    },
    [OP_BALANCE_BIAS] = {
        .example = "balance_bias 1x5 fp64, 1x1 i32, 1x5 fp32 :",
        .spreads = "sss >",
        .reference = balance_bias,
        .kernels = balance_bias_kernels,
    },
    [OP_GATE_ROWS] = {
        .example = "gate_rows 12x10 bf16, 12x1 fp32 : 12x10 bf16",
        .spreads = "ss > s; rr > r; cs > c",
        .reference = gate_rows,
        .gradients = gate_rows_gradients,
        .kernels = gate_rows_kernels,
    },
    [OP_GATE_ROWS_GRAD] = {
        .example = "gate_rows_grad 12x10 bf16, 12x10 bf16, 12x1 fp32 : 12x10 bf16, 12x1 fp32",
        .spreads = "sss > ss; rrr > rr; ccs > cp",
        .reference = gate_rows_grad,
        .kernels = gate_rows_kernels,
    },
};
