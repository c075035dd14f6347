/*
 * head.c - facts of the head and the loss
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/gradient_check.h"
#include "support/ops/op_family.h"

/* Loss; dx and dw as well where the op has them. */
static void head(const struct op_shape *op)
{
    int grads = op->kind == OP_HEAD_CROSS_ENTROPY;
    const struct tensor *loss = &op->out[grads ? HEAD_CROSS_ENTROPY_LOSS : HEAD_LOSS_LOSS];
    int64_t n_vocab = op->in[HEAD_CROSS_ENTROPY_W].rows, d = op->in[HEAD_CROSS_ENTROPY_X].cols;
    double *logits = malloc((size_t)n_vocab * sizeof *logits);

    if (grads)
        start(&op->out[HEAD_CROSS_ENTROPY_DX]);
    for (int64_t t = 0; t < op->in[HEAD_CROSS_ENTROPY_X].rows; t++) {
        int32_t target = int_at(&op->in[HEAD_CROSS_ENTROPY_TARGET], t);
        double top = -INFINITY, sum = 0;

        if (target < 0)
            continue;
        for (int64_t v = 0; v < n_vocab; v++) {
            logits[v] = 0;
            for (int64_t i = 0; i < d; i++)
                logits[v] += IN(HEAD_CROSS_ENTROPY_X, t, i) * IN(HEAD_CROSS_ENTROPY_W, v, i);
            top = fmax(top, logits[v]);
        }
        for (int64_t v = 0; v < n_vocab; v++)
            sum += exp(logits[v] - top);
        double lse = top + log(sum);

        *at(loss, 0, 0) += lse - logits[target];
        if (grads && tensor_given(&op->out[HEAD_CROSS_ENTROPY_SQUARES]))
            OUT(HEAD_CROSS_ENTROPY_SQUARES, 0, 0) += lse * lse;
        for (int64_t v = 0; grads && v < n_vocab; v++) {
            double p = exp(logits[v] - top) / sum;
            double g = p - (v == target) + 2 * op->attributes.z * lse * p;

            g *= IN(HEAD_CROSS_ENTROPY_SCALE, 0, 0);
            for (int64_t i = 0; i < d; i++) {
                OUT(HEAD_CROSS_ENTROPY_DX, t, i) += g * IN(HEAD_CROSS_ENTROPY_W, v, i);
                OUT(HEAD_CROSS_ENTROPY_DW, v, i) += g * IN(HEAD_CROSS_ENTROPY_X, t, i);
            }
        }
    }
    free(logits);
}

/* How many of a part's columns are tokens. */
static int64_t n_tokens(const struct op_shape *op, int32_t begin)
{
    int64_t n = op->attributes.vocab_size - begin;

    return n < 0 ? 0 : n < op->in[LOGIT_STATS_LOGITS].cols ? n : op->in[LOGIT_STATS_LOGITS].cols;
}

static void logit_stats(const struct op_shape *op)
{
    int32_t begin = begin_of(op, LOGIT_STATS_OFFSET);
    int64_t n = n_tokens(op, begin);

    for (int64_t t = 0; t < op->in[LOGIT_STATS_LOGITS].rows; t++) {
        int32_t target = int_at(&op->in[LOGIT_STATS_TARGET], t);
        double top = -INFINITY, sum = 0;

        for (int64_t v = 0; v < n; v++)
            top = fmax(top, IN(LOGIT_STATS_LOGITS, t, v));
        for (int64_t v = 0; v < n; v++)
            sum += exp(IN(LOGIT_STATS_LOGITS, t, v) - top);
        OUT(LOGIT_STATS_STATS, t, 0) = top;
        OUT(LOGIT_STATS_STATS, t, 1) = sum;
        OUT(LOGIT_STATS_STATS, t, 2) =
            target >= begin && target < begin + n ? IN(LOGIT_STATS_LOGITS, t, target - begin) : 0;
    }
}

