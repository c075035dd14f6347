/*
 * linear_fp8.c - facts of products whose operands are rounded to e4m3
 *
 * The reference divides by scales in fp32, as ops/fp8_recipe.h says, since what a code is hangs on
 * how a quotient is rounded; it finds the nearest number of e4m3 by trying all, and adds in double.
 */
#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "support/e4m3.h"
#include "support/op_case.h"
#include "support/ops/op_family.h"

/* An operand of a product as the reference has it: scale times code of each element. */
struct rounded {
    const struct tensor *x;
    double *codes, *scales;
};

struct block {
    int64_t row, row_end, col, col_end;
};

static void round_block(const struct rounded *r, const struct block *b)
{
    double most = 0;
    int is_finite = 1;

    for (int64_t row = b->row; row < b->row_end; row++)
        for (int64_t col = b->col; col < b->col_end; col++) {
            most = fmax(most, fabs(*at(r->x, row, col)));
            is_finite = is_finite && isfinite(*at(r->x, row, col));
        }
    float scale = is_finite ? (float)most / 448.0f : NAN;
    for (int64_t row = b->row; row < b->row_end; row++)
        for (int64_t col = b->col; col < b->col_end; col++) {
            int64_t i = row * r->x->cols + col;

            r->scales[i] = (double)scale;
            r->codes[i] = scale > 0 ? e4m3_rounded((float)*at(r->x, row, col) / scale) : 0;
        }
}

/* rows x cols: of a block. */
static struct rounded round_by(const struct tensor *x, int64_t rows, int64_t cols)
{
    size_t n = (size_t)tensor_elements(x);
    struct rounded r = { x, malloc(n * sizeof(double)), malloc(n * sizeof(double)) };

    CHECK(r.codes && r.scales);
    for (int64_t row = 0; row < x->rows; row += rows)
        for (int64_t col = 0; col < x->cols; col += cols)
            round_block(&r, &(struct block){ row, min_i64(row + rows, x->rows), col,
                                             min_i64(col + cols, x->cols) });
    return r;
}

static void rounded_release(struct rounded *r)
{
    free(r->codes);
    free(r->scales);
}

/* scale * code of a's element times that of b's. */
static double term(const struct rounded *a, int64_t i, const struct rounded *b, int64_t j)
{
    return a->scales[i] * b->scales[j] * (a->codes[i] * b->codes[j]);
}

static struct rounded round_rows(const struct op_shape *op, const struct tensor *x)
{
    return op->attributes.fp8 == FP8_TENSOR ? round_by(x, x->rows, x->cols) : round_by(x, 1, 128);
}

static struct rounded round_weight(const struct op_shape *op, const struct tensor *w)
{
    return op->attributes.fp8 == FP8_TENSOR ? round_by(w, w->rows, w->cols) : round_by(w, 128, 128);
}

static struct rounded round_columns(const struct op_shape *op, const struct tensor *x)
{
    return op->attributes.fp8 == FP8_TENSOR ? round_by(x, x->rows, x->cols) : round_by(x, 128, 1);
}

static void linear_fp8(const struct op_shape *op)
{
    const struct tensor *x = &op->in[LINEAR_X], *w = &op->in[LINEAR_W];
    struct rounded a = round_rows(op, x), b = round_weight(op, w);

    for (int64_t t = 0; t < x->rows; t++)
        for (int64_t n = 0; n < w->rows; n++) {
            double sum = tensor_given(&op->in[LINEAR_B]) ? IN(LINEAR_B, 0, n) : 0;

            for (int64_t k = 0; k < x->cols; k++)
                sum += term(&a, t * x->cols + k, &b, n * w->cols + k);
            OUT(LINEAR_Y, t, n) = sum;
        }
    rounded_release(&a);
    rounded_release(&b);
}

static void linear_dx_fp8(const struct op_shape *op)
{
    const struct tensor *dy = &op->in[LINEAR_DX_DY], *w = &op->in[LINEAR_DX_W];
    struct rounded a = round_rows(op, dy), b = round_weight(op, w);

    for (int64_t t = 0; t < dy->rows; t++)
        for (int64_t k = 0; k < w->cols; k++) {
            double sum = 0;

            for (int64_t n = 0; n < dy->cols; n++)
                sum += term(&a, t * dy->cols + n, &b, n * w->cols + k);
            OUT(LINEAR_DX_DX, t, k) = sum;
        }
    rounded_release(&a);
    rounded_release(&b);
}

static void linear_dw_fp8(const struct op_shape *op)
{
    const struct tensor *dy = &op->in[LINEAR_DW_DY], *x = &op->in[LINEAR_DW_X];
    struct rounded a = round_columns(op, dy), b = round_columns(op, x);
    int has_db = tensor_given(&op->out[LINEAR_DW_DB]);

    for (int64_t t = 0; t < dy->rows; t++)
        for (int64_t n = 0; n < dy->cols; n++) {
            for (int64_t k = 0; k < x->cols; k++)
                OUT(LINEAR_DW_DW, n, k) += term(&a, t * dy->cols + n, &b, t * x->cols + k);
            if (has_db)
                OUT(LINEAR_DW_DB, 0, n) += IN(LINEAR_DW_DY, t, n);
        }
    rounded_release(&a);
    rounded_release(&b);
}

const struct op_facts linear_fp8_facts[N_OP_KINDS] = {
    [OP_LINEAR_FP8] = {
        .example = "linear_fp8 12x32 bf16, 16x32 bf16, 1x16 fp32 : 12x16 bf16",
        .spreads = "sss > s; rss > r; src > c",
        .reference = linear_fp8,
    },
    [OP_LINEAR_DX_FP8] = {
        .example = "linear_dx_fp8 12x16 bf16, 16x32 bf16 : 12x32 bf16",
        .spreads = "ss > s; rs > r; cr > p; sc > c; ps > p",
        .reference = linear_dx_fp8,
    },
    [OP_LINEAR_DW_FP8] = {
        .example = "linear_dw_fp8 12x16 bf16, 12x32 bf16 : 16x32 fp32, 1x16 fp32",
        .spreads = "ss > ss; rr > pp; cs > rc; sc > cs; sp > ps; ps > pp",
        .reference = linear_dw_fp8,
    },
};
