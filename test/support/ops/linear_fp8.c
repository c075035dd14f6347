/*
 * linear_fp8.c - facts of products whose operands are rounded to e4m3
 *
 * The reference divides by scales in fp32, as ops/fp8_recipe.h says, since what a code is hangs on
 * how a quotient is rounded; it finds the nearest number of e4m3 by trying all, and adds in double.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "support/e4m3.h"
#include "support/op_case.h"
#include "support/ops/op_family.h"

/* An operand of a product as the reference has it: scale times code of each element. */
struct rounded {
    const struct tensor *x;
    double *codes, *scales;
    bool is_e5m2;
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
    float scale = isfinite(most) ? (float)most / (r->is_e5m2 ? 57344.0f : 448.0f) : NAN;

    for (int64_t row = b->row; row < b->row_end; row++)
        for (int64_t col = b->col; col < b->col_end; col++) {
            int64_t i = row * r->x->cols + col;

            r->scales[i] = (double)scale;
            float quotient = (float)*at(r->x, row, col) / (scale > 0 ? scale : 1);
            r->codes[i] = !(scale > 0) ? 0
                          : r->is_e5m2 ? e5m2_rounded(quotient)
                                       : e4m3_rounded(quotient);
        }
}

static struct rounded new_rounded(const struct tensor *x)
{
    size_t n = (size_t)tensor_elements(x);
    struct rounded r = { x, malloc(n * sizeof(double)), malloc(n * sizeof(double)), false };

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

static double number_of(uint8_t code)
{
    return code & 0x80 ? -e4m3_number(code & 0x7f) : e4m3_number(code);
}

static uint8_t code_of(float x)
{
    return (uint8_t)(e4m3_nearest(fabs((double)x)) | (signbit(x) ? 0x80 : 0));
}

/* Codes that are there, and the largest elements of their blocks. */
static struct rounded given_codes(const struct op_shape *op, int operand)
{
    const struct tensor *x = &op->in[operand], *most = &op->in[ops_fp8_most(op->kind, operand)];
    int64_t across = (x->cols + 127) / 128;
    struct rounded r = new_rounded(x);

    for (int64_t i = 0; i < tensor_elements(x); i++) {
        int64_t row = i / x->cols, col = i % x->cols;
        int64_t block = op->attributes.fp8 == FP8_TENSOR ? 0 : row / 128 * across + col / 128;
        double largest = operand == LINEAR_W ? *at(most, 0, block) : *at(most, row, col / 128);

        r.codes[i] = number_of(((const uint8_t *)x->data)[row * x->stride + col]);
        r.scales[i] = isfinite(largest) ? (double)((float)largest / 448.0f) : (double)NAN;
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
    r.is_e5m2 = op->attributes.e5m2_dy && op->kind != OP_LINEAR_FP8 && operand == LINEAR_DX_DY;
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
    if (op->in[operand].dtype == DTYPE_U8)
        return given_codes(op, operand);
    return op->attributes.fp8 == FP8_TENSOR ? round_whole(op, operand)
                                            : round_by(&op->in[operand], 1, 128);
}

static struct rounded round_weight(const struct op_shape *op)
{
    if (op->in[LINEAR_W].dtype == DTYPE_U8)
        return given_codes(op, LINEAR_W);
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

/* ---- weights ---- */

/* The block of the matrix that has this element of flat memory, or -1. */
static int64_t block_at(const struct op_shape *op, int matrices, int64_t element)
{
    const struct tensor *t = &op->in[matrices];

    for (int64_t i = 0; i < t->rows; i++) {
        const struct ops_fp8_matrix *m = (const struct ops_fp8_matrix *)t->data + i;
        int64_t row = (element - m->first) / m->cols, col = (element - m->first) % m->cols;
        int64_t n_across = (m->cols + 127) / 128, n_down = (m->rows + 127) / 128;
        int64_t number = row / m->rows; /* of the matrix, of those of one shape */

        if (element < m->first || element >= m->first + m->n * m->rows * m->cols)
            continue;
        if (op->attributes.fp8 == FP8_TENSOR)
            return m->first_block + number;
        return m->first_block + number * n_down * n_across + row % m->rows / 128 * n_across +
               col / 128;
    }
    return -1;
}

static int64_t first_of(const struct op_shape *op, int matrices)
{
    const struct tensor *begin = &op->in[matrices + 1];

    return tensor_given(begin) ? *(const int64_t *)begin->data : 0;
}

static void fp8_weight_amax(const struct op_shape *op)
{
    const struct tensor *x = &op->in[FP8_WEIGHT_AMAX_X];
    int64_t begin = first_of(op, FP8_WEIGHT_AMAX_MATRICES);

    for (int64_t i = 0; i < op->out[FP8_WEIGHT_AMAX_MOST].cols; i++)
        OUT(FP8_WEIGHT_AMAX_MOST, 0, i) = 0;
    for (int64_t i = 0; i < tensor_elements(x); i++) {
        int64_t block = block_at(op, FP8_WEIGHT_AMAX_MATRICES, begin + i);

        if (block >= 0)
            OUT(FP8_WEIGHT_AMAX_MOST, 0, block) =
                fmax(OUT(FP8_WEIGHT_AMAX_MOST, 0, block), fabs(*at(x, i / x->cols, i % x->cols)));
    }
}

static void fp8_weight_codes(const struct op_shape *op)
{
    const struct tensor *x = &op->in[FP8_WEIGHT_CODES_X], *most = &op->in[FP8_WEIGHT_CODES_MOST];
    const struct tensor *codes = &op->out[FP8_WEIGHT_CODES_CODES];
    int64_t begin = first_of(op, FP8_WEIGHT_CODES_MATRICES);

    for (int64_t i = 0; i < most->cols; i++) {
        OUT(FP8_WEIGHT_CODES_JOINED, 0, i) = 0;
        for (int64_t part = 0; part < most->rows; part++)
            OUT(FP8_WEIGHT_CODES_JOINED, 0, i) =
                fmax(OUT(FP8_WEIGHT_CODES_JOINED, 0, i), *at(most, part, i));
    }
    for (int64_t i = 0; i < tensor_elements(x); i++) {
        int64_t block = block_at(op, FP8_WEIGHT_CODES_MATRICES, begin + i);
        int64_t row = i / x->cols, col = i % x->cols;
        float scale = block < 0 ? 0 : (float)OUT(FP8_WEIGHT_CODES_JOINED, 0, block) / 448.0f;

        ((uint8_t *)codes->data)[row * codes->stride + col] =
            scale > 0 ? code_of((float)*at(x, row, col) / scale) : 0;
    }
}

/* A matrix, and three of one shape, which ends of norm blocks cut, with a gap behind; a rank has
 * the elements from `begin` on. */
static void weight_case(enum op_kind kind, enum fp8_recipe recipe, int64_t begin, int64_t n)
{
    static const struct ops_fp8_matrix table[2][2] = {
        { { 0, 144, 272, 0, 1 }, { 40960, 16, 144, 6, 3 } },
        { { 0, 144, 272, 0, 1 }, { 40960, 16, 144, 1, 3 } },
    };
    bool has_one = recipe == FP8_TENSOR, is_codes = kind == OP_FP8_WEIGHT_CODES;
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ .fp8 = recipe });
    int matrices = is_codes ? FP8_WEIGHT_CODES_MATRICES : FP8_WEIGHT_AMAX_MATRICES;

