/*
 * loader_test.c - the order of samples does not depend on layout or on stops
 */
#include "data_fixture.h"

#include "data/stream/loader.h"

#define SEQ_LEN 8
#define VOCAB 60000

static const char *folder;
static char *a, *b; /* 1000 and 333 tokens: 124 windows and 41 */

static int set_up(void **state)
{
    (void)state;
    folder = fixture_folder();
    a = fixture_counting(folder, "a", 0, 1000, 37, VOCAB);
    b = fixture_counting(folder, "b", 20000, 333, 50, VOCAB);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(folder);
    free(a);
    free(b);
    return 0;
}

static struct loader_options options_for(const struct loader_dataset *datasets, int n)
{
    return (struct loader_options){ .datasets = datasets,
                                    .n_datasets = n,
                                    .vocab_size = VOCAB,
                                    .seq_len = SEQ_LEN,
                                    .global_batch = 16,
                                    .micro_batch = 2,
                                    .dp_size = 1,
                                    .seed = 7,
                                    .n_steps = 24 };
}

static struct loader *open_loader(const struct loader_options *options)
{
    struct loader *loader = NULL;
    struct err err = { 0 };

    if (loader_open(&loader, options, &err) < 0)
        fail_msg("%s", err.text);
    return loader;
}

/* Read all of one rank's batches; first_tokens[k] becomes sample k's first token. */
static void collect(const struct loader_options *options, int32_t *first_tokens)
{
    struct loader *loader = open_loader(options);
    int n_micro_batches = options->global_batch / (options->micro_batch * options->dp_size);

    for (int64_t step = options->first_step; step < options->n_steps; step++)
        for (int m = 0; m < n_micro_batches; m++) {
            struct micro_batch batch;
            struct err err;

            assert_int_equal(loader_next(loader, &batch, &err), 0);
            for (int s = 0; s < options->micro_batch; s++) {
                int64_t k = step * options->global_batch +
                            (m * options->dp_size + options->dp_rank) * options->micro_batch + s;
                int32_t first = batch.tokens[s * SEQ_LEN];

                assert_int_equal(batch.samples[s], k);
                for (int i = 0; i < SEQ_LEN; i++) {
                    assert_int_equal(batch.tokens[s * SEQ_LEN + i], first + i);
                    assert_int_equal(batch.targets[s * SEQ_LEN + i], first + i + 1);
                    assert_int_equal(batch.positions[s * SEQ_LEN + i], i);
                }
                assert_int_equal(first_tokens[k], -1);
                first_tokens[k] = first;
            }
        }
    loader_close(loader);
}

static void clear(int32_t *first_tokens, int n)
{
    for (int i = 0; i < n; i++)
        first_tokens[i] = -1;
}

static void test_every_sample_once_per_epoch(void **state)
{
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1);
    int32_t first[16 * 24];
    int differ = 0;

    (void)state;
    clear(first, 16 * 24);
    collect(&options, first);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[124] = { 0 };

        for (int i = 0; i < 124; i++) {
            int32_t token = first[epoch * 124 + i];

            assert_int_equal(token % SEQ_LEN, 0);
            assert_int_equal(seen[token / SEQ_LEN]++, 0);
            differ += epoch > 0 && token != first[i];
        }
    }
    assert_true(differ > 200); /* epochs are shuffled anew */
}

static void test_layout_and_resume_change_nothing(void **state)
{
    struct loader_dataset datasets[] = { { a, 0.7 }, { b, 0.3 } };
    struct loader_options options = options_for(datasets, 2);
    int32_t reference[16 * 24], first[16 * 24];

    (void)state;
    options.split = 0.1;
    clear(reference, 16 * 24);
    collect(&options, reference);
    for (int dp = 1; dp <= 8; dp *= 2)
        for (int micro_batch = 1; micro_batch * dp <= 16; micro_batch *= 2)
            for (int resume = 0; resume <= 24; resume += 6) {
                clear(first, 16 * 24);
                memcpy(first, reference, sizeof *first * (size_t)resume * 16);
                options.dp_size = dp;
                options.micro_batch = micro_batch;
                options.first_step = resume;
                for (options.dp_rank = 0; options.dp_rank < dp; options.dp_rank++)
                    collect(&options, first);
                assert_memory_equal(first, reference, sizeof first);
            }
}

