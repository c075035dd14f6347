/*
 * loader_cut_test.c - each rank of a cut sequence gets its rows of what one rank gets
 */
#include "data_fixture.h"

#include "base/num.h"
#include "data/instruct/samples.h"
#include "data/stream/loader.h"
#include "layout/context.h"

#define SEQ_LEN 96
#define SHORT 48 /* a multiple of every cut's unit, as SEQ_LEN is */
#define RANKS_MAX 8
#define VOCAB 60000
#define N_SAMPLES 120

static const char *folder;
static char *tokens, *samples;

/* Documents of 1 to SEQ_LEN tokens, many of which are longer than half a sequence. */
static int document_length(int i)
{
    return i % 5 == 0 ? SEQ_LEN - i % 7 : i % 5 == 1 ? SEQ_LEN / 2 + i % 11 : 1 + i * 7 % 23;
}

static void write_samples(void)
{
    struct indexed_writer writer;
    struct err err = { 0 };

    samples = fixture_path(folder, "samples");
    assert_int_equal(samples_writer_open(&writer, samples, VOCAB, &err), 0);
    for (int i = 0; i < N_SAMPLES; i++) {
        int32_t ids[SEQ_LEN];
        uint8_t learned[SEQ_LEN];

        for (int t = 0; t < document_length(i); t++) {
            ids[t] = i * 100 + t;
            learned[t] = t % 3 != 1;
        }
        assert_int_equal(samples_writer_add(&writer, ids, learned, document_length(i), &err), 0);
    }
    assert_int_equal(indexed_writer_finish(&writer, &err), 0);
}

static int set_up(void **state)
{
    (void)state;
    folder = fixture_folder();
    tokens = fixture_counting(folder, "tokens", 0, 5000, 37, VOCAB);
    write_samples();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_remove(folder);
    free(tokens);
    free(samples);
    return 0;
}

static struct loader *open_loader(const struct loader_options *options)
{
    struct loader *loader = NULL;
    struct err err = { 0 };

    if (loader_open(&loader, options, &err) < 0)
        fail_msg("%s", err.text);
    return loader;
}

/* ---- the plain permutation ---- */

/* Rows of the sequence that are the pair of a cp rank, one chunk after the other. */
static int pair_of(struct context_cut cut, int seq_len, int cp_rank, int *rows)
{
    int chunks[2] = { cp_rank, 2 * cut.keys - 1 - cp_rank }, n = 0;

    for (int c = 0; c < 2; c++)
        for (int i = 0; i < seq_len / (2 * cut.keys); i++)
            rows[n++] = chunks[c] * (seq_len / (2 * cut.keys)) + i;
    return n;
}

static void check_local(const struct loader_options *o, const struct micro_batch *whole,
                        const struct micro_batch *b, int n_sequences)
{
    int pair[SEQ_LEN], n_pair = pair_of(o->cut, whole->seq_len, o->cp_rank, pair);
    int n = n_pair / o->cut.ulysses;

    for (int row = 0; row < n_sequences * n; row++) {
        int from = row / n * whole->seq_len + pair[o->ulysses_rank * n + row % n];

        assert_int_equal(b->tokens[row], whole->tokens[from]);
        assert_int_equal(b->targets[row], whole->targets[from]);
        assert_int_equal(b->positions[row], whole->positions[from]);
        assert_int_equal(b->rows[row], from);
    }
}

static void check_attention(const struct loader_options *o, const struct micro_batch *whole,
                            const struct micro_batch *b, int n_sequences)
{
    int pair[SEQ_LEN], n = pair_of(o->cut, whole->seq_len, o->cp_rank, pair);

    assert_true(!b->starts == !whole->starts);
    assert_true(!b->last == (o->cut.keys == 1));
    for (int row = 0; row < n_sequences * n; row++) {
        int from = row / n * whole->seq_len + pair[row % n];

        assert_int_equal(b->attention_positions[row], whole->positions[from]);
        if (b->starts)
            assert_int_equal(b->starts[row], whole->starts[from]);
        if (b->last)
            assert_int_equal(b->last[row], pair[row % n]);
    }
}

/* Of each query over all steps: each key that it sees once, the others never. Adds the queries and
 * keys of a step to *seen. */
