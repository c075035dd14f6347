#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"

static struct op_case *dropout_case(enum op_kind kind, int sequences, int seq_len, int64_t d,
                                    enum dtype dtype, double p)
{
    struct op_attributes a = { .seq_len = seq_len, .p = p, .seed = 42, .rng_site = 7 };
    struct op_case *c = op_case_create(kind, &a);

    op_case_input(c, 0, sequences * seq_len, d, dtype, 1);
    op_case_input(c, 1, sequences, 1, DTYPE_I64, 0);
    op_case_output(c, 0, sequences * seq_len, d, dtype);
    for (int s = 0; s < sequences; s++)
        tensor_set(&c->op.in[1], s, 0, 1000000007.0 * (s + 1));
    return c;
}

static void test_dropout(void **state)
{
    static const int64_t widths[] = { 1, 30, 257, 17001 };

    (void)state;
    for (int kind = OP_DROPOUT; kind <= OP_DROPOUT_GRAD; kind++)
        for (int w = 0; w < 4; w++)
            for (int i_act = 0; i_act < N_ACTS; i_act++) {
                struct op_case *c =
                    dropout_case((enum op_kind)kind, 3, 5, widths[w], act_at(i_act), 0.25);

                op_case_check(c, 1e-7);
                op_case_destroy(c);
            }
}

static double dropped_share(const struct op_case *c)
{
    const struct tensor *y = &c->op.out[0];
    double n = 0;

    for (int64_t row = 0; row < y->rows; row++)
        for (int64_t col = 0; col < y->cols; col++)
            n += tensor_get(y, row, col) == 0;
    return n / (double)(y->rows * y->cols);
}

static int differ(const struct op_case *a, const struct op_case *b)
{
    for (int64_t row = 0; row < a->op.out[0].rows; row++)
        for (int64_t col = 0; col < a->op.out[0].cols; col++)
            if (tensor_get(&a->op.out[0], row, col) != tensor_get(&b->op.out[0], row, col))
                return 1;
    return 0;
}

/* The share is p, and seed, place and sample each give another mask. */
static void test_masks(void **state)
{
    struct op_case *a = dropout_case(OP_DROPOUT, 4, 16, 256, DTYPE_F32, 0.1);
    struct op_case *b = dropout_case(OP_DROPOUT, 4, 16, 256, DTYPE_F32, 0.1);

    (void)state;
    op_case_run(a, 2, RUN_FIRST);
    op_case_run(b, 2, RUN_FIRST);
    assert_false(differ(a, b));
    assert_true(fabs(dropped_share(a) - 0.1) < 0.01);
    b->op.attributes.seed++;
    op_case_run(b, 2, RUN_FIRST);
    assert_true(differ(a, b));
    b->op.attributes = a->op.attributes;
    b->op.attributes.rng_site++;
    op_case_run(b, 2, RUN_FIRST);
    assert_true(differ(a, b));
    b->op.attributes = a->op.attributes;
    tensor_set(&b->op.in[1], 3, 0, 5);
    op_case_run(b, 2, RUN_FIRST);
    assert_true(differ(a, b));
    op_case_destroy(a);
    op_case_destroy(b);
}

/* Rows begin .. begin + rows - 1 of the whole, to the bit; they need not be whole sequences. */
static void check_part(const struct op_case *whole, int64_t begin, int64_t rows)
{
    struct op_case *c = op_case_create(whole->op.kind, &whole->op.attributes);
    const struct tensor *x = &whole->op.in[0], *sample = &whole->op.in[1], *y = &whole->op.out[0];

    op_case_input(c, 0, rows, x->cols, x->dtype, 1);
    op_case_input(c, 1, sample->rows, 1, DTYPE_I64, 0);
    op_case_input(c, 2, 1, 1, DTYPE_I32, 0);
    op_case_output(c, 0, rows, x->cols, x->dtype);
    tensor_set(&c->op.in[2], 0, 0, (double)begin);
    for (int64_t s = 0; s < sample->rows; s++)
        tensor_set(&c->op.in[1], s, 0, tensor_get(sample, s, 0));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < x->cols; col++)
            tensor_set(&c->op.in[0], row, col, tensor_get(x, begin + row, col));
    op_case_check(c, 1e-7);
    op_case_run(c, 3, RUN_FIRST);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < x->cols; col++)
            if (tensor_get(&c->op.out[0], row, col) != tensor_get(y, begin + row, col))
                fail_msg("row %lld from %lld differs from the whole's", (long long)row,
                         (long long)begin);
    op_case_destroy(c);
}

