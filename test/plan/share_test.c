/*
 * share_test.c - micro-batches of ranks of different speed against all ways there are
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/share.h"

enum { N_RANKS_MAX = 5, N_MAX = 12 };

static uint64_t dice;

static int roll(int n)
{
    dice = dice * 6364136223846793005U + 1442695040888963407U;
    return (int)((dice >> 33) % (uint64_t)n);
}

/* The least longest time of ranks `rank`.. with n micro-batches left. */
static int64_t try_all(const struct share_pace *paces, int n_ranks, int rank, int n)
{
    int64_t best = INT64_MAX;

    if (rank == n_ranks)
        return n ? INT64_MAX : 0;
    for (int m = 1; m <= n; m++) {
        int64_t own = paces[rank].ramp + m * paces[rank].ns;
        int64_t others = try_all(paces, n_ranks, rank + 1, n - m);
        int64_t longest = own > others ? own : others;

        best = longest < best ? longest : best;
    }
    return best;
}

static void test_as_good_as_the_best_of_all(void **state)
{
    int n_with_ramp = 0;

    (void)state;
    for (int seed = 0; seed < 500; seed++) {
        dice = (uint64_t)seed;
        struct share_pace paces[N_RANKS_MAX];
        int counts[N_RANKS_MAX], n_ranks = 1 + roll(N_RANKS_MAX), sum = 0;
        int n = n_ranks + roll(N_MAX + 1 - n_ranks), fastest = 1 + roll(20);
        int64_t longest = 0;
        bool has_ramp = roll(2);

        /* Ranks of two kinds are often alike to the nanosecond. */
        for (int i = 0; i < n_ranks; i++)
            paces[i] = (struct share_pace){ has_ramp ? roll(60) : 0,
                                            roll(3) ? fastest * (1 + roll(3)) : 1 + roll(100) };
        int64_t found = share_micro_batches(counts, paces, n_ranks, n);
        for (int i = 0; i < n_ranks; i++) {
            int64_t own = paces[i].ramp + counts[i] * paces[i].ns;

            assert_true(counts[i] >= 1);
            sum += counts[i];
            longest = own > longest ? own : longest;
        }
        assert_int_equal(sum, n);
        assert_true(found == longest);
        assert_true(found == try_all(paces, n_ranks, 0, n));
        n_with_ramp += has_ramp;
    }
    assert_in_range(n_with_ramp, 100, 400);
}

static void test_each_rank_needs_one(void **state)
{
    const struct share_pace paces[] = { { 0, 100 }, { 0, 1 }, { 0, 1 } };
    int counts[3];

    (void)state;
    assert_int_equal(share_micro_batches(counts, paces, 3, 2), -1);
    assert_int_equal(share_micro_batches(counts, paces, 3, 4), 100);
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[1] + counts[2], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_good_as_the_best_of_all),
        cmocka_unit_test(test_each_rank_needs_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