/* By log sum exp of each part, not by joined sums. */
static void cross_entropy(const struct op_shape *op)
{
    int32_t begin = begin_of(op, CROSS_ENTROPY_OFFSET);
    int64_t n = n_tokens(op, begin), n_rows = op->in[CROSS_ENTROPY_LOGITS].rows;

    if (tensor_given(&op->out[CROSS_ENTROPY_DLOGITS]))
        start(&op->out[CROSS_ENTROPY_DLOGITS]);
    for (int64_t t = 0; t < n_rows; t++) {
        int32_t target = int_at(&op->in[CROSS_ENTROPY_TARGET], t);
        double lse = -INFINITY, logit = 0;

        if (target < 0)
            continue;
        for (int64_t row = t; row < op->in[CROSS_ENTROPY_STATS].rows; row += n_rows) {
            double part = IN(CROSS_ENTROPY_STATS, row, 0) + log(IN(CROSS_ENTROPY_STATS, row, 1)),
                   top = fmax(lse, part);

            if (IN(CROSS_ENTROPY_STATS, row, 1) > 0)
                lse = top + log(exp(lse - top) + exp(part - top));
            logit += IN(CROSS_ENTROPY_STATS, row, 2);
        }
        OUT(CROSS_ENTROPY_LOSS, 0, 0) += lse - logit;
        if (tensor_given(&op->out[CROSS_ENTROPY_SQUARES]))
            OUT(CROSS_ENTROPY_SQUARES, 0, 0) += lse * lse;
        for (int64_t v = 0; tensor_given(&op->out[CROSS_ENTROPY_DLOGITS]) && v < n; v++)
            OUT(CROSS_ENTROPY_DLOGITS, t, v) =
                IN(CROSS_ENTROPY_SCALE, 0, 0) *
                (exp(IN(CROSS_ENTROPY_LOGITS, t, v) - lse) * (1 + 2 * op->attributes.z * lse) -
                 (begin + v == target));
    }
}

/* The head gives its own gradients: those of scale times the loss that head_loss gives. */
static void head_gradients(void)
{
    struct op_case *c = op_case_create(OP_HEAD_LOSS, &(struct op_attributes){ .chunk = 2 });
    struct op_shape forward = { 0 }, head = { .kind = OP_HEAD_CROSS_ENTROPY };
    double scale = 0.7, dx[5 * 3], dw[6 * 3], sum = 0;
    struct tensor scalar = { &scale, 1, 1, 1, DTYPE_F64 };

    op_case_input(c, HEAD_LOSS_X, 5, 3, DTYPE_F32, 1);
    op_case_input(c, HEAD_LOSS_W, 6, 3, DTYPE_F32, 1);
    op_case_input(c, HEAD_LOSS_TARGET, 5, 1, DTYPE_I32, 0);
    op_case_output(c, HEAD_LOSS_LOSS, 1, 1, DTYPE_F64);
    for (int t = 0; t < 5; t++)
        tensor_set(&c->op.in[HEAD_LOSS_TARGET], t, 0, t == 3 ? -1 : t);
    op_case_to_reference(c, &forward);
    for (int i = HEAD_LOSS_X; i <= HEAD_LOSS_TARGET; i++)
        head.in[i] = forward.in[i];
    head.in[HEAD_CROSS_ENTROPY_SCALE] = scalar;
    head.out[HEAD_CROSS_ENTROPY_DX] = (struct tensor){ dx, 5, 3, 3, DTYPE_F64 };
    head.out[HEAD_CROSS_ENTROPY_DW] = (struct tensor){ dw, 6, 3, 3, DTYPE_F64 };
    head.out[HEAD_CROSS_ENTROPY_LOSS] = (struct tensor){ &sum, 1, 1, 1, DTYPE_F64 };
    reference_run(&head, RUN_FIRST);
    reference_run(&forward, RUN_FIRST);
    assert_true(fabs(sum - *(double *)forward.out[HEAD_LOSS_LOSS].data) < 1e-12);
    gradient_check_input(&forward, &scalar, "x", &head.out[HEAD_CROSS_ENTROPY_DX]);
    gradient_check_input(&forward, &scalar, "w", &head.out[HEAD_CROSS_ENTROPY_DW]);
    reference_release(&forward);
    op_case_destroy(c);
}

