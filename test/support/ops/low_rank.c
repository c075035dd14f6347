/*
 * low_rank.c - facts of gradients as factors of low rank
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_case.h"
#include "support/ops/op_family.h"

/* ---- references ---- */

static double *column_at(double *y, int64_t first, int rank, int64_t row, int col)
{
    return y + first + row * rank + col;
}

static double dot(double *y, int64_t first, int rank, int64_t rows, int a, int b)
{
    double sum = 0;

    for (int64_t i = 0; i < rows; i++)
        sum += *column_at(y, first, rank, i, a) * *column_at(y, first, rank, i, b);
    return sum;
}

/* Take what column b has of column a, which is of length 1, out of it. */
static void take_out(double *y, int64_t first, int rank, int64_t rows, int a, int b)
{
    double of_a = dot(y, first, rank, rows, a, b);

    for (int64_t i = 0; i < rows; i++)
        *column_at(y, first, rank, i, b) -= of_a * *column_at(y, first, rank, i, a);
}

static void set(double *y, int64_t first, int rank, int64_t rows, int col,
                double (*of)(int, int64_t))
{
    for (int64_t i = 0; i < rows; i++)
        *column_at(y, first, rank, i, col) = of(col, i);
}

static double zero_of(int col, int64_t row)
{
    (void)col, (void)row;
    return 0;
}

static double random_of(int col, int64_t row)
{
    return rng_uniform(rng_at(0, RNG_BASIS, (uint64_t)col, (uint64_t)row).word[0]) - 0.5;
}

/* Column by column, each freed of those before. */
static void basis_of(double *y, int64_t first, int rank, int64_t rows, int fills)
{
    for (int k = 0; k < rank; k++) {
        double whole = sqrt(dot(y, first, rank, rows, k, k));

        for (int before = 0; before < k; before++)
            take_out(y, first, rank, rows, before, k);
        if (sqrt(dot(y, first, rank, rows, k, k)) <= 1e-9 * whole) {
            set(y, first, rank, rows, k, fills ? random_of : zero_of);
            for (int before = 0; before < 2 * k; before++)
                take_out(y, first, rank, rows, before % k, k);
        }
        double norm = sqrt(dot(y, first, rank, rows, k, k));
        for (int64_t i = 0; i < rows && norm > 0; i++)
            *column_at(y, first, rank, i, k) /= norm;
    }
}

static void low_rank_basis(const struct op_shape *op)
{
    const int32_t *parts = op->in[LOW_RANK_BASIS_PARTS].data;

    for (int64_t i = 0; i < op->in[LOW_RANK_BASIS_X].cols; i++)
        OUT(LOW_RANK_BASIS_Y, 0, i) = IN(LOW_RANK_BASIS_X, 0, i);
    for (int64_t p = 0; p < op->in[LOW_RANK_BASIS_PARTS].cols / 2; p++)
        basis_of(op->out[LOW_RANK_BASIS_Y].data, parts[2 * p], op->attributes.rank,
                 parts[2 * p + 1], op->attributes.fills);
}

static const struct ops_factored *parts_of(const struct op_shape *op, int64_t *n)
{
    *n = op->in[LOW_RANK_LEFT_PARTS].cols / OPS_FACTORED_WORDS;
    return op->in[LOW_RANK_LEFT_PARTS].data;
}

static void low_rank_left(const struct op_shape *op)
{
    int64_t n, rank = op->attributes.rank;
    const struct ops_factored *parts = parts_of(op, &n);

    start(&op->out[LOW_RANK_LEFT_LEFT]);
    for (const struct ops_factored *p = parts; p < parts + n; p++)
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++) {
                double x = IN(LOW_RANK_LEFT_X, 0, p->first + i * p->cols + j);

                if (p->right < 0)
                    OUT(LOW_RANK_LEFT_LEFT, 0, p->left + j) = x;
                for (int64_t k = 0; p->right >= 0 && k < rank; k++)
                    OUT(LOW_RANK_LEFT_LEFT, 0, p->left + i * rank + k) +=
                        x * IN(LOW_RANK_LEFT_RIGHT, 0, p->right + j * rank + k);
            }
}

static void low_rank_right(const struct op_shape *op)
{
    int64_t n, rank = op->attributes.rank;
    const struct ops_factored *parts = parts_of(op, &n);

    start(&op->out[LOW_RANK_RIGHT_RIGHT]);
    for (const struct ops_factored *p = parts; p < parts + n; p++)
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++)
                for (int64_t k = 0; p->right >= 0 && k < rank; k++)
                    OUT(LOW_RANK_RIGHT_RIGHT, 0, p->right + j * rank + k) +=
                        IN(LOW_RANK_RIGHT_X, 0, p->first + i * p->cols + j) *
                        IN(LOW_RANK_RIGHT_LEFT, 0, p->left + i * rank + k);
}

