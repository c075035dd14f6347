/*
 * run_table_test.c - columns by name, and that thinning keeps extremes, gaps and real rows
 */
#include "report_fixture.h"

#include <math.h>

#include "report/run_table.h"

static void test_columns(void **state)
{
    struct run_table table;

    (void)state;
    run_table_init(&table, "kjv", &fixture_arena);
    for (int i = 0; i < 1000; i++) {
        run_table_add_row(&table);
        run_table_set(&table, "step", i);
        if (i % 3 == 1)
            run_table_set(&table, "loss", 1000 - i);
        if (i == 500)
            run_table_set(&table, "late", INFINITY);
    }
    const double *step = run_table_find(&table, "step"), *loss = run_table_find(&table, "loss"),
                 *late = run_table_find(&table, "late");
    assert_string_equal(table.name, "kjv");
    assert_int_equal(table.n_rows, 1000);
    assert_null(run_table_find(&table, "none"));
    for (int i = 0; i < 1000; i++) {
        assert_true(same_double(step[i], i));
        assert_true(i % 3 == 1 ? loss[i] == 1000 - i : isnan(loss[i]));
        assert_true(isnan(late[i]));
    }
    assert_true(same_double(run_table_last(&table, "loss"), 3));
    assert_true(isnan(run_table_last(&table, "late")));
    assert_true(isnan(run_table_last(&table, "none")));
    assert_true(same_double(run_table_median(&table, "step"), 499.5));
    assert_true(same_double(run_table_median(&table, "loss"), 501));
    assert_true(isnan(run_table_median(&table, "late")));
}

/* A table of a falling noisy loss with one spike down in lr, one up in loss, and one gap. */
static void make_long(struct run_table *table, int n)
{
    run_table_init(table, "", &fixture_arena);
    for (int i = 0; i < n; i++) {
        double noise = (double)((i * 7919) % 1009) / 1009;

        run_table_add_row(table);
        run_table_set(table, "step", i + 1);
        if (i != n / 3)
            run_table_set(table, "loss", i == n / 2 ? 99 : 2 + 6.0 / (1 + i * 1e-3) + noise);
        run_table_set(table, "lr", i == n / 5 ? -1 : 1e-3);
        run_table_set(table, "same", 5);
    }
}

static bool has_row(const int *rows, int n, int row)
{
    for (int i = 0; i < n; i++)
        if (rows[i] == row)
            return true;
    return false;
}

static void test_thin(void **state)
{
    static const int sizes[] = { 5000, 20011, 100000 }, most[] = { 2, 100, 2000 };

    (void)state;
    for (int s = 0; s < 3; s++)
        for (int m = 0; m < 3; m++) {
            struct run_table table;
            int *rows, n = sizes[s];

            make_long(&table, n);
            int n_kept = run_table_thin(&table, most[m], &rows);
            assert_in_range(n_kept, 2, most[m] < 20 ? 20 : most[m]);
            assert_int_equal(rows[0], 0);
            assert_int_equal(rows[n_kept - 1], n - 1);
            for (int i = 1; i < n_kept; i++)
                assert_true(rows[i] > rows[i - 1]);
            assert_true(has_row(rows, n_kept, n / 2));
            assert_true(has_row(rows, n_kept, n / 5));
            assert_true(has_row(rows, n_kept, n / 3));
            assert_true(most[m] < 2000 || n_kept > 1000);
        }
}

/* Near each row is one that is drawn and as low, and one as high. */
static void test_extremes(void **state)
{
    enum { N = 30000, NEAR = 200 };
    struct run_table table;
    int *rows, first = 0;

    (void)state;
    make_long(&table, N);
    int n_kept = run_table_thin(&table, 1500, &rows);
    const double *loss = run_table_find(&table, "loss");
    for (int i = 0; i < N; i++) {
        bool is_low = isnan(loss[i]), is_high = isnan(loss[i]);

        while (rows[first] < i - NEAR)
            first++;
        for (int k = first; k < n_kept && rows[k] <= i + NEAR; k++) {
            is_low |= loss[rows[k]] <= loss[i];
            is_high |= loss[rows[k]] >= loss[i];
        }
        assert_true(is_low);
        assert_true(is_high);
    }
}

static void test_short(void **state)
{
    struct run_table table;
    int *rows;

    (void)state;
    run_table_init(&table, "", &fixture_arena);
    assert_int_equal(run_table_thin(&table, 2, &rows), 0);
    make_long(&table, 50);
    assert_int_equal(run_table_thin(&table, 50, &rows), 50);
    for (int i = 0; i < 50; i++)
        assert_int_equal(rows[i], i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_columns, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_thin, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_extremes, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_short, fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
