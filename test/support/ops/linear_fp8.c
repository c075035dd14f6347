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

/* Infinity where an element is not finite. */
static double most_of_block(const struct tensor *x, const struct block *b)
{
    double most = 0;

    for (int64_t row = b->row; row < b->row_end; row++)
        for (int64_t col = b->col; col < b->col_end; col++)
            most = isfinite(*at(x, row, col)) ? fmax(most, fabs(*at(x, row, col))) : INFINITY;
    return most;
}

static void round_block(const struct rounded *r, const struct block *b, double most)
{
    float scale = isfinite(most) ? (float)most / 448.0f : NAN;

    for (int64_t row = b->row; row < b->row_end; row++)
        for (int64_t col = b->col; col < b->col_end; col++) {
            int64_t i = row * r->x->cols + col;

            r->scales[i] = (double)scale;
            r->codes[i] = scale > 0 ? e4m3_rounded((float)*at(r->x, row, col) / scale) : 0;
        }
}

static struct rounded new_rounded(const struct tensor *x)
{
    size_t n = (size_t)tensor_elements(x);
    struct rounded r = { x, malloc(n * sizeof(double)), malloc(n * sizeof(double)) };

    CHECK(r.codes && r.scales);
    return r;
}

/* rows x cols: of a block. */
static struct rounded round_by(const struct tensor *x, int64_t rows, int64_t cols)
{
    struct rounded r = new_rounded(x);

    for (int64_t row = 0; row < x->rows; row += rows)
        for (int64_t col = 0; col < x->cols; col += cols) {
            struct block b = { row, min_i64(row + rows, x->rows), col,
                               min_i64(col + cols, x->cols) };

            round_block(&r, &b, most_of_block(x, &b));
        }
    return r;
}

/* By one scale: of the operand, or of all the parts of which the largest elements are given. */
static struct rounded round_whole(const struct op_shape *op, int operand)
{
    const struct tensor *x = &op->in[operand], *parts = &op->in[ops_fp8_most(op->kind, operand)];
    struct rounded r = new_rounded(x);
    struct block all = { 0, x->rows, 0, x->cols };
    double most = most_of_block(x, &all);

    if (tensor_given(parts)) {
        struct block column = { 0, parts->rows, 0, 1 };

        most = most_of_block(parts, &column);
    }
    round_block(&r, &all, most);
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

static struct rounded round_rows(const struct op_shape *op, int operand)
{
    return op->attributes.fp8 == FP8_TENSOR ? round_whole(op, operand)
                                            : round_by(&op->in[operand], 1, 128);
}

static struct rounded round_weight(const struct op_shape *op)
{
    return op->attributes.fp8 == FP8_TENSOR ? round_whole(op, LINEAR_W)
                                            : round_by(&op->in[LINEAR_W], 128, 128);
}

static struct rounded round_columns(const struct op_shape *op, int operand)
{
    return op->attributes.fp8 == FP8_TENSOR ? round_whole(op, operand)
                                            : round_by(&op->in[operand], 128, 1);
}

static void linear_fp8(const struct op_shape *op)
{
    const struct tensor *x = &op->in[LINEAR_X], *w = &op->in[LINEAR_W];
    struct rounded a = round_rows(op, LINEAR_X), b = round_weight(op);

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
    struct rounded a = round_rows(op, LINEAR_DX_DY), b = round_weight(op);

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
    struct rounded a = round_columns(op, LINEAR_DW_DY), b = round_columns(op, LINEAR_DW_X);
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

static void fp8_amax(const struct op_shape *op)
{
    const struct tensor *x = &op->in[FP8_AMAX_X];
    struct block all = { 0, x->rows, 0, x->cols };

    OUT(FP8_AMAX_MOST, 0, 0) = most_of_block(x, &all);
}

static void amax_kernels(void)
{
    static const int64_t dims[][2] = { { 1, 16 }, { 300, 272 }, { 7, 4096 }, { 129, 1 } };

    for (int i = 0; i < 4; i++) {
        struct op_case *c = op_case_create(OP_FP8_AMAX, &(struct op_attributes){ 0 });

        op_case_input(c, FP8_AMAX_X, dims[i][0], dims[i][1], DTYPE_BF16, 1);
        op_case_output(c, FP8_AMAX_MOST, 1, 1, DTYPE_F32);
        tensor_set(&c->op.in[FP8_AMAX_X], dims[i][0] - 1, dims[i][1] - 1, i % 2 ? -100 : 0);
        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

const struct op_facts linear_fp8_facts[N_OP_KINDS] = {
    [OP_LINEAR_FP8] = {
        .example = "linear_fp8 12x32 bf16, 16x32 bf16, 1x16 fp32, *2x1 fp32, *3x1 fp32 : 12x16 bf16",
        .spreads = "sssss > s; rssss > r; rssrs > r; srcss > c",
        .reference = linear_fp8,
    },
    [OP_LINEAR_DX_FP8] = {
        .example = "linear_dx_fp8 12x16 bf16, 16x32 bf16, *2x1 fp32, *3x1 fp32 : 12x32 bf16",
        .spreads = "ssss > s; rsss > r; rsrs > r; crss > p; scss > c; psss > p; psrs > p",
        .reference = linear_dx_fp8,
    },
    [OP_LINEAR_DW_FP8] = {
        .example = "linear_dw_fp8 12x16 bf16, 12x32 bf16, *2x1 fp32, *3x1 fp32 : 16x32 fp32, 1x16 fp32",
        .spreads = "ssss > ss; rrss > pp; rrrs > pp; rrsr > pp; rrrr > pp; csss > rc; scss > cs; "
                   "spss > ps; spsr > ps; psss > pp; psrs > pp",
        .reference = linear_dw_fp8,
    },
    [OP_FP8_AMAX] = {
        .example = "fp8_amax *12x*32 bf16 : 1x1 fp32",
        .spreads = "s > s; r > r; c > r; p > r",
        .reference = fp8_amax,
        .kernels = amax_kernels,
    },
};