/* Each rank's part of each micro-batch, where they are of given sizes, follows the one before. */
static void test_given_sizes(void **state)
{
    static const int sizes[] = { 1, 2, 4, 1 };
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1);
    int32_t reference[16 * 24];

    (void)state;
    clear(reference, 16 * 24);
    collect(&options, reference);
    options.dp_size = 2;
    options.micro_batch = 4;
    options.sizes = sizes;
    options.n_sizes = 4;
    for (options.dp_rank = 0; options.dp_rank < 2; options.dp_rank++)
        for (options.first_step = 0; options.first_step < 6; options.first_step += 5) {
            struct loader *loader = open_loader(&options);
            int64_t k = options.first_step * 16;

            for (int n = 0; n < 40; n++) {
                int size = sizes[n % 4];
                struct micro_batch batch;
                struct err err;

                assert_int_equal(loader_next(loader, &batch, &err), 0);
                for (int s = 0; s < size; s++) {
                    int64_t wanted = k + options.dp_rank * size + s;

                    assert_int_equal(batch.samples[s], wanted);
                    assert_int_equal(batch.tokens[s * SEQ_LEN], reference[wanted]);
                    assert_int_equal(batch.positions[s * SEQ_LEN + 1], 1);
                }
                k += 2 * size;
            }
            loader_close(loader);
        }
}

/* The micro-batches of a step are dealt in turn to the ranks that still take one. */
static void test_ranks_with_different_numbers(void **state)
{
    static const int counts[] = { 4, 1, 3 };
    static const int turns[][4] = { { 0, 3, 5, 7 }, { 1 }, { 2, 4, 6 } };
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1);
    int32_t reference[16 * 24];

    (void)state;
    clear(reference, 16 * 24);
    collect(&options, reference);
    options.dp_size = 3;
    options.micro_batch = 2;
    options.counts = counts;
    for (options.dp_rank = 0; options.dp_rank < 3; options.dp_rank++)
        for (options.first_step = 0; options.first_step < 6; options.first_step += 5) {
            struct loader *loader = open_loader(&options);
            int n = counts[options.dp_rank];

            for (int i = 0; i < 3 * n; i++) {
                int64_t k = (options.first_step + i / n) * 16 + 2 * turns[options.dp_rank][i % n];
                struct micro_batch batch;
                struct err err;

                assert_int_equal(loader_next(loader, &batch, &err), 0);
                for (int q = 0; q < 2; q++) {
                    assert_int_equal(batch.samples[q], k + q);
                    assert_int_equal(batch.tokens[q * SEQ_LEN], reference[k + q]);
                }
            }
            loader_close(loader);
        }
}

static void test_seed_changes_the_order(void **state)
{
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1);
    int32_t one[16 * 24], other[16 * 24];
    int differ = 0;

    (void)state;
    clear(one, 16 * 24);
    clear(other, 16 * 24);
    collect(&options, one);
    options.seed = 8;
    collect(&options, other);
    for (int i = 0; i < 16 * 24; i++)
        differ += one[i] != other[i];
    assert_true(differ > 300);
}

/* Read a held-out loader to its end; marks the positions learned. Returns how many targets were. */
static int64_t evaluate(struct loader *loader, const struct loader_options *options, int *learned)
{
    int64_t n_steps =
        (loader_n_samples(loader) + options->global_batch - 1) / options->global_batch;
    int n_micro_batches = options->global_batch / (options->micro_batch * options->dp_size);
    int64_t total = 0;

    for (int64_t step = 0; step < n_steps; step++) {
        int64_t step_tokens = 0;

        for (int m = 0; m < n_micro_batches; m++) {
            struct micro_batch batch;
            struct err err;

            assert_int_equal(loader_next(loader, &batch, &err), 0);
            for (int row = 0; row < options->micro_batch * SEQ_LEN; row++) {
                if (batch.targets[row] == LABEL_IGNORED)
                    continue;
                assert_true(batch.samples[row / SEQ_LEN] >= 0);
                assert_int_equal(batch.targets[row], batch.tokens[row] + 1);
                assert_int_equal(learned[batch.targets[row]]++, 0);
                step_tokens++;
            }
        }
        if (options->dp_size == 1)
            assert_int_equal(step_tokens, loader_step_tokens(loader, step));
        total += step_tokens;
    }
    return total;
}

