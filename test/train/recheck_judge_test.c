/*
 * recheck_judge_test.c - majorities, the first difference, and which is nearer to the origin
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "train/recheck_judge.h"

enum { N_OPS = 5, N_VOTES_MAX = 5 };

static struct recheck_pair pairs[N_VOTES_MAX][N_OPS];
static struct recheck_vote votes[N_VOTES_MAX];

/* Votes of ranks 10, 11, ... that all agree. */
static void agree(void)
{
    for (int v = 0; v < N_VOTES_MAX; v++) {
        for (int op = 0; op < N_OPS; op++)
            pairs[v][op] = (struct recheck_pair){ (uint64_t)op, 100 + (uint64_t)op };
        votes[v] = (struct recheck_vote){ 10 + v, pairs[v] };
    }
}

static void test_equal(void **state)
{
    struct recheck_difference d;

    (void)state;
    agree();
    for (int n = 1; n <= N_VOTES_MAX; n++)
        assert_false(recheck_difference(&d, votes, n, N_OPS));
}

/* Each vote of three and more is found wrong where it differs first. */
static void test_majority(void **state)
{
    struct recheck_difference d;

    (void)state;
    for (int n = 3; n <= N_VOTES_MAX; n++)
        for (int wrong = 0; wrong < n; wrong++)
            for (int op = 0; op < N_OPS; op++) {
                agree();
                for (int after = op; after < N_OPS; after++)
                    pairs[wrong][after].out ^= 1;
                if (op + 1 < N_OPS)
                    pairs[wrong][op + 1].in ^= 1;
                assert_true(recheck_difference(&d, votes, n, N_OPS));
                assert_int_equal(d.op, op);
                assert_true(d.is_computed && d.is_decided);
                assert_int_equal(d.wrong, 10 + wrong);
                assert_int_equal(d.n_wrong, 1);
            }
}

/* What is received comes before what is computed of it. */
static void test_received(void **state)
{
    struct recheck_difference d;

    (void)state;
    agree();
    pairs[1][2].in ^= 1;
    pairs[1][2].out ^= 1;
    assert_true(recheck_difference(&d, votes, 3, N_OPS));
    assert_int_equal(d.op, 2);
    assert_false(d.is_computed);
    assert_true(d.is_decided);
    assert_int_equal(d.wrong, 11);
}

/* Two ranks with two votes each. */
static void test_undecided(void **state)
{
    struct recheck_difference d;

    (void)state;
    agree();
    votes[2].rank = 10;
    votes[3].rank = 11;
    pairs[1][3].out = pairs[3][3].out = 7;
    assert_true(recheck_difference(&d, votes, 4, N_OPS));
    assert_false(d.is_decided);
    assert_int_equal(d.wrong, 11);
    assert_int_equal(d.n_wrong, 2);
    pairs[3][3].out = 103;
    assert_true(recheck_difference(&d, votes, 4, N_OPS));
    assert_true(d.is_decided);
    assert_int_equal(d.wrong, 11);
}

static void test_nearer(void **state)
{
    const struct recheck_difference by_merit[] = {
        { .op = 4, .is_computed = 1, .is_decided = 1 },
        { .op = 2, .is_computed = 1 },
        { .op = 1, .is_decided = 1 },
        { .op = 3, .is_decided = 1 },
        { .op = 0 },
    };
    int n = sizeof by_merit / sizeof *by_merit;

    (void)state;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++)
            assert_int_equal(recheck_is_nearer(&by_merit[a], &by_merit[b]), a < b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),    cmocka_unit_test(test_majority),
        cmocka_unit_test(test_received), cmocka_unit_test(test_undecided),
        cmocka_unit_test(test_nearer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
