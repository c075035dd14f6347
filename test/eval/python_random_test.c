/*
 * python_random_test.c - what CPython 3.11's random.Random gives for the same calls
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdlib.h>

#include "eval/python_random.h"

static void check_words(uint64_t seed, const uint32_t *expected, int n)
{
    struct python_random r;

    python_random_seed(&r, seed);
    for (int i = 0; i < n; i++)
        assert_int_equal(python_random_bits(&r, 32), expected[i]);
}

static void words(void **state)
{
    static const uint32_t small[] = { 4150886329, 3342196574, 1892932127, 501869158 };
    static const uint32_t zero[] = { 3626764237 }, wide[] = { 2166296868 };
    struct python_random r;

    (void)state;
    check_words(1234, small, 4);
    check_words(0, zero, 1);
    check_words((UINT64_C(1) << 40) + 5, wide, 1);
    python_random_seed(&r, 1234); /* beyond the first refill */
    for (int i = 0; i < 700; i++)
        python_random_bits(&r, 32);
    assert_int_equal(python_random_bits(&r, 32), 566242753);
    assert_int_equal(python_random_bits(&r, 7), 103);
}

static void check_sample(struct python_random *r, uint32_t n, uint32_t k, const uint32_t *expected)
{
    uint32_t chosen[32], *pool = malloc(n * sizeof *pool);

    assert_non_null(pool);
    python_random_sample(r, n, k, chosen, pool);
    for (uint32_t i = 0; i < k; i++)
        assert_int_equal(chosen[i], expected[i]);
    free(pool);
}

/* GSM8K's shots as lm-evaluation-harness draws them, then lists on both sides of the limit. */
static void samples(void **state)
{
    static const uint32_t gsm8k[3][5] = { { 6374, 3610, 957, 61, 742 },
                                          { 7462, 6610, 4769, 286, 5501 },
                                          { 5677, 687, 806, 6279, 2905 } };
    static const uint32_t few[] = { 3, 0, 8, 7, 16 }, eight[] = { 0, 20, 54, 43, 35, 19, 27, 13 };
    static const uint32_t many[] = { 17, 94, 13, 86, 98, 69, 11, 75, 54, 4,  3,  93, 27,
                                     29, 64, 77, 89, 71, 25, 95, 53, 28, 57, 92, 35 };
    struct python_random r;

    (void)state;
    python_random_seed(&r, 1234);
    for (int i = 0; i < 3; i++)
        check_sample(&r, 7473, 5, gsm8k[i]);
    python_random_seed(&r, 42);
    check_sample(&r, 20, 5, few);
    check_sample(&r, 100, 25, many);
    check_sample(&r, 86, 8, eight);
}

static void below(void **state)
{
    struct python_random r;

    (void)state;
    python_random_seed(&r, (UINT64_C(1) << 40) + 5);
    python_random_bits(&r, 32);
    assert_int_equal(python_random_below(&r, 1000000), 542031);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),
        cmocka_unit_test(samples),
        cmocka_unit_test(below),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
