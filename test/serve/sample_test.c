/*
 * sample_test.c - draws follow the distribution that temperature and cuts leave
 *
 * Draws are by a fixed seed, so that nothing here is left to luck: the bounds of chi-square are
 * those that a right sampler exceeds once in a million seeds.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <string.h>

#include "serve/sample.h"

#define N 8
#define N_DRAWS 40000

static const float skewed[N] = { 0.3f, 2.0f, -1.0f, 0.0f, 1.5f, -3.0f, 1.0f, 0.5f };

static void count(const struct sampling *sampler, const float *logits, int n, int64_t *counts)
{
    int32_t order[N];

    memset(counts, 0, sizeof *counts * (size_t)n);
    for (int i = 0; i < N_DRAWS; i++)
        counts[sample_token(sampler, logits, n, (uint64_t)i % 5, i / 5, order)]++;
}

/* Pearson's, against softmax(logits / temperature) of those that kept says. */
static double chi_square(const int64_t *counts, const float *logits, int n, double temperature,
                         const int *kept)
{
    double total = 0, sum = 0;

    for (int i = 0; i < n; i++)
        total += kept[i] ? exp((double)logits[i] / temperature) : 0;
    for (int i = 0; i < n; i++) {
        if (!kept[i]) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        double expected = N_DRAWS * exp((double)logits[i] / temperature) / total;
        sum += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    }
    return sum;
}

static void draws_follow_the_softmax(void **state)
{
    static const int all[N] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const double temperatures[] = { 0.5, 1.0, 1.7 };
    int64_t counts[N];

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct sampling sampler = { .temperature = temperatures[i], .top_p = 1, .seed = 3 };

        count(&sampler, skewed, N, counts);
        assert_true(chi_square(counts, skewed, N, temperatures[i], all) < 40.5); /* 7 degrees */
        /* A wrong temperature would be noticed. */
        assert_true(chi_square(counts, skewed, N, temperatures[i] * 1.1, all) > 40.5);
    }
}

static void top_k_keeps_the_likeliest(void **state)
{
    static const int kept[N] = { 0, 1, 0, 0, 1, 0, 1, 0 };
    struct sampling sampler = { .temperature = 1.3, .top_k = 3, .top_p = 1, .seed = 4 };
    int64_t counts[N];

    (void)state;
    count(&sampler, skewed, N, counts);
    assert_true(chi_square(counts, skewed, N, 1.3, kept) < 27.6); /* 2 degrees */
    sampler.top_k = N + 5;
    count(&sampler, skewed, N, counts);
    for (int i = 0; i < N; i++)
        assert_true(counts[i] > 0);
}

/* Which of n tokens are ever drawn, as bits. */
static unsigned drawn(struct sampling sampler, const float *logits, int n)
{
    int64_t counts[N];
    unsigned bits = 0;

    sampler.seed = 5;
    count(&sampler, logits, n, counts);
    for (int i = 0; i < n; i++)
        bits |= (unsigned)(counts[i] > 0) << i;
    return bits;
}

static void ties_go_to_the_lower_id(void **state)
{
    static const float tied[5] = { 1, 2, 2, 2, 0 };
    int32_t order[5];

    (void)state;
    assert_int_equal(drawn((struct sampling){ 1, 1, 1, 0 }, tied, 5), 0x2);
    assert_int_equal(drawn((struct sampling){ 1, 2, 1, 0 }, tied, 5), 0x6);
    assert_int_equal(drawn((struct sampling){ 1, 3, 1, 0 }, tied, 5), 0xe);
    assert_int_equal(drawn((struct sampling){ 1, 4, 1, 0 }, tied, 5), 0xf);
    assert_int_equal(sample_token(&(struct sampling){ .top_p = 1 }, tied, 5, 0, 0, order), 1);
}

