/*
 * permute_test.c - a bijection at every size, and a different one for every key
 */
#include "data_fixture.h"

#include "data/stream/permute.h"

static void test_bijection(void **state)
{
    unsigned char seen[700];

    (void)state;
    for (int64_t n = 1; n <= 700; n += 1 + n / 9) {
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < n; i++) {
            struct permutation p = { .seed = 3, .epoch = n, .n = n };
            int64_t j = permute(&p, i);

            assert_in_range(j, 0, n - 1);
            assert_int_equal(seen[j]++, 0);
        }
    }
}

static int count_equal(const struct permutation *p, const struct permutation *q)
{
    int equal = 0;

    for (int64_t i = 0; i < p->n; i++)
        equal += permute(p, i) == permute(q, i);
    return equal;
}

static void test_keys_differ(void **state)
{
    struct permutation p = { .seed = 1, .n = 1000 }, q;

    (void)state;
    q = p;
    assert_int_equal(count_equal(&p, &q), 1000);
    q.seed = 2;
    assert_true(count_equal(&p, &q) < 12); /* one is expected by chance */
    q = p;
    q.epoch = 1;
    assert_true(count_equal(&p, &q) < 12);
    q = p;
    q.dataset = 1;
    assert_true(count_equal(&p, &q) < 12);
}

/* Where items go is even: over 4000 shuffles of 8, each item comes to each place about 500 times.
 */
static void test_even(void **state)
{
    int count[8][8] = { 0 };

    (void)state;
    for (int epoch = 0; epoch < 4000; epoch++)
        for (int i = 0; i < 8; i++) {
            struct permutation p = { .seed = 11, .epoch = epoch, .n = 8 };

            count[i][permute(&p, i)]++;
        }
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            assert_in_range(count[i][j], 390, 610); /* 5 standard deviations */
}

static void test_huge(void **state)
{
    struct permutation p = { .seed = 1, .n = ((int64_t)1 << 62) - 5 };

    (void)state;
    for (int64_t i = 0; i < 100; i++)
        assert_true(permute(&p, i) < p.n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijection),
        cmocka_unit_test(test_keys_differ),
        cmocka_unit_test(test_even),
        cmocka_unit_test(test_huge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