static double product_of(const struct op_shape *op, const struct ops_factored *p, int64_t i,
                         int64_t j)
{
    int64_t rank = op->attributes.rank;
    double sum = 0;

    if (p->right < 0)
        return IN(LOW_RANK_SUM_LEFT, 0, p->left + j);
    for (int64_t k = 0; k < rank; k++)
        sum += IN(LOW_RANK_SUM_LEFT, 0, p->left + i * rank + k) *
               IN(LOW_RANK_SUM_RIGHT, 0, p->right + j * rank + k);
    return sum;
}

static void low_rank_sum(const struct op_shape *op)
{
    int64_t n;
    const struct ops_factored *parts = parts_of(op, &n);

    start(&op->out[LOW_RANK_SUM_Y]);
    start(&op->out[LOW_RANK_SUM_SUMS]);
    for (const struct ops_factored *p = parts; p < parts + n; p++)
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->cols; j++) {
                int64_t at_x = p->first + i * p->cols + j;
                double *x = at(&op->in[LOW_RANK_SUM_X], 0, at_x), y = product_of(op, p, i, j);

                OUT(LOW_RANK_SUM_Y, 0, at_x) = y;
                OUT(LOW_RANK_SUM_SUMS, 0, 0) += *x * *x;
                *x = p->right < 0 ? 0 : *x - op->attributes.scale * y;
                OUT(LOW_RANK_SUM_SUMS, 0, 1) += *x * *x;
            }
}

/* ---- kernels ---- */

/* Parts with gaps before and behind them: whole tiles and less, one row or column more than what is
 * taken at once, and such as travel as they are. */
static const struct {
    int rows, cols;
} shapes[] = { { 70, 50 }, { 1, 300 }, { 9, 200 }, { 129, 33 }, { 32, 128 }, { 1, 20000 } };

static const int ranks[] = { 1, 2, 7, 8, 19 };

enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_RANKS = sizeof ranks / sizeof *ranks,
    GAP = 64
};

struct layout {
    struct ops_factored parts[N_SHAPES];
    int32_t left[2 * N_SHAPES], right[2 * N_SHAPES]; /* tables of low_rank_basis */
    int n_factored;
    int64_t n, n_left, n_right;
};

static struct layout layout_of(int rank)
{
    struct layout l = { .n = GAP };

    for (int i = 0; i < N_SHAPES; i++) {
        int rows = shapes[i].rows, cols = shapes[i].cols, k = l.n_factored;
        bool is_matrix = (rows + cols) * rank < rows * cols;

        l.parts[i] = (struct ops_factored){ .first = (int32_t)l.n,
                                            .rows = is_matrix ? rows : 1,
                                            .cols = is_matrix ? cols : rows * cols,
                                            .left = (int32_t)l.n_left,
                                            .right = is_matrix ? (int32_t)l.n_right : -1 };
        if (is_matrix) {
            memcpy(l.left + 2 * k, (int32_t[]){ (int32_t)l.n_left, rows }, 2 * sizeof *l.left);
            memcpy(l.right + 2 * k, (int32_t[]){ (int32_t)l.n_right, cols }, 2 * sizeof *l.right);
            l.n_factored++;
        }
        l.n += rows * cols + GAP;
        l.n_left += is_matrix ? rows * rank : rows * cols;
        l.n_right += is_matrix ? cols * rank : 0;
    }
    return l;
}

static struct op_case *case_of(enum op_kind kind, int rank, struct layout *l)
{
    struct op_attributes a = { .rank = rank, .scale = 1.0 / 3 };
    struct op_case *c = op_case_create(kind, &a);

    *l = layout_of(rank);
    c->dense = true;
    op_case_input(c, LOW_RANK_LEFT_X, 1, l->n, DTYPE_F32, 1);
    op_case_input(c, LOW_RANK_LEFT_PARTS, 1, N_SHAPES * OPS_FACTORED_WORDS, DTYPE_I32, 0);
    memcpy(c->op.in[LOW_RANK_LEFT_PARTS].data, l->parts, sizeof l->parts);
    return c;
}

