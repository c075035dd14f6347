/*
 * packs_test.c - samples through the loader: nothing is lost, nothing leaks from one to another
 */
#include "data_fixture.h"

#include "data/instruct/packs.h"
#include "data/instruct/samples.h"
#include "data/stream/loader.h"

#define SEQ_LEN 32
#define VOCAB 60000
#define N 200
#define STEPS_MAX 128

static const char *folder;
static char *prefix;
static int lengths[N];

/* Sample i has tokens i * 100 + 0, 1, 2, ...; those that are 2 of 3 are learned. */
static int is_learned(int t)
{
    return t % 3 != 1;
}

/* A file of samples first, first + step, ... below end. */
static char *write_samples(const char *name, int first, int end, int step)
{
    struct indexed_writer writer;
    struct err err = { 0 };
    char *path = fixture_path(folder, name);

    assert_int_equal(samples_writer_open(&writer, path, VOCAB, &err), 0);
    for (int i = first; i < end; i += step) {
        int32_t ids[SEQ_LEN];
        uint8_t learned[SEQ_LEN];

        for (int t = 0; t < lengths[i]; t++) {
            ids[t] = i * 100 + t;
            learned[t] = (uint8_t)is_learned(t);
        }
        assert_int_equal(samples_writer_add(&writer, ids, learned, lengths[i], &err), 0);
    }
    assert_int_equal(indexed_writer_finish(&writer, &err), 0);
    return path;
}