static void test_held_out_reads_all_once_and_again(void **state)
{
    struct loader_dataset datasets[] = { { a, 1 }, { b, 1 } };
    struct loader_options options = options_for(datasets, 2);
    int *learned = calloc(VOCAB, sizeof *learned);

    (void)state;
    assert_non_null(learned);
    options.held_out = 1;
    options.dp_size = 2;
    int64_t total = 0;
    for (options.dp_rank = 0; options.dp_rank < 2; options.dp_rank++) {
        struct loader *loader = open_loader(&options);

        assert_int_equal(loader_n_tokens(loader), 999 + 332);
        assert_int_equal(loader_n_samples(loader), 125 + 42);
        total += evaluate(loader, &options, learned);
        loader_close(loader);
    }
    assert_int_equal(total, 999 + 332);
    options.dp_size = 1;
    options.dp_rank = 0;
    struct loader *loader = open_loader(&options);
    for (int round = 0; round < 3; round++) {
        memset(learned, 0, VOCAB * sizeof *learned);
        assert_int_equal(evaluate(loader, &options, learned), 999 + 332);
        loader_rewind(loader);
    }
    loader_close(loader);
    free(learned);
}

/*
 * A rewind may come while the thread fills a slot: that must not be taken for the first batch, in
 * whose slot there may be a later one by then. (There are 8 slots.)
 */
static void test_rewind_at_any_moment(void **state)
{
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1);

    (void)state;
    options.held_out = 1;
    struct loader *loader = open_loader(&options);
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < 8 + round % 8; i++) {
            struct micro_batch batch;
            struct err err;

            assert_int_equal(loader_next(loader, &batch, &err), 0);
            assert_int_equal(batch.samples[0], 2 * i);
            assert_int_equal(batch.tokens[0], 2 * i * SEQ_LEN);
        }
        loader_rewind(loader);
    }
    loader_close(loader);
}

static void test_split_shares_no_window(void **state)
{
    struct loader_dataset datasets[] = { { a, 1 }, { b, 1 } };
    struct loader_options options = options_for(datasets, 2);
    int *learned = calloc(VOCAB, sizeof *learned);
    int32_t first[16 * 24];

    (void)state;
    assert_non_null(learned);
    options.split = 0.1;
    clear(first, 16 * 24);
    collect(&options, first);
    options.held_out = 1;
    options.seed = 99; /* what is held out must not hang on it */
    struct loader *loader = open_loader(&options);
    assert_int_equal(loader_n_samples(loader), 12 + 4);
    assert_int_equal(evaluate(loader, &options, learned), (12 + 4) * SEQ_LEN);
    loader_close(loader);
    for (int i = 0; i < 16 * 24; i++)
        for (int t = 1; t <= SEQ_LEN; t++)
            assert_int_equal(learned[first[i] + t], 0);
    free(learned);
}

static void test_token_outside_vocabulary(void **state)
{
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1);
    struct loader *loader;
    struct micro_batch batch;
    struct err err = { 0 };
    int rc = 0;

    (void)state;
    options.vocab_size = 900;
    loader = open_loader(&options);
    for (int i = 0; i < 24 * 8 && rc == 0; i++)
        rc = loader_next(loader, &batch, &err);
    assert_int_equal(rc, -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "a.bin: token 9"));
    assert_non_null(strstr(err.text, "at position 9"));
    assert_int_equal(loader_next(loader, &batch, &err), -1);
    loader_close(loader);
}