/* Probabilities 0.5, 0.3, 0.15, 0.05, in another order. */
static void top_p_keeps_the_fewest_that_reach_it(void **state)
{
    const float logits[4] = { logf(0.15f), logf(0.5f), logf(0.05f), logf(0.3f) };

    (void)state;
    assert_int_equal(drawn((struct sampling){ 1, 0, 1e-6, 0 }, logits, 4), 0x2);
    assert_int_equal(drawn((struct sampling){ 1, 0, 0.49, 0 }, logits, 4), 0x2);
    assert_int_equal(drawn((struct sampling){ 1, 0, 0.51, 0 }, logits, 4), 0xa);
    assert_int_equal(drawn((struct sampling){ 1, 0, 0.79, 0 }, logits, 4), 0xa);
    assert_int_equal(drawn((struct sampling){ 1, 0, 0.81, 0 }, logits, 4), 0xb);
    assert_int_equal(drawn((struct sampling){ 1, 0, 0.96, 0 }, logits, 4), 0xf);
    assert_int_equal(drawn((struct sampling){ 1, 0, 1, 0 }, logits, 4), 0xf);
    /* Of what top_k leaves: 0.5 is 0.625 of the first two. */
    assert_int_equal(drawn((struct sampling){ 1, 2, 0.6, 0 }, logits, 4), 0x2);
    assert_int_equal(drawn((struct sampling){ 1, 2, 0.64, 0 }, logits, 4), 0xa);
    /* After the temperature: at 0.5 the first has 0.25 of 0.365, 0.685. */
    assert_int_equal(drawn((struct sampling){ 0.5, 0, 0.67, 0 }, logits, 4), 0x2);
    assert_int_equal(drawn((struct sampling){ 0.5, 0, 0.70, 0 }, logits, 4), 0xa);
}

static void the_nucleus_keeps_its_proportions(void **state)
{
    static const int kept[N] = { 0, 1, 0, 0, 1, 0, 0, 0 };
    struct sampling sampler = { .temperature = 1, .top_p = 0.6, .seed = 6 };
    int64_t counts[N];

    (void)state;
    count(&sampler, skewed, N, counts);
    assert_true(chi_square(counts, skewed, N, 1, kept) < 23.9); /* 1 degree */
}

static void greedy_needs_no_luck(void **state)
{
    int32_t order[N];

    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct sampling greedy = { .seed = seed, .top_p = 1 };
        struct sampling first = { .temperature = 5, .top_k = 1, .top_p = 1, .seed = seed };

        assert_int_equal(sample_token(&greedy, skewed, N, seed, 0, order), 1);
        assert_int_equal(sample_token(&first, skewed, N, seed, 0, order), 1);
    }
}

/* A draw is named by seed, sequence and position, and by nothing else. */
static void a_draw_has_a_name(void **state)
{
    struct sampling sampler = { .temperature = 2, .top_p = 1, .seed = 9 }, other = sampler;
    int32_t order[N], dirty[N];
    int by_seed = 0, by_sequence = 0, by_position = 0;

    (void)state;
    other.seed = 10;
    memset(dirty, 0x55, sizeof dirty);
    for (int i = 0; i < 200; i++) {
        int32_t token = sample_token(&sampler, skewed, N, 7, i, order);

        assert_int_equal(sample_token(&sampler, skewed, N, 7, i, dirty), token);
        by_seed += sample_token(&other, skewed, N, 7, i, order) != token;
        by_sequence += sample_token(&sampler, skewed, N, 8, i, order) != token;
        by_position += sample_token(&sampler, skewed, N, 7, i + 1, order) != token;
    }
    assert_true(by_seed > 100);
    assert_true(by_sequence > 100);
    assert_true(by_position > 100);
}

/* What has no probability is never drawn; large logits don't overflow; one token is no choice. */
static void extremes(void **state)
{
    const float masked[4] = { -INFINITY, 3e4f, -INFINITY, 3e4f };
    const float one = -7;
    int32_t order[4];

    (void)state;
    assert_int_equal(drawn((struct sampling){ 1, 0, 1, 0 }, masked, 4), 0xa);
    assert_int_equal(drawn((struct sampling){ 0.01, 3, 0.999, 0 }, masked, 4), 0xa);
    assert_int_equal(
        sample_token(&(struct sampling){ .temperature = 1, .top_p = 1 }, &one, 1, 0, 0, order), 0);
}

/* Each token that was there once, however often it was. */
static void penalties_change_what_was_there(void **state)
{
    static const int32_t seen[] = { 1, 3, 1, 1, 99 };
    float logits[4] = { 2, 3, -1, -2 };
    int32_t scratch[4];

    (void)state;
    memset(scratch, 0x55, sizeof scratch);
    sample_penalize(logits, 4, 1, seen, 5, scratch);
    assert_true(logits[1] == 3);
    sample_penalize(logits, 4, 2, seen, 5, scratch);
    assert_true(logits[0] == 2 && logits[1] == 1.5f && logits[2] == -1 && logits[3] == -4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(top_k_keeps_the_likeliest),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(top_p_keeps_the_fewest_that_reach_it),
        cmocka_unit_test(the_nucleus_keeps_its_proportions),
        cmocka_unit_test(greedy_needs_no_luck),
        cmocka_unit_test(a_draw_has_a_name),
        cmocka_unit_test(penalties_change_what_was_there),
        cmocka_unit_test(extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