    c->dense = true;
    op_case_input(c, 0, 1, n, DTYPE_BF16, 1);
    if (is_codes)
        op_case_input(c, FP8_WEIGHT_CODES_MOST, 3, has_one ? 4 : 12, DTYPE_F32, 1);
    op_case_input(c, matrices, 2, OPS_FP8_MATRIX_COLS, DTYPE_I64, 1);
    memcpy(c->op.in[matrices].data, table[has_one], sizeof table[0]);
    op_case_input(c, matrices + 1, 1, 1, DTYPE_I64, 1);
    *(int64_t *)c->op.in[matrices + 1].data = begin;
    for (int64_t i = 0; is_codes && i < c->op.in[FP8_WEIGHT_CODES_MOST].cols; i++)
        for (int64_t part = 0; part < 3; part++)
            tensor_set(&c->op.in[FP8_WEIGHT_CODES_MOST], part, i,
                       i == 1 ? 0 : (double)(1 + part * 3 % 4));
    if (is_codes) {
        op_case_output(c, FP8_WEIGHT_CODES_CODES, 1, n, DTYPE_U8);
        op_case_output(c, FP8_WEIGHT_CODES_JOINED, 1, has_one ? 4 : 12, DTYPE_F32);
    } else {
        op_case_output(c, FP8_WEIGHT_AMAX_MOST, 1, has_one ? 4 : 12, DTYPE_F32);
    }
    op_case_check(c, 0);
    op_case_destroy(c);
}

static void weight_cases(enum op_kind kind)
{
    for (int has_one = 0; has_one < 2; has_one++) {
        enum fp8_recipe recipe = has_one ? FP8_TENSOR : FP8_BLOCKWISE;

        weight_case(kind, recipe, 0, 49152);
        weight_case(kind, recipe, 0, 24576);
        weight_case(kind, recipe, 24576, 24576);
        weight_case(kind, recipe, 45056, 4096);
    }
}

static void amax_cases(void)
{
    weight_cases(OP_FP8_WEIGHT_AMAX);
}

static void codes_cases(void)
{
    weight_cases(OP_FP8_WEIGHT_CODES);
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
    [OP_FP8_WEIGHT_AMAX] = {
        .example = "fp8_weight_amax *12x*32 bf16, *3x5 i64, 1x1 i64 : 1x*3 fp32",
        .spreads = "sss > s; rss > r; css > r; csc > r",
        .reference = fp8_weight_amax,
        .kernels = amax_cases,
    },
    [OP_FP8_WEIGHT_CODES] = {
        .example = "fp8_weight_codes 12x32 bf16, *2x3 fp32, *3x5 i64, 1x1 i64 : 12x32 u8, 1x3 fp32",
        .spreads = "ssss > ss; rsss > rs; csss > cs; cssc > cs",
        .reference = fp8_weight_codes,
        .kernels = codes_cases,
    },
};
