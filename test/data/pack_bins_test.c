/*
 * pack_bins_test.c - nothing overflows, nothing is lost, and few bins are used
 */
#include "data_fixture.h"

#include "base/rng.h"
#include "data/instruct/pack_bins.h"

#define N_MAX 3000

/* Best fit as it is defined: every bin looked at for every thing. */
static int64_t plain_best_fit(const int32_t *sizes, int n, int32_t room, int32_t *left)
{
    int64_t n_bins = 0;

    for (int32_t size = room; size >= 1; size--)
        for (int i = 0; i < n; i++) {
            int64_t best = -1;

            if (sizes[i] != size)
                continue;
            for (int64_t b = 0; b < n_bins; b++)
                if (left[b] >= size && (best < 0 || left[b] < left[best]))
                    best = b;
            if (best < 0)
                left[best = n_bins++] = room;
            left[best] -= size;
        }
    return n_bins;
}

static void check(const int32_t *sizes, int n, int32_t room)
{
    int32_t *bin_of = calloc(N_MAX, sizeof *bin_of), *left = calloc(N_MAX, sizeof *left);
    int32_t *plain = calloc(N_MAX, sizeof *plain);
    struct err err = { 0 };

    assert_true(bin_of && left && plain);
    int64_t n_bins = pack_bins(sizes, n, room, bin_of, &err);
    assert_int_equal(n_bins, plain_best_fit(sizes, n, room, plain));
    for (int i = 0; i < n; i++) {
        assert_in_range(bin_of[i], 0, n_bins - 1);
        left[bin_of[i]] += sizes[i];
    }
    for (int64_t b = 0; b < n_bins; b++) {
        assert_in_range(left[b], 1, room);
        left[b] = room - left[b];
    }
    /* Which bin is which differs where several are equally full; the rooms left do not. */
    for (int64_t b = 0; b < n_bins; b++) {
        int64_t ours = 0, theirs = 0;

        for (int64_t c = 0; c < n_bins; c++) {
            ours += left[c] == left[b];
            theirs += plain[c] == left[b];
        }
        assert_int_equal(ours, theirs);
    }
    free(bin_of);
    free(left);
    free(plain);
}

static void test_best_fit(void **state)
{
    static const int32_t rooms[] = { 1, 2, 63, 64, 65, 500, 4096, 70000 };
    static const int counts[] = { 1, 2, 17, 700 };
    int32_t sizes[N_MAX];

    (void)state;
    for (size_t r = 0; r < sizeof rooms / sizeof *rooms; r++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            for (int i = 0; i < counts[c]; i++) {
                struct rng_block block = rng_at(r, RNG_TEST, c, (uint64_t)i);

                sizes[i] = 1 + (int32_t)(block.word[0] % (uint32_t)rooms[r]);
            }
            check(sizes, counts[c], rooms[r]);
        }
}

static void test_known(void **state)
{
    static const int32_t sizes[] = { 3, 7, 5, 5, 2, 8 };
    int32_t bin_of[6];
    struct err err = { 0 };

    (void)state;
    assert_int_equal(pack_bins(sizes, 6, 10, bin_of, &err), 3);
    assert_int_equal(bin_of[5], 0); /* 8 + 2, 7 + 3, 5 + 5 */
    assert_int_equal(bin_of[4], 0);
    assert_int_equal(bin_of[1], 1);
    assert_int_equal(bin_of[0], 1);
    assert_int_equal(bin_of[2], 2);
    assert_int_equal(bin_of[3], 2);
    assert_int_equal(pack_bins(sizes, 0, 10, bin_of, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_known),
                                        cmocka_unit_test(test_best_fit) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
