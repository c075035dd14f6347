/*
 * muon_test.c - Muon's ops: momentum and update with the CPU's bits on every device; matrices made
 * orthogonal, in whatever parts they lie, and those that have no rank or no numbers
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/halves.h"
#include "base/num.h"
#include "support/op_case.h"

/* ---- momentum and update ---- */

struct shape {
    int64_t rows, cols;
    enum dtype dtype; /* the gradient's, or the weight's (N_DTYPES: none) */
    int is_other;     /* nesterov; decays by block */
    int skip;
};

static struct op_case *momentum_case(const struct shape *s)
{
    struct op_attributes a = { .beta1 = 0.95, .nesterov = s->is_other };
    struct op_case *c = op_case_create(OP_MUON_MOMENTUM, &a);

    op_case_input(c, MUON_MOMENTUM_GRADIENT, s->rows, s->cols, s->dtype, 1);
    op_case_input(c, MUON_MOMENTUM_CLIP_FACTOR, 1, 1, DTYPE_F32, 1);
    op_case_input(c, MUON_MOMENTUM_SKIP_UPDATE, 1, 1, DTYPE_I32, 0);
    op_case_input(c, MUON_MOMENTUM_M, s->rows, s->cols, DTYPE_F32, 1);
    op_case_output(c, MUON_MOMENTUM_U, s->rows, s->cols, DTYPE_BF16);
    tensor_set(&c->op.in[MUON_MOMENTUM_CLIP_FACTOR], 0, 0, 0.7);
    tensor_set(&c->op.in[MUON_MOMENTUM_SKIP_UPDATE], 0, 0, s->skip);
    return c;
}