static int set_up(void **state)
{
    (void)state;
    folder = fixture_folder();
    for (int i = 0; i < N; i++)
        lengths[i] = i == 0 ? SEQ_LEN : i == 1 ? 1 : 2 + (i * 7) % 13;
    prefix = write_samples("samples", 0, N, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(folder);
    free(prefix);
    return 0;
}

static struct loader_options base_options(void)
{
    return (struct loader_options){ .samples = prefix,
                                    .vocab_size = VOCAB,
                                    .seq_len = SEQ_LEN,
                                    .global_batch = 8,
                                    .micro_batch = 2,
                                    .dp_size = 1,
                                    .seed = 3,
                                    .n_epochs = 1 };
}

static struct loader *open_loader(const struct loader_options *options)
{
    struct loader *loader = NULL;
    struct err err = { 0 };

    if (loader_open(&loader, options, &err) < 0)
        fail_msg("%s", err.text);
    return loader;
}

/* What was seen of a run: how often each sample, and what its tokens hash to, by sequence
 * number. */
struct tensor_hash {
    int times[N];
    uint64_t sequence[STEPS_MAX * 8];
    int64_t learned[STEPS_MAX], read[STEPS_MAX];
    int64_t n_rows, n_steps;
};

/* One sequence's rows: whole samples one behind the other, then padding. */
static void look_at(struct tensor_hash *seen, const struct micro_batch *b, int s, int64_t step)
{
    const int32_t *tokens = b->tokens + s * b->seq_len, *targets = b->targets + s * b->seq_len;
    const int32_t *positions = b->positions + s * b->seq_len;
    int at = 0;

    while (at < b->seq_len && b->samples[s] >= 0) {
        int i = tokens[at] / 100, n = lengths[i];

        if (tokens[at] % 100 != 0 ||
            (tokens[at] == 0 && positions[at] == 0 && at > 0 && n > b->seq_len - at))
            break;
        if (tokens[at] == 0 && targets[at] == LABEL_IGNORED && tokens[at + 1] == 0)
            break; /* padding */
        seen->times[i]++;
        seen->read[step] += n;
        for (int t = 0; t < n; t++) {
            assert_int_equal(tokens[at + t], i * 100 + t);
            assert_int_equal(positions[at + t], t);
            assert_int_equal(targets[at + t],
                             t + 1 < n && is_learned(t + 1) ? i * 100 + t + 1 : LABEL_IGNORED);
            if (b->starts)
                assert_int_equal(b->starts[s * b->seq_len + at + t], at);
        }
        seen->sequence[b->samples[s]] = seen->sequence[b->samples[s]] * 31 + (uint64_t)i + 1;
        at += n;
        if (!b->starts)
            break;
    }
    for (int start = at; at < b->seq_len; at++) {
        assert_int_equal(tokens[at], 0);
        assert_int_equal(targets[at], LABEL_IGNORED);
        if (b->starts)
            assert_int_equal(b->starts[s * b->seq_len + at], start);
    }
}

/* All batches of one rank. */
static void run_rank(const struct loader_options *options, struct tensor_hash *seen)
{
    struct loader *loader = open_loader(options);
    int n_micro_batches = options->global_batch / (options->micro_batch * options->dp_size);

    seen->n_steps = loader_n_steps(loader);
    assert_in_range(seen->n_steps, 1, STEPS_MAX);
    for (int64_t step = options->first_step; step < seen->n_steps; step++)
        for (int m = 0; m < n_micro_batches; m++) {
            struct micro_batch batch;
            struct err err;

            assert_int_equal(loader_next(loader, &batch, &err), 0);
            assert_int_equal(batch.seq_len, loader_length(loader, step, m));
            assert_true(!batch.starts == !options->packing);
            for (int s = 0; s < options->micro_batch; s++) {
                if (batch.samples[s] >= 0)
                    assert_int_equal(batch.samples[s] / options->global_batch, step);
                look_at(seen, &batch, s, step);
            }
            for (int r = 0; r < options->micro_batch * batch.seq_len; r++)
                seen->learned[step] += batch.targets[r] != LABEL_IGNORED;
            seen->n_rows += options->micro_batch * batch.seq_len;
        }
    if (options->dp_rank + 1 == options->dp_size && options->first_step == 0)
        for (int64_t step = 0; step < seen->n_steps; step++) {
            assert_int_equal(loader_step_tokens(loader, step), seen->learned[step]);
            assert_int_equal(loader_step_read(loader, step), seen->read[step]);
        }
    loader_close(loader);
}

static void run_all(struct loader_options options, int dp_size, struct tensor_hash *seen)
{
    *seen = (struct tensor_hash){ 0 };
    options.dp_size = dp_size;
    for (options.dp_rank = 0; options.dp_rank < dp_size; options.dp_rank++)
        run_rank(&options, seen);
}

static void same_sequences(const struct tensor_hash *a, const struct tensor_hash *b)
{
    assert_int_equal(a->n_steps, b->n_steps);
    assert_memory_equal(a->sequence, b->sequence, sizeof a->sequence);
    assert_memory_equal(a->learned, b->learned, sizeof a->learned);
}

static void test_singles(void **state)
{
    struct loader_options options = base_options();
    struct tensor_hash one, two, other;

    (void)state;
    run_all(options, 1, &one);
    assert_int_equal(one.n_steps, N / 8);
    for (int i = 0; i < N; i++)
        assert_int_equal(one.times[i], 1);
    run_all(options, 4, &two);
    same_sequences(&one, &two);
    options.seed = 4;
    run_all(options, 1, &other);
    assert_memory_not_equal(one.sequence, other.sequence, sizeof one.sequence);
    options.n_epochs = 2;
    run_all(options, 2, &two);
    assert_int_equal(two.n_steps, N / 4);
    assert_memory_equal(two.sequence, other.sequence, N * sizeof *two.sequence);
    assert_memory_not_equal(two.sequence + N, other.sequence, N * sizeof *two.sequence);
    for (int i = 0; i < N; i++)
        assert_int_equal(two.times[i], 2);
}

static void test_packing(void **state)
{
    struct loader_options options = base_options();
    struct tensor_hash one, two;
    int64_t learned = 0, tokens = 0;

    (void)state;
    options.packing = 1;
    run_all(options, 1, &one);
    for (int i = 0; i < N; i++) {
        assert_in_range(one.times[i], 1, 2); /* the last step goes on into the next epoch */
        tokens += lengths[i];
        for (int t = 1; t < lengths[i]; t++)
            learned += is_learned(t);
    }
    run_all(options, 2, &two);
    same_sequences(&one, &two);
    struct loader *loader = open_loader(&options);
    struct loader_usage usage = loader_usage(loader);
    assert_int_equal(usage.n_samples, N);
    assert_int_equal(usage.n_tokens, tokens);
    assert_int_equal(usage.n_learned, learned);
    assert_int_equal(usage.n_rows, usage.n_sequences * SEQ_LEN);
    assert_true((double)usage.n_tokens / (double)usage.n_rows > 0.97);
    loader_close(loader);
}

/* Lengths change what is padded and who computes it, but not what a step learns. */
static void test_lengths(void **state)
{
    static const int allowed[] = { 6, 12, SEQ_LEN };
    struct loader_options options = base_options();
    struct tensor_hash plain, one, two;

    (void)state;
    run_all(options, 1, &plain);
    options.lengths = allowed;
    options.n_lengths = 3;
    run_all(options, 1, &one);
    same_sequences(&plain, &one);
    assert_true(one.n_rows < plain.n_rows / 2);
    run_all(options, 2, &two);
    same_sequences(&plain, &two);
    struct loader *loader = open_loader(&options);
    assert_int_equal(loader_usage(loader).n_rows, one.n_rows);
    loader_close(loader);
    options.even_steps = 1;
    run_all(options, 2, &one);
    same_sequences(&plain, &one);
    assert_true(one.n_rows > two.n_rows);
    loader = open_loader(&options);
    for (int64_t step = 0; step < 5; step++)
        for (int m = 1; m < 4; m++)
            assert_int_equal(loader_length(loader, step, m), loader_length(loader, step, 0));
    loader_close(loader);
}

static void test_resume(void **state)
{
    struct loader_options options = base_options();
    struct tensor_hash whole, part = { 0 };

    (void)state;
    options.packing = 1;
    options.n_epochs = 3;
    run_all(options, 1, &whole);
    options.first_step = 5;
    run_rank(&options, &part);
    assert_int_equal(part.sequence[5 * 8 - 1], 0);
    assert_memory_equal(part.sequence + 5 * 8, whole.sequence + 5 * 8,
                        sizeof whole.sequence - 5 * 8 * sizeof *whole.sequence);
}

/* Two files, of the N / 2 even samples and of the odd ones below 40, by 3 to 1. */
static void test_blend(void **state)
{
    static const struct loader_dataset datasets[] = { { "even", 3 }, { "odd", 1 } };
    struct loader_options options = base_options();
    char *mix = fixture_path(folder, "mix");
    struct tensor_hash one, two, part = { 0 };
    int n_odd = 0;

    (void)state;
    free(write_samples("mix-0", 0, N, 2));
    free(write_samples("mix-1", 1, 40, 2));
    options.samples = mix;
    options.blends_samples = true;
    options.datasets = datasets;
    options.n_datasets = 2;
    options.n_epochs = 4; /* of 120 sequences: 360 even ones, 120 odd ones */
    run_all(options, 1, &one);
    assert_int_equal(one.n_steps, 60);
    for (int k = 0; k < 480; k++) {
        n_odd += one.sequence[k] % 2 == 0; /* the sample's number and 1 */
        assert_true(4 * n_odd > k + 1 - 4 && 4 * n_odd < k + 1 + 4);
    }
    for (int i = 0; i < N; i++)
        assert_in_range(one.times[i],
                        i % 2 == 0 ? 3
                        : i < 40   ? 6
                                   : 0,
                        i % 2 == 0 ? 4
                        : i < 40   ? 6
                                   : 0);
    run_all(options, 4, &two);
    same_sequences(&one, &two);
    options.first_step = 33;
    run_rank(&options, &part);
    assert_memory_equal(part.sequence + 33 * 8, one.sequence + 33 * 8, 27 * 8 * sizeof(uint64_t));
    options.first_step = 0;
    options.packing = 1;
    run_all(options, 1, &one);
    run_all(options, 2, &two);
    same_sequences(&one, &two);
    options.packing = 0;
    options.held_out = 1;
    run_all(options, 2, &one);
    for (int i = 0; i < N; i++)
        assert_int_equal(one.times[i], i % 2 == 0 || i < 40);
    free(mix);
}

/* Both sides of the split together are everything, each sample on one side. */
static void test_split(void **state)
{
    static const int allowed[] = { 6, 12, SEQ_LEN };

    (void)state;
    for (int packing = 0; packing < 2; packing++) {
        struct loader_options options = base_options();
        struct tensor_hash train, held, again;
        int n_held = 0;

        options.packing = packing;
        options.split = 0.1;
        options.global_batch = 2;
        run_all(options, 1, &train);
        options.held_out = 1;
        if (!packing) {
            options.lengths = allowed;
            options.n_lengths = 3;
        }
        run_all(options, 1, &held);
        for (int i = 0; i < N; i++) {
            assert_true(!train.times[i] != !held.times[i]);
            assert_in_range(held.times[i], 0, 1);
            n_held += held.times[i];
        }
        assert_int_equal(n_held, N / 10);
        options.seed = 99;
        run_all(options, 1, &again);
        same_sequences(&held, &again);
        options.split = 0;
        options.global_batch = 8;
        run_all(options, 2, &held);
        for (int i = 0; i < N; i++)
            assert_int_equal(held.times[i], 1);
    }
}

static void test_fingerprint(void **state)
{
    struct loader_options options = base_options(), other = options;
    struct loader *a = open_loader(&options), *b;

    (void)state;
    other.dp_size = 2;
    other.dp_rank = 1;
    b = open_loader(&other);
    assert_true(loader_fingerprint(a) == loader_fingerprint(b));
    loader_close(b);
    other.packing = 1;
    b = open_loader(&other);
    assert_true(loader_fingerprint(a) != loader_fingerprint(b));
    loader_close(b);
    loader_close(a);
}

static void test_refusals(void **state)
{
    struct loader_options options = base_options();
    struct loader *loader = NULL;
    struct err err = { 0 };

    (void)state;
    options.seq_len = SEQ_LEN - 1;
    assert_int_equal(loader_open(&loader, &options, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "sample 0 has 32 tokens, not 1..31"));
    options = base_options();
    options.vocab_size = 500;
    assert_int_equal(loader_open(&loader, &options, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "has a token that is not in the model's vocabulary of 500"));
    options = base_options();
    options.split = 0.7;
    assert_int_equal(loader_open(&loader, &options, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_singles),     cmocka_unit_test(test_packing),
        cmocka_unit_test(test_lengths),     cmocka_unit_test(test_resume),
        cmocka_unit_test(test_blend),       cmocka_unit_test(test_split),
        cmocka_unit_test(test_fingerprint), cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
