/*
 * muon.c - facts of Muon's ops
 *
 * newton_schulz' reference has sums in double and rounds to bf16 where the op does: steps amplify
 * what rounding leaves, so one without roundings is no measure of a kernel.
 */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/num.h"
#include "support/ops/op_family.h"

static void muon_momentum(const struct op_shape *op)
{
    double beta = op->attributes.beta1;
    int skip = int_at(&op->in[MUON_MOMENTUM_SKIP_UPDATE], 0);

    for (int64_t i = 0; i < tensor_elements(&op->in[MUON_MOMENTUM_M]); i++) {
        double g = IN(MUON_MOMENTUM_GRADIENT, 0, i) * IN(MUON_MOMENTUM_CLIP_FACTOR, 0, 0);
        double *m = at(&op->in[MUON_MOMENTUM_M], 0, i);

        if (!skip)
            *m = beta * *m + (1 - beta) * g;
        OUT(MUON_MOMENTUM_U, 0, i) = skip                      ? 0
                                     : op->attributes.nesterov ? beta * *m + (1 - beta) * g
                                                               : *m;
    }
}

static void muon_update(const struct op_shape *op)
{
    double lr = IN(MUON_UPDATE_SCALARS, 0, SCALAR_LR);

    if (int_at(&op->in[MUON_UPDATE_SKIP_UPDATE], 0))
        return;
    for (int64_t i = 0; i < tensor_elements(&op->in[MUON_UPDATE_X]); i++) {
        double decay = tensor_given(&op->in[MUON_UPDATE_DECAY])
                           ? IN(MUON_UPDATE_DECAY, 0, i / OPS_NORM_BLOCK)
                           : op->attributes.weight_decay;
        double *p = at(&op->in[MUON_UPDATE_MASTER], 0, i);

        *p = *p * (1 - lr * decay) - lr * IN(MUON_UPDATE_X, 0, i);
        if (tensor_given(&op->out[MUON_UPDATE_WEIGHT]))
            OUT(MUON_UPDATE_WEIGHT, 0, i) = *p;
    }
}

/* ---- Newton-Schulz steps ---- */

static double rounded(double x)
{
    return (double)bf16_to_float(bf16_from_float((float)x));
}

/* c[m x n] = a[m x k] b, where b is [k x n], or, turned, [n x k]. */
static void multiply(double *c, const double *a, const double *b, const int64_t mnk[3], int turned)
{
    int64_t m = mnk[0], n = mnk[1], k = mnk[2];

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;

            for (int64_t l = 0; l < k; l++)
                sum += a[i * k + l] * (turned ? b[j * k + l] : b[l * n + j]);
            c[i * n + j] = sum;
        }
}

struct steps {
    const struct op_attributes *attributes;
    int64_t small, large;
    double *x, *a, *b, *product;
};

static void step(const struct steps *s, int number)
{
    const struct op_attributes *at = s->attributes;
    struct newton_schulz_step by = newton_schulz_step(at->coefficients, number);
    int64_t m = s->small, n = s->large;

    multiply(s->a, s->x, s->x, (const int64_t[]){ m, m, n }, 1);
    for (int64_t i = 0; i < m * m; i++)
        s->a[i] = rounded(s->a[i]);
    multiply(s->b, s->a, s->a, (const int64_t[]){ m, m, m }, 0);
    for (int64_t i = 0; i < m * m; i++)
        s->b[i] = rounded(by.b * s->a[i] + by.c * s->b[i]);
    multiply(s->product, s->b, s->x, (const int64_t[]){ m, n, m }, 0);
    for (int64_t i = 0; i < m * n; i++)
        s->x[i] =
            rounded((by.a * s->x[i] + s->product[i]) * (number + 1 == at->steps ? at->scale : 1));
}

static void all_steps(const struct steps *s)
{
    double sum = 0, eps = s->attributes->eps;

    for (int64_t i = 0; i < s->small * s->large; i++)
        sum += s->x[i] * s->x[i];
    for (int64_t i = 0; i < s->small * s->large; i++)
        s->x[i] = rounded(s->x[i] / fmax(sqrt(sum), eps));
    for (int i = 0; i < s->attributes->steps; i++)
        step(s, i);
}

/* Of the number-th matrix of x, where its element (row, col) lies. */
static double *element(const struct op_shape *op, int64_t number, int64_t row, int64_t col)
{
    const struct op_attributes *a = &op->attributes;
    int64_t cols = op->in[NEWTON_SCHULZ_X].cols, slot = number / a->matrices;
    int64_t part = a->by_columns ? col / cols : row / a->matrix_rows;
    int64_t first = (slot * a->matrix_parts + part) * a->matrices + number % a->matrices;

    return at(&op->in[NEWTON_SCHULZ_X], first * a->matrix_rows + row % a->matrix_rows, col % cols);
}

static void newton_schulz(const struct op_shape *op)
{
    struct newton_schulz_matrix m = ops_newton_schulz_matrix(op);
    int64_t n = m.rows * m.cols;
    struct steps s = { &op->attributes, min_i64(m.rows, m.cols), max_i64(m.rows, m.cols),
                       .x = calloc((size_t)n * 4, sizeof *s.x) };
    int turned = m.rows > m.cols;

    CHECK(s.x);
    s.a = s.x + n;
    s.b = s.a + n;
    s.product = s.b + n;
    for (int64_t number = 0; number < m.n; number++) {
        for (int64_t row = 0; row < m.rows; row++)
            for (int64_t col = 0; col < m.cols; col++)
                s.x[turned ? col * m.rows + row : row * m.cols + col] =
                    *element(op, number, row, col);
        all_steps(&s);
        for (int64_t row = 0; row < m.rows; row++)
            for (int64_t col = 0; col < m.cols; col++)
                *element(op, number, row, col) =
                    s.x[turned ? col * m.rows + row : row * m.cols + col];
    }
    free(s.x);
}

const struct op_facts muon_facts[N_OP_KINDS] = {
    [OP_MUON_MOMENTUM] = {
        .example = "muon_momentum 20x8 fp32, 1x1 fp32, 1x1 i32, 20x8 fp32 : 20x8 bf16",
        .spreads = "ssss > s; rssr > r; cssc > c",
        .reference = muon_momentum,
    },
    [OP_NEWTON_SCHULZ] = {
        .example = "newton_schulz 12x*8 bf16 :",
        .spreads = "s >; r >",
        .reference = newton_schulz,
    },
    [OP_MUON_UPDATE] = {
        .example = "muon_update 20x8 bf16, 1x4 fp32, 1x1 i32, 20x8 fp32, 1x1 fp64 : 20x8 bf16",
        .spreads = "sssss > s; rssrr > r; csscc > c",
        .reference = muon_update,
    },
};
