/*
 * pairs_test.c - the rows by which the law's products are thinned have every pair of settings
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/pairs.h"

static struct pairs pairs;

static int has_pair(int f, int a, int g, int b)
{
    for (int i = 0; i < pairs.n_rows; i++)
        if (pairs.level[i][f] == a && pairs.level[i][g] == b)
            return 1;
    return 0;
}

static void all_pairs_are_there(void)
{
    for (int f = 0; f < pairs.n_factors; f++)
        for (int g = f + 1; g < pairs.n_factors; g++)
            for (int a = 0; a < pairs.levels[f]; a++)
                for (int b = 0; b < pairs.levels[g]; b++)
                    if (!has_pair(f, a, g, b))
                        fail_msg("factor %d at %d never meets factor %d at %d", f, a, g, b);
}

/* Of all shapes of up to five factors of one to four settings. */
static void every_pair(void **state)
{
    int levels[5];

    (void)state;
    unsetenv("LMTRAIN_TEST_WHOLE");
    for (int n = 2; n <= 5; n++)
        for (int shape = 0; shape < 1 << (2 * n); shape++) {
            int product = 1;

            for (int f = 0; f < n; f++)
                product *= levels[f] = 1 + (shape >> (2 * f)) % 4;
            pairs_build(&pairs, levels, n);
            assert_in_range(pairs.n_rows, 1, product);
            all_pairs_are_there();
        }
}

static void few_rows(void **state)
{
    static const int levels[] = { 8, 2, 2, 2, 3, 3 };

    (void)state;
    unsetenv("LMTRAIN_TEST_WHOLE");
    pairs_build(&pairs, levels, 6);
    all_pairs_are_there();
    assert_in_range(pairs.n_rows, 24, 26);
}

static void whole_products(void **state)
{
    static const int levels[] = { 3, 1, 4 };

    (void)state;
    setenv("LMTRAIN_TEST_WHOLE", "1", 1);
    pairs_build(&pairs, levels, 3);
    unsetenv("LMTRAIN_TEST_WHOLE");
    assert_int_equal(pairs.n_rows, 12);
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < i; k++)
            assert_true(memcmp(pairs.level[i], pairs.level[k], sizeof pairs.level[i]) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair),
        cmocka_unit_test(few_rows),
        cmocka_unit_test(whole_products),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