static void check_ring(const struct loader_options *o, const struct micro_batch *b, int n_sequences,
                       int64_t *seen)
{
    int pair[SEQ_LEN], n = pair_of(o->cut, b->seq_len, o->cp_rank, pair);
    int32_t before[RANKS_MAX][2];

    for (int row = 0; row < n_sequences * n; row++) {
        int n_of[SEQ_LEN] = { 0 }, query = pair[row % n];
        int first = max_int(b->starts ? b->starts[row] : 0,
                            o->ring_window > 0 ? query - o->ring_window + 1 : 0);

        for (int step = 0; step < o->cut.keys; step++) {
            int keys[SEQ_LEN], of = (o->cp_rank - step + o->cut.keys) % o->cut.keys;
            int32_t from = b->ring_first[step * n_sequences * n + row];
            int32_t to = b->ring_last[step * n_sequences * n + row];

            pair_of(o->cut, b->seq_len, of, keys);
            assert_in_range(from, 0, n);
            assert_true(from <= to + 1 && to < n);
            if (row % n > 0)
                assert_true(from >= before[step][0] && to >= before[step][1]);
            before[step][0] = from;
            before[step][1] = to;
            for (int k = from; k <= to; k++)
                n_of[keys[k]]++;
            *seen += to - from + 1;
        }
        for (int key = 0; key < b->seq_len; key++)
            assert_int_equal(n_of[key], key >= first && key <= query);
    }
}

/* As many keys as it sees of its own and its neighbours' rows, up to its own. */
static void check_windows(const struct loader_options *o, const struct micro_batch *b,
                          int n_sequences)
{
    int pair[SEQ_LEN], n = pair_of(o->cut, b->seq_len, o->cp_rank, pair);

    for (int row = 0; row < n_sequences * n; row++) {
        int64_t start = b->starts ? b->starts[row] : 0;
        struct context_keys keys =
            context_window_keys(o->cut, b->seq_len, o->window, o->cp_rank, row % n, start);

        assert_int_equal(b->window_first[row], keys.first);
        assert_int_equal(b->window_last[row], keys.last);
        assert_int_equal(keys.last - keys.first,
                         pair[row % n] - max_i64(start, pair[row % n] - o->window + 1));
    }
}

/* ---- loaders side by side ---- */

/* Edges between a sequence's parts that a document lies on both sides of. */
static void count_straddled(struct context_cut cut, const struct micro_batch *whole,
                            int n_sequences, int *straddled)
{
    int part = (int)(whole->seq_len / (2 * context_size(cut)));

    for (int row = 0; whole->starts && row < n_sequences * whole->seq_len; row++)
        if (row % whole->seq_len % part == 0)
            straddled[row % whole->seq_len / part] += whole->starts[row] < row % whole->seq_len;
}

static int64_t pairs_of(const struct micro_batch *whole, int n_sequences, int window)
{
    int64_t n = 0;

    for (int row = 0; row < n_sequences * whole->seq_len; row++) {
        int query = row % whole->seq_len, keys = query + 1;

        keys -= whole->starts ? whole->starts[row] : 0;
        n += window > 0 ? min_int(keys, window) : keys;
    }
    return n;
}

/* Ranks of one cut beside an uncut loader. The options say how many sequences a micro-batch has. */
static void check_cut(struct loader_options options, struct context_cut cut, int n_batches)
{
    struct loader_options of[RANKS_MAX];
    struct loader *whole = open_loader(&options), *loaders[RANKS_MAX];
    int p = context_size(cut), straddled[2 * RANKS_MAX] = { 0 };
    struct micro_batch all, batch;
    struct err err;

    for (int r = 0; r < p; r++) {
        of[r] = options;
        of[r].cut = cut;
        of[r].ulysses_rank = r % cut.ulysses;
        of[r].cp_rank = r / cut.ulysses;
        loaders[r] = open_loader(&of[r]);
        assert_true(loader_fingerprint(loaders[r]) == loader_fingerprint(whole));
    }
    for (int i = 0; i < n_batches; i++) {
        int n_sequences =
            options.n_sizes ? options.sizes[i % options.n_sizes] : options.micro_batch;
        int64_t seen = 0;

        assert_int_equal(loader_next(whole, &all, &err), 0);
        count_straddled(cut, &all, n_sequences, straddled);
        for (int r = 0; r < p; r++) {
            assert_int_equal(loader_next(loaders[r], &batch, &err), 0);
            assert_int_equal(batch.seq_len, all.seq_len);
            assert_memory_equal(batch.samples, all.samples,
                                (size_t)n_sequences * sizeof *all.samples);
            check_local(&of[r], &all, &batch, n_sequences);
            check_attention(&of[r], &all, &batch, n_sequences);
            if (context_has_window(cut, batch.seq_len, options.window))
                check_windows(&of[r], &batch, n_sequences);
            assert_true(!batch.window_last == !(options.window && cut.keys > 1));
            assert_true(!batch.ring_first == !(options.ring && cut.keys > 1));
            assert_true(!batch.ring_last == !batch.ring_first);
            if (batch.ring_first && of[r].ulysses_rank == 0)
                check_ring(&of[r], &batch, n_sequences, &seen);
        }
        if (batch.ring_first)
            assert_true(seen == pairs_of(&all, n_sequences, options.ring_window));
    }
    for (int edge = 1; options.packing && options.samples && edge < 2 * p; edge++)
        assert_true(straddled[edge] > 0);
    for (int r = 0; r < p; r++)
        loader_close(loaders[r]);
    loader_close(whole);
}