#define Z 0.2

/* loss + Z * squares of a head of 3 tokens, 2 dims and 4 words; dx as well. */
static double head_with_z(double *x, double *dx)
{
    static const double w[] = { 0.3, -1.1, 0.8, 0.4, -0.6, 1.3, 0.2, 0.9 };
    int32_t target[] = { 2, -1, 0 };
    double scale = 1, dw[8], loss = 0, squares = 0;
    struct op_shape op = { .kind = OP_HEAD_CROSS_ENTROPY, .attributes = { .chunk = 2, .z = Z } };

    op.in[HEAD_CROSS_ENTROPY_X] = (struct tensor){ x, 3, 2, 2, DTYPE_F64 };
    op.in[HEAD_CROSS_ENTROPY_W] = (struct tensor){ (void *)w, 4, 2, 2, DTYPE_F64 };
    op.in[HEAD_CROSS_ENTROPY_TARGET] = (struct tensor){ target, 3, 1, 1, DTYPE_I32 };
    op.in[HEAD_CROSS_ENTROPY_SCALE] = (struct tensor){ &scale, 1, 1, 1, DTYPE_F64 };
    op.out[HEAD_CROSS_ENTROPY_DX] = (struct tensor){ dx, 3, 2, 2, DTYPE_F64 };
    op.out[HEAD_CROSS_ENTROPY_DW] = (struct tensor){ dw, 4, 2, 2, DTYPE_F64 };
    op.out[HEAD_CROSS_ENTROPY_LOSS] = (struct tensor){ &loss, 1, 1, 1, DTYPE_F64 };
    op.out[HEAD_CROSS_ENTROPY_SQUARES] = (struct tensor){ &squares, 1, 1, 1, DTYPE_F64 };
    reference_run(&op, RUN_FIRST);
    return loss + Z * squares;
}

static void head_gradients_with_z(void)
{
    double x[6] = { 0.7, -0.2, 0.5, 1.1, -0.9, 0.4 }, dx[6], unused[6];

    head_with_z(x, dx);
    for (int i = 0; i < 6; i++) {
        double at = x[i], above, below;

        x[i] = at + GRADIENT_STEP;
        above = head_with_z(x, unused);
        x[i] = at - GRADIENT_STEP;
        below = head_with_z(x, unused);
        x[i] = at;
        if (fabs((above - below) / (2 * GRADIENT_STEP) - dx[i]) > GRADIENT_TOLERANCE)
            fail_msg("dx %d is %.9g, by differences %.9g", i, dx[i],
                     (above - below) / (2 * GRADIENT_STEP));
    }
}

static void all_head_gradients(void)
{
    head_gradients();
    head_gradients_with_z();
}

/* The last part has one token. */
enum { ROWS = 4, VOCAB = 7, N_PARTS = 3, COLS = 3, N_LOGITS = N_PARTS * ROWS * COLS };

struct vocab_parts {
    double logits[N_LOGITS], dlogits[N_LOGITS]; /* [ROWS x COLS], part by part */
    double stats[N_PARTS][ROWS][OPS_N_STATS];
    int32_t target[ROWS];
};

