/*
 * low_rank_test.c - powersgd's ops in a row, as ranks run them: what is sent and what is lost
 *
 * Each op against its reference: test/support/ops/low_rank.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/op_case.h"

enum {
    RANKS = 3,
    ROWS = 40,
    COLS = 60,
    VECTOR = 20,
    BEGIN = 64,
    N = BEGIN + ROWS * COLS + 8,
    STEPS = 50
};

/* A vector, a gap, a matrix and another gap. */
struct play {
    int rank;
    struct op_case *right_basis, *left_basis, *left, *right, *sum;
    float *kept; /* [COLS x rank] */
    float lost[RANKS][N];
    double n_left, n_right; /* sums of squares: of what was to be sent, and of what is lost */
};

static struct op_case *product_case(enum op_kind kind, int rank, int64_t n_other)
{
    struct op_attributes a = { .rank = rank, .scale = 1.0 / RANKS };
    struct op_case *c = op_case_create(kind, &a);
    const struct ops_factored parts[] = { { 0, 1, VECTOR, 0, -1 },
                                          { BEGIN, ROWS, COLS, VECTOR, 0 } };

    c->dense = true;
    op_case_input(c, LOW_RANK_LEFT_X, 1, N, DTYPE_F32, 1);
    op_case_input(c, LOW_RANK_LEFT_PARTS, 1, 2 * OPS_FACTORED_WORDS, DTYPE_I32, 0);
    memcpy(c->op.in[LOW_RANK_LEFT_PARTS].data, parts, sizeof parts);
    op_case_input(c, LOW_RANK_LEFT_RIGHT, 1, n_other, DTYPE_F32, 1);
    return c;
}

static struct op_case *basis_case(int rank, int64_t n, int32_t first, int32_t rows, int fills)
{
    struct op_attributes a = { .rank = rank, .fills = fills };
    struct op_case *c = op_case_create(OP_LOW_RANK_BASIS, &a);
    const int32_t part[] = { first, rows };

    c->dense = true;
    op_case_input(c, LOW_RANK_BASIS_X, 1, n, DTYPE_F32, 1);
    op_case_input(c, LOW_RANK_BASIS_PARTS, 1, 2, DTYPE_I32, 0);
    memcpy(c->op.in[LOW_RANK_BASIS_PARTS].data, part, sizeof part);
    op_case_output(c, LOW_RANK_BASIS_Y, 1, n, DTYPE_F32);
    return c;
}

/* Begins with factors of zeros. */
static struct play play_create(int rank)
{
    int64_t n_left = VECTOR + ROWS * rank, n_right = COLS * rank;
    struct play p = { .rank = rank };

    p.right_basis = basis_case(rank, n_right, 0, COLS, 1);
    p.left_basis = basis_case(rank, n_left, VECTOR, ROWS, 0);
    p.left = product_case(OP_LOW_RANK_LEFT, rank, n_right);
    op_case_output(p.left, LOW_RANK_LEFT_LEFT, 1, n_left, DTYPE_F32);
    p.right = product_case(OP_LOW_RANK_RIGHT, rank, n_left);
    op_case_output(p.right, LOW_RANK_RIGHT_RIGHT, 1, n_right, DTYPE_F32);
    p.sum = product_case(OP_LOW_RANK_SUM, rank, n_left);
    op_case_input(p.sum, LOW_RANK_SUM_RIGHT, 1, n_right, DTYPE_F32, 1);
    op_case_output(p.sum, LOW_RANK_SUM_Y, 1, N, DTYPE_F32);
    op_case_output(p.sum, LOW_RANK_SUM_SUMS, 1, 2, DTYPE_F64);
    p.kept = p.right_basis->op.in[LOW_RANK_BASIS_X].data;
    memset(p.kept, 0, (size_t)n_right * sizeof *p.kept);
    return p;
}

static void play_destroy(struct play *p)
{
    op_case_destroy(p->right_basis);
    op_case_destroy(p->left_basis);
    op_case_destroy(p->left);
    op_case_destroy(p->right);
    op_case_destroy(p->sum);
}

static void copy(const struct tensor *to, const struct tensor *from)
{
    memcpy(to->data, from->data, (size_t)from->cols * sizeof(float));
}

/* Run a product for all ranks, and add what comes out of it to `sum`. */
static void add_products(struct play *p, struct op_case *product, const struct tensor *sum)
{
    const struct tensor *out = &product->op.out[OPS_FIRST];
    float *all = sum->data;

    memset(all, 0, (size_t)out->cols * sizeof *all);
    for (int r = 0; r < RANKS; r++) {
        memcpy(product->op.in[OPS_FIRST].data, p->lost[r], sizeof p->lost[r]);
        op_case_run(product, 2, RUN_FIRST);
        for (int64_t i = 0; i < out->cols; i++)
            all[i] += ((const float *)out->data)[i];
    }
}