static void for_all_cuts(const struct loader_options *options, int n_batches)
{
    static const int sizes[] = { 2, 3, 4, 6, 8 };

    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (int u = 1; u <= sizes[k]; u++)
            if (sizes[k] % u == 0)
                check_cut(*options, (struct context_cut){ u, sizes[k] / u }, n_batches);
}

static struct loader_options options_of_tokens(const struct loader_dataset *dataset)
{
    return (struct loader_options){ .datasets = dataset,
                                    .n_datasets = 1,
                                    .vocab_size = VOCAB,
                                    .seq_len = SEQ_LEN,
                                    .global_batch = 6,
                                    .micro_batch = 3,
                                    .dp_size = 1,
                                    .seed = 7,
                                    .n_steps = 24 };
}

static struct loader_options options_of_samples(void)
{
    return (struct loader_options){ .samples = samples,
                                    .vocab_size = VOCAB,
                                    .seq_len = SEQ_LEN,
                                    .global_batch = 6,
                                    .micro_batch = 3,
                                    .dp_size = 1,
                                    .seed = 3,
                                    .n_epochs = 2 };
}

static void test_tokens(void **state)
{
    static const int sizes[] = { 1, 3, 2 };
    struct loader_dataset dataset = { tokens, 1 };
    struct loader_options options = options_of_tokens(&dataset);

    (void)state;
    for_all_cuts(&options, 10);
    options.sizes = sizes;
    options.n_sizes = 3;
    for_all_cuts(&options, 9);
}

/* To the end, where the last batch is filled up with sequences of padding. */
static void test_held_out(void **state)
{
    struct loader_dataset dataset = { tokens, 1 };
    struct loader_options options = options_of_tokens(&dataset);

    (void)state;
    options.held_out = true;
    options.micro_batch = 6;
    options.packing = true; /* a model of packed samples is evaluated on token files, too */
    for_all_cuts(&options, 9);
    struct loader *loader = open_loader(&options);
    assert_int_equal(loader_n_samples(loader), 53);
    assert_int_equal(loader_n_steps(loader), 9);
    loader_close(loader);
}

static void test_packed_documents(void **state)
{
    struct loader_options options = options_of_samples();

    (void)state;
    options.packing = true;
    for_all_cuts(&options, 20);
}

static void test_several_lengths(void **state)
{
    static const int lengths[] = { SHORT, SEQ_LEN };
    struct loader_options options = options_of_samples();

    (void)state;
    options.lengths = lengths;
    options.n_lengths = 2;
    for_all_cuts(&options, 20);
    struct loader *loader = open_loader(&options);
    int n_short = 0;
    for (int step = 0; step < 10; step++)
        for (int m = 0; m < 2; m++)
            n_short += loader_length(loader, step, m) == SHORT;
    assert_in_range(n_short, 1, 19);
    loader_close(loader);
}

