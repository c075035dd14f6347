/*
 * blend_test.c - shares within a sample of the weights, at every length
 */
#include "data_fixture.h"

#include <math.h>

#include "base/rng.h"
#include "data/stream/blend.h"

static void check_shares(const double *weights, int n, int64_t n_samples)
{
    static struct blend blend;
    struct err err = { 0 };
    double sum = 0;
    int64_t given[16] = { 0 }, number;

    for (int i = 0; i < n; i++)
        sum += weights[i];
    assert_int_equal(blend_init(&blend, weights, n, &err), 0);
    for (int64_t k = 0; k < n_samples; k++) {
        int dataset = blend_next(&blend, &number);

        assert_int_equal(number, given[dataset]);
        given[dataset]++;
        for (int i = 0; i < n; i++)
            assert_true(fabs((double)given[i] - weights[i] / sum * (double)(k + 1)) < 1.0);
    }
}

static void test_shares(void **state)
{
    double weights[16];

    (void)state;
    for (int trial = 0; trial < 60; trial++) {
        int n = 1 + trial % 16;

        for (int i = 0; i < n; i++) {
            struct rng_block r = rng_at(5, RNG_TEST, (uint64_t)trial, (uint64_t)i);

            /* Over six orders of magnitude, and often equal. */
            weights[i] = trial % 3 == 0 ? 1.0 + (double)(r.word[0] % 2)
                                        : exp(-14.0 * (double)rng_uniform(r.word[0]));
        }
        check_shares(weights, n, 2000);
    }
}

static void test_seek_equals_walking(void **state)
{
    static struct blend walked, sought;
    const double weights[] = { 0.5, 0.3, 0.15, 0.05 };
    const int64_t places[] = { 0, 1, 2, 17, 999, 3, 500 };
    struct err err = { 0 };
    int64_t number;

    (void)state;
    assert_int_equal(blend_init(&sought, weights, 4, &err), 0);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        assert_int_equal(blend_init(&walked, weights, 4, &err), 0);
        while (walked.k < places[i])
            blend_next(&walked, &number);
        blend_seek(&sought, places[i]);
        assert_memory_equal(&sought, &walked, sizeof walked);
    }
}

/* Weights over four orders of magnitude, equal ones, few and many: a jump ends in the state that
 * walking reaches, whatever state it starts from. */
static void test_seeks_of_any_weights(void **state)
{
    static struct blend walked, sought;
    double weights[40];
    struct err err = { 0 };
    int64_t number;

    (void)state;
    for (int trial = 0; trial < 80; trial++) {
        int n = 1 + (trial * 7) % 40;

        for (int i = 0; i < n; i++) {
            struct rng_block r = rng_at(6, RNG_TEST, (uint64_t)trial, (uint64_t)i);

            weights[i] = trial % 3 == 0   ? 1.0 + (double)(r.word[0] % 3)
                         : trial % 3 == 1 ? exp(-9.0 * (double)rng_uniform(r.word[0]))
                                          : 0.5 + (double)rng_uniform(r.word[0]);
        }
        assert_int_equal(blend_init(&walked, weights, n, &err), 0);
        assert_int_equal(blend_init(&sought, weights, n, &err), 0);
        for (int64_t k = 0; k < 40000; k++) {
            if (k % 1777 == 0 || k > 39990) {
                blend_seek(&sought, k % 2 ? 39999 - k / 3 : 0);
                blend_seek(&sought, k);
                assert_memory_equal(&sought, &walked, sizeof walked);
            }
            blend_next(&walked, &number);
        }
    }
}

static void test_far_seek(void **state)
{
    static struct blend blend;
    const double weights[] = { 3, 1 };
    int64_t period = (int64_t)1 << 31, number;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(blend_init(&blend, weights, 2, &err), 0);
    blend_seek(&blend, 5 * period + 4);
    assert_int_equal(blend.given[0], 5 * (period / 4 * 3) + 3);
    assert_int_equal(blend.given[1], 5 * (period / 4) + 1);
    assert_int_equal(blend_init(&blend, weights, 1, &err), 0);
    blend_seek(&blend, 123456789012);
    assert_int_equal(blend_next(&blend, &number), 0);
    assert_int_equal(number, 123456789012);
}

static void test_refusals(void **state)
{
    static struct blend blend;
    struct err err = { 0 };
    const double bad[][2] = { { 1, 0 }, { 1, -1 }, { 1, NAN }, { 1, INFINITY }, { 1e308, 1e308 } };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.code = ERR_NONE;
        assert_int_equal(blend_init(&blend, bad[i], 2, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
    }
    assert_int_equal(blend_init(&blend, bad[0], BLEND_DATASETS_MAX + 1, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_seek_equals_walking),
        cmocka_unit_test(test_seeks_of_any_weights),
        cmocka_unit_test(test_far_seek),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