/* What is in `lost` is sent; it is then what is lost of it. Returns the sum, y of p->sum. */
static const float *play_step(struct play *p)
{
    op_case_run(p->right_basis, 2, RUN_FIRST);
    copy(&p->left->op.in[LOW_RANK_LEFT_RIGHT], &p->right_basis->op.out[LOW_RANK_BASIS_Y]);
    add_products(p, p->left, &p->left_basis->op.in[LOW_RANK_BASIS_X]);
    op_case_run(p->left_basis, 2, RUN_FIRST);
    copy(&p->right->op.in[LOW_RANK_RIGHT_LEFT], &p->left_basis->op.out[LOW_RANK_BASIS_Y]);
    copy(&p->sum->op.in[LOW_RANK_SUM_LEFT], &p->left_basis->op.out[LOW_RANK_BASIS_Y]);
    add_products(p, p->right, &p->right_basis->op.in[LOW_RANK_BASIS_X]);
    copy(&p->sum->op.in[LOW_RANK_SUM_RIGHT], &p->right_basis->op.in[LOW_RANK_BASIS_X]);
    p->n_left = p->n_right = 0;
    for (int r = 0; r < RANKS; r++) {
        const double *sums = p->sum->op.out[LOW_RANK_SUM_SUMS].data;

        memcpy(p->sum->op.in[LOW_RANK_SUM_X].data, p->lost[r], sizeof p->lost[r]);
        op_case_run(p->sum, 2, RUN_FIRST);
        memcpy(p->lost[r], p->sum->op.in[LOW_RANK_SUM_X].data, sizeof p->lost[r]);
        p->n_left += sums[0];
        p->n_right += sums[1];
    }
    return p->sum->op.out[LOW_RANK_SUM_Y].data;
}

/* Between parts there is nothing. */
static int is_in_part(int i)
{
    return i < VECTOR || (i >= BEGIN && i < BEGIN + ROWS * COLS);
}

static void add_gradients(struct play *p, uint64_t place, double *there)
{
    static float gradient[N];
    struct tensor g = { .data = gradient, .rows = 1, .cols = N, .stride = N, .dtype = DTYPE_F32 };

    for (uint64_t r = 0; r < RANKS; r++) {
        op_case_fill(&g, place * RANKS + r, 1);
        for (int i = 0; i < N; i++)
            if (is_in_part(i)) {
                p->lost[r][i] += gradient[i];
                there[i] += (double)gradient[i];
            }
    }
}

/* All that was sent is all that there was but what is lost at the end; and that stays small. */
static void fifty_steps(int rank)
{
    struct play p = play_create(rank);
    static double there[N], total[N];
    double most = 0, off = 0;

    memset(there, 0, sizeof there);
    memset(total, 0, sizeof total);
    for (uint64_t step = 0; step < STEPS; step++) {
        add_gradients(&p, 100 + step, there);
        const float *y = play_step(&p);
        for (int i = 0; i < N; i++)
            total[i] += (double)y[i];
        assert_true(p.n_right < p.n_left);
    }
    for (int i = 0; i < N; i++) {
        for (int r = 0; r < RANKS; r++)
            there[i] -= (double)p.lost[r][i];
        most = fmax(most, fabs(there[i]));
        off = fmax(off, fabs(there[i] - total[i]));
        for (int r = 0; r < RANKS && (i < VECTOR || !is_in_part(i)); r++)
            assert_true(p.lost[r][i] == 0);
    }
    assert_true(most > 1);
    if (!(off <= 2e-6 * most))
        fail_msg("rank %d: off by %g of %g", rank, off, most);
    play_destroy(&p);
}

static void nothing_is_lost_for_good(void **state)
{
    (void)state;
    fifty_steps(1);
    fifty_steps(4);
    fifty_steps(11);
}

/* As many columns as there are rows: the sum itself, from the first step on. So is one of fewer
 * directions than the factors have columns, though their other columns are of zeros. */
static void full_rank(void **state)
{
    (void)state;
    for (int of_few = 0; of_few < 2; of_few++) {
        struct play p = play_create(of_few ? 4 : ROWS);

        for (uint64_t step = 0; step < 3; step++) {
            static double there[N];

            memset(there, 0, sizeof there);
            memset(p.lost, 0, sizeof p.lost);
            add_gradients(&p, 900 + step, there);
            /* Each rank's matrix is that of rank 0: two directions. */
            for (int i = BEGIN; of_few && i < BEGIN + ROWS * COLS; i++) {
                int row = (i - BEGIN) / COLS, col = (i - BEGIN) % COLS;
                const float *x = p.lost[0];

                for (int r = 1; r < RANKS; r++)
                    p.lost[r][i] = (float)(r % 2 ? row - 7 : 1) * x[BEGIN + COLS * (r % 2) + col];
                there[i] = (double)p.lost[1][i] + (double)p.lost[2][i];
            }
            if (of_few)
                memset(p.lost[0] + BEGIN, 0, sizeof(float) * ROWS * COLS);
            const float *y = play_step(&p);
            double most = 0, off = 0;
            for (int i = 0; i < N; i++) {
                most = fmax(most, fabs(there[i]));
                off = fmax(off, fabs(there[i] - (double)y[i]));
            }
            if (!(off <= 1e-5 * most))
                fail_msg("step %d, few %d: off by %g of %g", (int)step, of_few, off, most);
        }
        play_destroy(&p);
    }
}

/* The sum of a matrix with an infinity or a NaN is not finite either; that of vectors is, and what
 * lies between parts. */
static void not_finite(void **state)
{
    static const float values[] = { NAN, INFINITY, -INFINITY };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct play p = play_create(4);
        static double there[N];

        add_gradients(&p, 7, there);
        p.lost[1][BEGIN + 5 * COLS + 3] = values[i];
        const float *y = play_step(&p);
        assert_int_equal(isfinite((double)y[BEGIN + 5 * COLS + 3]) != 0, 0);
        for (int k = 0; k < N; k++)
            if (k < BEGIN || !is_in_part(k))
                assert_true(isfinite((double)y[k]) != 0 && p.lost[1][k] == 0);
        play_destroy(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(nothing_is_lost_for_good),
                                        cmocka_unit_test(full_rank), cmocka_unit_test(not_finite) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