/* A failure stays, with nothing written, until a rewind. */
static void test_rewind_after_a_failure(void **state)
{
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1);
    struct micro_batch batch = { 0 };
    struct err err = { 0 }, again = { 0 };

    (void)state;
    options.held_out = true;
    options.vocab_size = 900;
    struct loader *loader = open_loader(&options);
    for (int round = 0; round < 3; round++) {
        const int32_t *tokens = NULL;
        int n = 0;

        for (; loader_next(loader, &batch, &err) == 0; tokens = batch.tokens)
            assert_int_equal(batch.samples[0], 2 * n++);
        assert_int_equal(n, 56);
        assert_int_equal(loader_next(loader, &batch, &again), -1);
        assert_ptr_equal(batch.tokens, tokens);
        assert_string_equal(err.text, again.text);
        loader_rewind(loader);
    }
    loader_close(loader);
}

static void expect_error(const struct loader_options *options, enum err_code code, const char *text)
{
    struct loader *loader = NULL;
    struct err err = { 0 };

    assert_int_equal(loader_open(&loader, options, &err), -1);
    assert_null(loader);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
}

static void test_refusals(void **state)
{
    struct loader_dataset dataset = { a, 1 };
    struct loader_options options = options_for(&dataset, 1), o;

    (void)state;
    o = options;
    o.global_batch = 15;
    expect_error(&o, ERR_CONFIG, "not a multiple");
    o = options;
    o.sizes = (const int[]){ 1, 2 };
    o.n_sizes = 2;
    expect_error(&o, ERR_CONFIG,
                 "global_batch 16 is not the sum 3 of micro-batches times dp_size 1");
    o = options;
    o.counts = (const int[]){ 15 };
    o.micro_batch = 1;
    expect_error(
        &o, ERR_CONFIG,
        "global_batch 16 is not the sum 15 of all ranks' micro-batches times micro_batch 1");
    o = options;
    o.split = 0.6;
    expect_error(&o, ERR_CONFIG, "split is 0.6");
    o = options;
    o.n_datasets = 0;
    expect_error(&o, ERR_CONFIG, "0 datasets");
    o = options;
    o.seq_len = 1000;
    expect_error(&o, ERR_DATA, "too few");
    o = options;
    o.seq_len = 600;
    o.split = 0.1;
    expect_error(&o, ERR_DATA, "too few");
    o = options;
    o.seq_len = INT32_MAX;
    expect_error(&o, ERR_CONFIG, "rows");
    dataset.weight = 0;
    expect_error(&options, ERR_CONFIG, "weight 0");
    dataset = (struct loader_dataset){ "/nonexistent/prefix", 1 };
    expect_error(&options, ERR_DATA, "/nonexistent/prefix.idx");
}

static uint64_t fingerprint_of(const struct loader_options *options)
{
    struct loader *loader = open_loader(options);
    uint64_t fingerprint = loader_fingerprint(loader);

    loader_close(loader);
    return fingerprint;
}

static void test_fingerprint(void **state)
{
    struct loader_dataset datasets[] = { { a, 0.7 }, { b, 0.3 } };
    struct loader_options options = options_for(datasets, 2), o;
    uint64_t reference = fingerprint_of(&options);

    (void)state;
    o = options;
    o.micro_batch = 4;
    o.dp_size = 2;
    o.first_step = 3;
    assert_true(fingerprint_of(&o) == reference);
    o = options;
    o.seed++;
    assert_true(fingerprint_of(&o) != reference);
    o = options;
    o.seq_len++;
    assert_true(fingerprint_of(&o) != reference);
    o = options;
    o.split = 0.2;
    assert_true(fingerprint_of(&o) != reference);
    datasets[0].weight = 0.8;
    assert_true(fingerprint_of(&options) != reference);
    datasets[0] = datasets[1];
    assert_true(fingerprint_of(&options) != reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sample_once_per_epoch),
        cmocka_unit_test(test_layout_and_resume_change_nothing),
        cmocka_unit_test(test_given_sizes),
        cmocka_unit_test(test_ranks_with_different_numbers),
        cmocka_unit_test(test_seed_changes_the_order),
        cmocka_unit_test(test_held_out_reads_all_once_and_again),
        cmocka_unit_test(test_rewind_at_any_moment),
        cmocka_unit_test(test_split_shares_no_window),
        cmocka_unit_test(test_token_outside_vocabulary),
        cmocka_unit_test(test_rewind_after_a_failure),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_fingerprint),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