static void test_momentum(void **state)
{
    static const struct shape shapes[] = {
        { 1, 1, DTYPE_F32, 1, 0 },    { 1, 40001, DTYPE_F32, 1, 0 }, { 300, 67, DTYPE_BF16, 0, 0 },
        { 64, 128, DTYPE_F32, 0, 0 }, { 7, 4096, DTYPE_BF16, 1, 0 }, { 30, 33, DTYPE_F32, 1, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct op_case *c = momentum_case(&shapes[i]);

        op_case_check(c, 5e-7);
        op_case_destroy(c);
        c = momentum_case(&shapes[i]);
        op_case_check_cpu_bits(c, RUN_FIRST);
        op_case_destroy(c);
    }
}

/* A gradient that is no number changes no momentum, and the direction of the step is 0. */
static void test_momentum_of_a_skipped_step(void **state)
{
    struct op_case *c = momentum_case(&(struct shape){ 3, 50, DTYPE_F32, 1, 1 });
    struct tensor *m = &c->op.in[MUON_MOMENTUM_M], before = op_case_keep(m);

    (void)state;
    tensor_set(&c->op.in[MUON_MOMENTUM_GRADIENT], 1, 7, NAN);
    tensor_set(&c->op.in[MUON_MOMENTUM_CLIP_FACTOR], 0, 0, NAN);
    op_case_run(c, 2, RUN_FIRST);
    op_case_same(m, &before, "momenta");
    for (int64_t col = 0; col < 50; col++)
        assert_true(tensor_get(&c->op.out[MUON_MOMENTUM_U], 1, col) == 0);
    free(before.data);
    op_case_destroy(c);
}

static struct op_case *update_case(const struct shape *s, int half_away)
{
    struct op_attributes a = { .weight_decay = 0.1, .half_away = half_away };
    struct op_case *c = op_case_create(OP_MUON_UPDATE, &a);
    int64_t n_blocks = ceil_div(s->rows * s->cols, OPS_NORM_BLOCK);

    op_case_input(c, MUON_UPDATE_X, s->rows, s->cols, DTYPE_BF16, 1);
    op_case_input(c, MUON_UPDATE_SCALARS, 1, OPS_N_SCALARS, DTYPE_F32, 1);
    op_case_input(c, MUON_UPDATE_SKIP_UPDATE, 1, 1, DTYPE_I32, 0);
    op_case_input(c, MUON_UPDATE_MASTER, s->rows, s->cols, DTYPE_F32, 1);
    if (s->is_other)
        op_case_input(c, MUON_UPDATE_DECAY, 1, n_blocks, DTYPE_F64, 0.1);
    if (s->dtype != N_DTYPES)
        op_case_output(c, MUON_UPDATE_WEIGHT, s->rows, s->cols, s->dtype);
    tensor_set(&c->op.in[MUON_UPDATE_SCALARS], 0, SCALAR_LR, 0.01);
    tensor_set(&c->op.in[MUON_UPDATE_SKIP_UPDATE], 0, 0, s->skip);
    return c;
}

static void test_update(void **state)
{
    static const struct shape shapes[] = {
        { 1, 1, DTYPE_BF16, 0, 0 },  { 1, 40001, DTYPE_BF16, 1, 0 }, { 300, 67, DTYPE_F16, 1, 0 },
        { 64, 128, N_DTYPES, 0, 0 }, { 7, 4096, DTYPE_F32, 1, 0 },   { 5, 1000, DTYPE_BF16, 1, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int half_away = 0; half_away < 2; half_away++) {
            struct op_case *c = update_case(&shapes[i], half_away);

            op_case_check(c, 5e-7);
            op_case_destroy(c);
            c = update_case(&shapes[i], half_away);
            op_case_check_cpu_bits(c, RUN_FIRST);
            op_case_destroy(c);
        }
}

static void test_update_of_a_skipped_step(void **state)
{
    struct op_case *c = update_case(&(struct shape){ 3, 50, N_DTYPES, 0, 1 }, 0);
    struct tensor *master = &c->op.in[MUON_UPDATE_MASTER], before = op_case_keep(master);

    (void)state;
    op_case_run(c, 2, RUN_FIRST);
    op_case_same(master, &before, "masters");
    free(before.data);
    op_case_destroy(c);
}

/* ---- Newton-Schulz steps ---- */

struct matrices {
    int64_t rows, cols; /* of a matrix */
    int n, parts, by_columns, n_slots;
    enum newton_schulz coefficients;
    int steps;
    double scale;
};

static struct op_case *steps_case(const struct matrices *m)
{
    struct op_attributes a = { .matrix_rows = m->by_columns ? m->rows : m->rows / m->parts,
                               .matrices = m->n,
                               .matrix_parts = m->parts,
                               .by_columns = m->by_columns,
                               .coefficients = m->coefficients,
                               .steps = m->steps,
                               .scale = m->scale,
                               .eps = 1e-7 };
    struct op_case *c = op_case_create(OP_NEWTON_SCHULZ, &a);

    op_case_input(c, NEWTON_SCHULZ_X, m->n_slots * m->n * m->parts * a.matrix_rows,
                  m->by_columns ? m->cols / m->parts : m->cols, DTYPE_BF16, 0.3);
    return c;
}

/* Roundings to bf16 that fall otherwise are amplified by the steps that follow. */
#define STEPS_TOLERANCE 0.02

static void test_steps(void **state)
{
    static const struct matrices cases[] = {
        { 16, 16, 1, 1, 0, 1, NEWTON_SCHULZ_ORIGINAL, 5, 1 },
        { 24, 40, 1, 1, 0, 1, NEWTON_SCHULZ_ORIGINAL, 5, 0.2 * 6.324555320336759 },
        { 65, 33, 1, 1, 0, 1, NEWTON_SCHULZ_QUINTIC, 5, 1 },
        { 20, 32, 3, 2, 0, 1, NEWTON_SCHULZ_ORIGINAL, 5, 1 },
        { 20, 32, 2, 4, 1, 2, NEWTON_SCHULZ_POLAR_EXPRESS, 8, 2 },
        { 48, 16, 1, 3, 0, 3, NEWTON_SCHULZ_ORIGINAL, 6, 1 },
        { 1, 30, 1, 1, 0, 1, NEWTON_SCHULZ_QUINTIC, 7, 1 },
        { 100, 96, 1, 1, 0, 1, NEWTON_SCHULZ_POLAR_EXPRESS, 8, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct op_case *c = steps_case(&cases[i]);

        op_case_check(c, STEPS_TOLERANCE);
        op_case_destroy(c);
    }
}

/* The scalar product of two rows of the first matrix of a case without parts. */
static double product_of(const struct op_case *c, int64_t i, int64_t j)
{
    const struct tensor *x = &c->op.in[NEWTON_SCHULZ_X];
    double sum = 0;

    for (int64_t col = 0; col < x->cols; col++)
        sum += tensor_get(x, i, col) * tensor_get(x, j, col);
    return sum;
}

/* Rows of what comes out are orthogonal and of length 1: nearly, by the coefficients. */
static void test_rows_are_orthogonal(void **state)
{
    static const struct {
        enum newton_schulz coefficients;
        int steps;
        double most; /* by which squares of singular values, and with them lengths, may be off */
    } sets[] = { { NEWTON_SCHULZ_ORIGINAL, 5, 0.6 },
                 { NEWTON_SCHULZ_QUINTIC, 5, 0.45 },
                 { NEWTON_SCHULZ_POLAR_EXPRESS, 8, 0.03 } };

    (void)state;
    for (int s = 0; s < 3; s++) {
        struct op_case *c = steps_case(
            &(struct matrices){ 24, 96, 1, 1, 0, 1, sets[s].coefficients, sets[s].steps, 1 });

        op_case_run(c, 2, RUN_FIRST);
        for (int64_t i = 0; i < 24; i++)
            for (int64_t j = 0; j < 24; j++)
                assert_true(fabs(product_of(c, i, j) - (i == j)) < sets[s].most);
        op_case_destroy(c);
    }
}

/* The same matrices in parts, in several slots, or alone have the same bits. */
static void test_parts_change_no_bit(void **state)
{
    static const struct matrices forms[] = {
        { 32, 48, 4, 1, 0, 1, NEWTON_SCHULZ_ORIGINAL, 5, 1 },
        { 32, 48, 1, 1, 0, 4, NEWTON_SCHULZ_ORIGINAL, 5, 1 },
        { 32, 48, 2, 2, 0, 2, NEWTON_SCHULZ_ORIGINAL, 5, 1 },
        { 32, 48, 1, 4, 1, 4, NEWTON_SCHULZ_ORIGINAL, 5, 1 },
    };
    enum { N_FORMS = sizeof forms / sizeof *forms };
    struct op_case *c[N_FORMS];

    (void)state;
    for (int f = 0; f < N_FORMS; f++)
        c[f] = steps_case(&forms[f]);
    for (int turn = 0; turn < 2; turn++) {
        for (int f = 0; f < N_FORMS; f++)
            for (int64_t i = 0; i < 4 * 32 * 48; i++) {
                const struct matrices *m = &forms[f];
                int64_t number = i / (32 * 48), row = i / 48 % 32, col = i % 48;
                int64_t part_rows = m->by_columns ? 32 : 32 / m->parts, cols = 48;
                int64_t part = row / part_rows;

                if (m->by_columns) {
                    cols /= m->parts;
                    part = col / cols;
                }
                int64_t first = (number / m->n * m->parts + part) * m->n + number % m->n;
                int64_t at_row = first * part_rows + row % part_rows, at_col = col % cols;
                double whole = tensor_get(&c[0]->op.in[0], number * 32 + row, col);

                if (!turn)
                    tensor_set(&c[f]->op.in[0], at_row, at_col, whole);
                else
                    assert_true(tensor_get(&c[f]->op.in[0], at_row, at_col) == whole);
            }
        for (int f = 0; f < N_FORMS && !turn; f++)
            op_case_run(c[f], 1 + f, RUN_FIRST);
    }
    for (int f = 0; f < N_FORMS; f++)
        op_case_destroy(c[f]);
}

/* Zeros stay zeros, a matrix of rank 1 one of rank 1 and length about 1, and NaN all of NaN. */
static void test_matrices_without_rank(void **state)
{
    struct op_case *c =
        steps_case(&(struct matrices){ 8, 20, 3, 1, 0, 1, NEWTON_SCHULZ_ORIGINAL, 5, 1 });
    struct tensor *x = &c->op.in[NEWTON_SCHULZ_X];
    double sum = 0;

    (void)state;
    for (int64_t row = 0; row < 8; row++)
        for (int64_t col = 0; col < 20; col++) {
            tensor_set(x, row, col, 0);
            tensor_set(x, 8 + row, col, (double)((row + 1) * (col - 7)) / 64);
        }
    tensor_set(x, 16, 3, NAN);
    op_case_run(c, 2, RUN_FIRST);
    for (int64_t row = 0; row < 8; row++)
        for (int64_t col = 0; col < 20; col++) {
            assert_true(tensor_get(x, row, col) == 0);
            sum += tensor_get(x, 8 + row, col) * tensor_get(x, 8 + row, col);
            assert_true(isnan(tensor_get(x, 16 + row, col)));
        }
    assert_true(sqrt(sum) > 0.6 && sqrt(sum) < 1.3);
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_momentum_of_a_skipped_step),
        cmocka_unit_test(test_update),
        cmocka_unit_test(test_update_of_a_skipped_step),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_rows_are_orthogonal),
        cmocka_unit_test(test_parts_change_no_bit),
        cmocka_unit_test(test_matrices_without_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