/* The loss that the last part sees, with its z-loss; all parts' gradients. */
static double loss_of_parts(struct vocab_parts *p, double z)
{
    struct op_attributes a = { .vocab_size = VOCAB, .z = z };
    struct tensor target = { p->target, ROWS, 1, 1, DTYPE_I32 };
    double scale = 1, loss = 0, squares = 0;

    for (int32_t part = 0; part < 2 * N_PARTS; part++) {
        int i = part % N_PARTS, is_loss = part >= N_PARTS;
        int32_t begin = i * COLS;
        struct op_shape op = { .kind = is_loss ? OP_CROSS_ENTROPY : OP_LOGIT_STATS,
                               .attributes = a };

        op.in[CROSS_ENTROPY_LOGITS] =
            (struct tensor){ p->logits + i * ROWS * COLS, ROWS, COLS, COLS, DTYPE_F64 };
        op.in[is_loss ? CROSS_ENTROPY_OFFSET : LOGIT_STATS_OFFSET] =
            (struct tensor){ &begin, 1, 1, 1, DTYPE_I32 };
        op.in[is_loss ? CROSS_ENTROPY_TARGET : LOGIT_STATS_TARGET] = target;
        if (is_loss) {
            op.in[CROSS_ENTROPY_STATS] =
                (struct tensor){ p->stats, N_PARTS * ROWS, OPS_N_STATS, OPS_N_STATS, DTYPE_F64 };
            op.in[CROSS_ENTROPY_SCALE] = (struct tensor){ &scale, 1, 1, 1, DTYPE_F64 };
            op.out[CROSS_ENTROPY_DLOGITS] =
                (struct tensor){ p->dlogits + i * ROWS * COLS, ROWS, COLS, COLS, DTYPE_F64 };
            op.out[CROSS_ENTROPY_LOSS] = (struct tensor){ &loss, 1, 1, 1, DTYPE_F64 };
            op.out[CROSS_ENTROPY_SQUARES] = (struct tensor){ &squares, 1, 1, 1, DTYPE_F64 };
        } else {
            op.out[LOGIT_STATS_STATS] =
                (struct tensor){ p->stats[i], ROWS, OPS_N_STATS, OPS_N_STATS, DTYPE_F64 };
        }
        reference_run(&op, RUN_FIRST);
    }
    return loss + z * squares;
}

static void check_parts(double z)
{
    static struct vocab_parts p, moved;

    for (int i = 0; i < N_LOGITS; i++)
        p.logits[i] = 2 * sin(1.9 * i);
    for (int t = 0; t < ROWS; t++)
        p.target[t] = t == 1 ? -1 : t * 5 % VOCAB;
    loss_of_parts(&p, z);
    for (int i = 0; i < N_LOGITS; i++) {
        double above, below;

        moved = p;
        moved.logits[i] += GRADIENT_STEP;
        above = loss_of_parts(&moved, z);
        moved = p;
        moved.logits[i] -= GRADIENT_STEP;
        below = loss_of_parts(&moved, z);
        if (fabs((above - below) / (2 * GRADIENT_STEP) - p.dlogits[i]) > GRADIENT_TOLERANCE)
            fail_msg("z %g: dlogits %d is %.9g, by differences %.9g", z, i, p.dlogits[i],
                     (above - below) / (2 * GRADIENT_STEP));
    }
}

static void cross_entropy_gradients(void)
{
    check_parts(0);
    check_parts(0.3);
}

const struct op_facts head_facts[N_OP_KINDS] = {
    [OP_HEAD_CROSS_ENTROPY] = {
        .example = "head_cross_entropy 12x8 bf16, 20x8 bf16, 12x1 i32, 1x1 fp32 : 12x8 "
                   "bf16, 20x8 fp32, 1x1 fp64, 1x1 fp64",
        .spreads = "ssss > ssss; rsrs > rppp",
        .reference = head,
        .gradients = all_head_gradients,
    },
    [OP_HEAD_LOSS] = {
        .example = "head_loss 12x8 bf16, *20x8 bf16, 12x1 i32 : 1x1 fp64",
        .spreads = "sss > s; rsr > p",
        .reference = head,
    },
    [OP_LOGIT_STATS] = {
        .example = "logit_stats 12x*20 fp32, 12x1 i32, 1x1 i32 : 12x3 fp32",
        .spreads = "sss > s; rrs > r; csc > r",
        .reference = logit_stats,
    },
    [OP_CROSS_ENTROPY] = {
        .example = "cross_entropy 12x20 fp32, 24x3 fp32, 12x1 i32, 1x1 fp32, 1x1 i32 : "
                   "12x20 bf16, 1x1 fp64, 1x1 fp64",
        .spreads = "sssss > sss; rrrss > rpp; csssc > css",
        .reference = cross_entropy,
        .gradients = cross_entropy_gradients,
    },
};
