/*
 * sampler_test.c - epochs, strata and tails over many sizes
 */
#include "data_fixture.h"

#include "data/stream/sampler.h"

static const char *folder;

static int set_up(void **state)
{
    (void)state;
    folder = fixture_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(folder);
    return 0;
}

static void open_counting(struct indexed *indexed, int n_tokens)
{
    char *prefix = fixture_counting(folder, "counting", 0, n_tokens, 1000, 60000);
    struct err err = { 0 };

    assert_int_equal(indexed_open(indexed, prefix, &err), 0);
    free(prefix);
}

static int init(struct sampler *sampler, const struct indexed *indexed, int seq_len, double split,
                int held_out)
{
    const double weight = 1;
    struct sampler_options options = { .datasets = &indexed,
                                       .weights = &weight,
                                       .n_datasets = 1,
                                       .seq_len = seq_len,
                                       .split = split,
                                       .held_out = held_out };
    struct err err = { 0 };

    return sampler_init(sampler, &options, &err);
}

/* Training and held-out windows together are all whole windows, each once, at any share. */
static void test_split_is_a_partition(void **state)
{
    static const double splits[] = { 0, 0.01, 0.1, 1.0 / 3, 0.5 };
    static unsigned char seen[1000];
    static struct sampler train, held_out;

    (void)state;
    for (int n_tokens = 9; n_tokens < 3000; n_tokens += 1 + n_tokens / 5)
        for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
            struct indexed indexed;
            int n_windows = (n_tokens - 1) / 4;

            open_counting(&indexed, n_tokens);
            assert_int_equal(init(&train, &indexed, 4, splits[s], 0), 0);
            memset(seen, 0, sizeof seen);
            for (int64_t k = 0; k < train.n_samples; k++)
                seen[sampler_find(&train, k).first / 4]++;
            if (splits[s] > 0) {
                int64_t last = -1;

                assert_int_equal(init(&held_out, &indexed, 4, splits[s], 1), 0);
                assert_true((double)held_out.n_samples <= splits[s] * n_windows + 1);
                assert_true((double)held_out.n_samples >= splits[s] * n_windows - 1);
                for (int64_t k = 0; k < held_out.n_samples; k++) {
                    int64_t first = sampler_find(&held_out, k).first;

                    assert_true(first > last);
                    last = first;
                    seen[first / 4]++;
                }
                sampler_release(&held_out);
            }
            for (int i = 0; i < n_windows; i++)
                assert_int_equal(seen[i], 1);
            sampler_release(&train);
            indexed_close(&indexed);
        }
}

static void test_every_token_evaluated_once(void **state)
{
    static struct sampler sampler;

    (void)state;
    for (int n_tokens = 2; n_tokens < 40; n_tokens++) {
        struct indexed indexed;
        int64_t next = 0;

        open_counting(&indexed, n_tokens);
        assert_int_equal(init(&sampler, &indexed, 8, 0, 1), 0);
        assert_int_equal(sampler.n_tokens, n_tokens - 1);
        for (int64_t k = 0; k < sampler.n_samples; k++) {
            struct sample_place place = sampler_find(&sampler, k);

            assert_int_equal(place.first, next);
            assert_in_range(place.n_targets, 1, 8);
            assert_int_equal(sampler_count_targets(&sampler, k, 1), place.n_targets);
            next += place.n_targets;
        }
        assert_int_equal(next, n_tokens - 1);
        assert_int_equal(sampler_count_targets(&sampler, 0, 100), n_tokens - 1);
        assert_int_equal(sampler_count_targets(&sampler, sampler.n_samples, 5), 0);
        sampler_release(&sampler);
        indexed_close(&indexed);
    }
}

static void test_too_short(void **state)
{
    static struct sampler sampler;
    struct indexed indexed;

    (void)state;
    open_counting(&indexed, 8);
    assert_int_equal(init(&sampler, &indexed, 8, 0, 0), -1);
    assert_int_equal(init(&sampler, &indexed, 7, 0, 0), 0);
    sampler_release(&sampler);
    assert_int_equal(init(&sampler, &indexed, 7, 0.5, 0), -1); /* one window can't be two */
    assert_int_equal(init(&sampler, &indexed, 7, -0.1, 0), -1);
    indexed_close(&indexed);
    open_counting(&indexed, 1);
    assert_int_equal(init(&sampler, &indexed, 7, 0, 1), -1);
    indexed_close(&indexed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_is_a_partition),
        cmocka_unit_test(test_every_token_evaluated_once),
        cmocka_unit_test(test_too_short),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