static void test_windows(void **state)
{
    static const int lengths[] = { SHORT, SEQ_LEN }, sizes[] = { 1, 3, 2 };
    static const int windows[] = { 1, 2, 5, 12, 24 };
    struct loader_dataset dataset = { tokens, 1 };

    (void)state;
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        struct loader_options options = options_of_samples();

        options.window = windows[w];
        options.packing = true;
        for_all_cuts(&options, 14);
        options.packing = false;
        options.lengths = lengths;
        options.n_lengths = 2;
        for_all_cuts(&options, 3);
        options = options_of_tokens(&dataset);
        options.ring = true;
        options.window = windows[w];
        options.sizes = sizes;
        options.n_sizes = 3;
        for_all_cuts(&options, 3);
    }
}

static void test_ring(void **state)
{
    static const int lengths[] = { SHORT, SEQ_LEN }, sizes[] = { 1, 3, 2 };
    static const int windows[] = { 0, 1, 13, 40 };
    struct loader_dataset dataset = { tokens, 1 };

    (void)state;
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        struct loader_options options = options_of_samples();

        options.ring = true;
        options.ring_window = windows[w];
        options.packing = true;
        for_all_cuts(&options, 14);
        options.packing = false;
        options.lengths = lengths;
        options.n_lengths = 2;
        for_all_cuts(&options, 3);
        options = options_of_tokens(&dataset);
        options.ring = true;
        options.ring_window = windows[w];
        options.sizes = sizes;
        options.n_sizes = 3;
        for_all_cuts(&options, 3);
    }
}

/* Of one rank nothing is copied. */
static void test_no_cut(void **state)
{
    struct loader_options options = options_of_samples();
    struct micro_batch batch;
    struct err err;

    (void)state;
    options.packing = true;
    options.ring = true;
    for (int size = 0; size < 2; size++) {
        options.cut = (struct context_cut){ size, size };
        struct loader *loader = open_loader(&options);
        assert_int_equal(loader_next(loader, &batch, &err), 0);
        assert_ptr_equal(batch.attention_positions, batch.positions);
        assert_non_null(batch.starts);
        assert_null(batch.rows);
        assert_null(batch.last);
        assert_null(batch.ring_first);
        loader_close(loader);
    }
}

static void test_rewind(void **state)
{
    struct loader_dataset dataset = { tokens, 1 };
    struct loader_options options = options_of_tokens(&dataset);
    struct micro_batch batch;
    struct err err;

    (void)state;
    options.held_out = true;
    options.cut = (struct context_cut){ 2, 2 };
    options.cp_rank = 1;
    struct loader *loader = open_loader(&options);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 5; i++) {
            assert_int_equal(loader_next(loader, &batch, &err), 0);
            assert_int_equal(batch.samples[0], 3 * i);
            assert_int_equal(batch.tokens[0], 3 * i * SEQ_LEN + SEQ_LEN / 4);
        }
        loader_rewind(loader);
    }
    loader_close(loader);
}

static void expect_refusal(const struct loader_options *options, const char *text)
{
    struct loader *loader = NULL;
    struct err err = { 0 };

    assert_int_equal(loader_open(&loader, options, &err), -1);
    assert_null(loader);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, text);
}

static void test_lengths_that_cannot_be_cut(void **state)
{
    static const int lengths[] = { 40, SEQ_LEN };
    struct loader_dataset dataset = { tokens, 1 };
    struct loader_options options = options_of_tokens(&dataset);

    (void)state;
    options.cut = (struct context_cut){ 2, 4 };
    options.seq_len = 60;
    expect_refusal(&options,
                   "seq_len 60 cannot be cut over cp 8 (ulysses 2 times 4): not a multiple "
                   "of 8 (hint: 56 or 64)");
    options.seq_len = 7;
    expect_refusal(&options,
                   "seq_len 7 cannot be cut over cp 8 (ulysses 2 times 4): not a multiple "
                   "of 8 (hint: 8)");
    options = options_of_samples();
    options.lengths = lengths;
    options.n_lengths = 2;
    options.cut = (struct context_cut){ 1, 8 };
    expect_refusal(&options,
                   "a micro-batch's length 40 cannot be cut over cp 8 (ulysses 1 times 8): "
                   "not a multiple of 16 (hint: 32 or 48)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_packed_documents),
        cmocka_unit_test(test_several_lengths),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_no_cut),
        cmocka_unit_test(test_rewind),
        cmocka_unit_test(test_lengths_that_cannot_be_cut),
    };

    return cmocka_run_group_tests_name("loader_cut", tests, set_up, tear_down);
}