static void left_kernels(void)
{
    for (int i = 0; i < N_RANKS; i++) {
        struct layout l;
        struct op_case *c = case_of(OP_LOW_RANK_LEFT, ranks[i], &l);

        op_case_input(c, LOW_RANK_LEFT_RIGHT, 1, l.n_right, DTYPE_F32, 1);
        op_case_output(c, LOW_RANK_LEFT_LEFT, 1, l.n_left, DTYPE_F32);
        op_case_check(c, 2e-6);
        op_case_check_cpu_bits(c, RUN_FIRST);
        op_case_destroy(c);
    }
}

static void right_kernels(void)
{
    for (int i = 0; i < N_RANKS; i++) {
        struct layout l;
        struct op_case *c = case_of(OP_LOW_RANK_RIGHT, ranks[i], &l);

        op_case_input(c, LOW_RANK_RIGHT_LEFT, 1, l.n_left, DTYPE_F32, 1);
        op_case_output(c, LOW_RANK_RIGHT_RIGHT, 1, l.n_right, DTYPE_F32);
        op_case_check(c, 2e-6);
        op_case_check_cpu_bits(c, RUN_FIRST);
        op_case_destroy(c);
    }
}

static void sum_kernels(void)
{
    for (int i = 0; i < N_RANKS; i++) {
        struct layout l;
        struct op_case *c = case_of(OP_LOW_RANK_SUM, ranks[i], &l);

        op_case_input(c, LOW_RANK_SUM_LEFT, 1, l.n_left, DTYPE_F32, 1);
        op_case_input(c, LOW_RANK_SUM_RIGHT, 1, l.n_right, DTYPE_F32, 1);
        op_case_output(c, LOW_RANK_SUM_Y, 1, l.n, DTYPE_F32);
        op_case_output(c, LOW_RANK_SUM_SUMS, 1, 2, DTYPE_F64);
        op_case_check(c, 2e-6);
        op_case_destroy(c);
    }
}

/* Of left factors, between which there is something to copy; with columns of zeros, and such as are
 * sums of others. */
static void basis_kernels(void)
{
    for (int i = 0; i < 4 * N_RANKS; i++) {
        int rank = ranks[i / 4];
        struct layout l = layout_of(rank);
        struct op_attributes a = { .rank = rank, .fills = i / 2 % 2 };
        struct op_case *c = op_case_create(OP_LOW_RANK_BASIS, &a);

        c->dense = true;
        op_case_input(c, LOW_RANK_BASIS_X, 1, l.n_left, DTYPE_F32, 1e-3);
        op_case_input(c, LOW_RANK_BASIS_PARTS, 1, 2 * l.n_factored, DTYPE_I32, 0);
        op_case_output(c, LOW_RANK_BASIS_Y, 1, l.n_left, DTYPE_F32);
        memcpy(c->op.in[LOW_RANK_BASIS_PARTS].data, l.left,
               2 * sizeof *l.left * (size_t)l.n_factored);
        float *x = c->op.in[LOW_RANK_BASIS_X].data;
        for (int64_t k = l.left[0]; i % 2 && k < l.left[0] + l.left[1] * rank; k++)
            if (k % rank == 0 || k % rank == 5)
                x[k] = 0;
            else if (k % rank == 3)
                x[k] = 2 * x[k - 2];
        op_case_check(c, 1e-6);
        op_case_destroy(c);
    }
}

const struct op_facts low_rank_facts[N_OP_KINDS] = {
    [OP_LOW_RANK_BASIS] = {
        .example = "low_rank_basis 1x512 fp32, 1x4 i32 : 1x512 fp32",
        .spreads = "ss > s; cs > c; ps > p",
        .reference = low_rank_basis,
        .kernels = basis_kernels,
    },
    [OP_LOW_RANK_LEFT] = {
        .example = "low_rank_left 1x*512 fp32, 1x10 i32, 1x*40 fp32 : 1x*60 fp32",
        .spreads = "sss > s; csc > c; psp > p; pss > p",
        .reference = low_rank_left,
        .kernels = left_kernels,
    },
    [OP_LOW_RANK_RIGHT] = {
        .example = "low_rank_right 1x*512 fp32, 1x10 i32, 1x*60 fp32 : 1x*40 fp32",
        .spreads = "sss > s; csc > c; psp > p; pss > p",
        .reference = low_rank_right,
        .kernels = right_kernels,
    },
    [OP_LOW_RANK_SUM] = {
        .example = "low_rank_sum 1x512 fp32, 1x10 i32, 1x*60 fp32, 1x*40 fp32 : 1x512 fp32, 1x2 fp64",
        .spreads = "ssss > sp; cscc > cp; pspp > pp; psss > sp",
        .reference = low_rank_sum,
        .kernels = sum_kernels,
    },
};