static void test_parts_of_rows(void **state)
{
    (void)state;
    for (int kind = OP_DROPOUT; kind <= OP_DROPOUT_GRAD; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct op_case *whole = dropout_case((enum op_kind)kind, 4, 6, 30, act_at(i_act), 0.4);

            op_case_run(whole, 2, RUN_FIRST);
            for (int n = 1; n <= 4; n++)
                for (int part = 0; part < n; part++)
                    check_part(whole, 24 / n * part, 24 / n);
            check_part(whole, 5, 9);
            check_part(whole, 23, 1);
            op_case_destroy(whole);
        }
}

/*
 * Rows by their numbers: n of them from the begin-th number on, each to the bit the whole's of its
 * number. by: whether begin is an offset, or of columns, of which all but begin are left.
 */
enum begins { BEGINS_NOT, BEGINS_ROW, BEGINS_COL };
static void check_numbered(const struct op_case *whole, const int *numbers, int n_numbers,
                           int begin, int n, enum begins begins)
{
    struct op_attributes a = whole->op.attributes;
    const struct tensor *x = &whole->op.in[0], *sample = &whole->op.in[1];
    int row = begins == BEGINS_ROW ? begin : 0, col = begins == BEGINS_COL ? begin : 0;

    a.by_columns = begins == BEGINS_COL;
    struct op_case *c = op_case_create(whole->op.kind, &a);
    op_case_input(c, DROPOUT_X, n, x->cols - col, x->dtype, 1);
    op_case_input(c, DROPOUT_SAMPLE, sample->rows, 1, DTYPE_I64, 0);
    if (begins != BEGINS_NOT) {
        op_case_input(c, DROPOUT_OFFSET, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[DROPOUT_OFFSET], 0, 0, begin);
    }
    op_case_input(c, DROPOUT_ROW, n_numbers, 1, DTYPE_I32, 0);
    op_case_output(c, DROPOUT_Y, n, x->cols - col, x->dtype);
    for (int i = 0; i < n_numbers; i++)
        tensor_set(&c->op.in[DROPOUT_ROW], i, 0, numbers[i]);
    for (int64_t s = 0; s < sample->rows; s++)
        tensor_set(&c->op.in[DROPOUT_SAMPLE], s, 0, tensor_get(sample, s, 0));
    for (int i = 0; i < n; i++)
        for (int64_t j = col; j < x->cols; j++)
            tensor_set(&c->op.in[DROPOUT_X], i, j - col, tensor_get(x, numbers[row + i], j));
    op_case_check(c, 1e-7);
    op_case_run(c, 3, RUN_FIRST);
    for (int i = 0; i < n; i++)
        for (int64_t j = col; j < x->cols; j++)
            if (tensor_get(&c->op.out[DROPOUT_Y], i, j - col) !=
                tensor_get(&whole->op.out[DROPOUT_Y], numbers[row + i], j))
                fail_msg("row %d, number %d, differs from the whole's", i, numbers[row + i]);
    op_case_destroy(c);
}

/* All rows in another order, and a part of them, which ends within sequences. */
static void test_numbered_rows(void **state)
{
    enum { SEQUENCES = 4, SEQ_LEN = 6, ROWS = SEQUENCES * SEQ_LEN };
    int numbers[ROWS];

    (void)state;
    for (int i = 0; i < ROWS; i++)
        numbers[i] = (7 * i + 3) % ROWS;
    for (int kind = OP_DROPOUT; kind <= OP_DROPOUT_GRAD; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct op_case *whole =
                dropout_case((enum op_kind)kind, SEQUENCES, SEQ_LEN, 30, act_at(i_act), 0.4);

            op_case_run(whole, 2, RUN_FIRST);
            for (int n = 1; n <= ROWS; n += n < 3 ? 1 : 7) {
                check_numbered(whole, numbers, n, 0, n, BEGINS_NOT);
                check_numbered(whole, numbers, n, 5, n, BEGINS_COL);
                check_numbered(whole, numbers, n, n / 3, n - n / 3, BEGINS_ROW);
            }
            op_case_destroy(whole);
        }
}

static void test_p_zero_copies(void **state)
{
    struct op_case *c = dropout_case(OP_DROPOUT, 1, 3, 10, DTYPE_F32, 0);

    (void)state;
    op_case_run(c, 1, RUN_FIRST);
    for (int row = 0; row < 3; row++)
        for (int col = 0; col < 10; col++)
            assert_true(tensor_get(&c->op.in[0], row, col) == tensor_get(&c->op.out[0], row, col));
    op_case_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout),       cmocka_unit_test(test_masks),
        cmocka_unit_test(test_parts_of_rows), cmocka_unit_test(test_numbered_rows),
        cmocka_unit_test(test_p_zero_copies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
