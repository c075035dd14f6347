/*
 * context_windows_test.c - layers that fetch their windows' keys alone have one rank's loss and
 * gradients
 *
 * For windows of a key, of a tile of keys and more, of a chunk, and of more than that, which gather
 * all; beside a layer without window, in documents across all edges of chunks. context_test.c
 * compares bits, row by row, and kernels/attention_ranks_test.c those of attention alone.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "golden/fill.h"
#include "support/layouts.h"

#define N_ROWS_MAX 864
#define VOCAB 67

static int32_t tokens[N_ROWS_MAX], targets[N_ROWS_MAX], starts[N_ROWS_MAX];

static struct model_spec spec_of(int window)
{
    return (struct model_spec){ .vocab_size = VOCAB,
                                .hidden_size = 40,
                                .n_layers = 3,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 8,
                                .ffn_size = 56,
                                .max_seq_len = N_ROWS_MAX,
                                .norm = NORM_RMS,
                                .norm_eps = 1e-5,
                                .position = POSITION_ROPE,
                                .rope_theta = 10000,
                                .activation = ACTIVATION_SWIGLU,
                                .init_std = 0.02,
                                .window = window,
                                .window_first_layer = 1 };
}

static void run(const struct experiment *e, int ulysses, int keys, struct outcome *outcome)
{
    struct layout layout = { .tp = 1, .dp = 1, .pp = 1, .ulysses = ulysses, .keys = keys };
    struct err err;

    if (layout_run(e, &layout, outcome, &err) < 0)
        fail_msg("%s", err.text);
}

/* How far a gradient is from the wanted one, as a part of its norm. */
static double distance(const struct gradient *wanted, const struct gradient *got)
{
    double apart = 0, norm = 0;

    for (int64_t i = 0; i < wanted->rows * wanted->cols; i++) {
        double d = (double)got->data[i] - (double)wanted->data[i];

        apart += d * d;
        norm += (double)wanted->data[i] * (double)wanted->data[i];
    }
    return sqrt(apart / norm);
}

static void check(const struct experiment *e, int ulysses, int keys)
{
    struct outcome one, several;

    run(e, 1, 1, &one);
    run(e, ulysses, keys, &several);
    if (!(fabs(several.loss - one.loss) <= 1e-12 * one.loss))
        fail_msg("window %d, ulysses %d, keys %d: loss %a, wanted %a", e->spec.window, ulysses,
                 keys, several.loss, one.loss);
    for (int i = 0; i < one.n_gradients; i++) {
        const struct gradient *got = outcome_find(&several, one.gradients[i].name);

        assert_non_null(got);
        double apart = distance(&one.gradients[i], got);
        if (!(apart < 2e-6))
            fail_msg("window %d, ulysses %d, keys %d: gradient of %s is %g of its norm off",
                     e->spec.window, ulysses, keys, got->name, apart);
    }
    outcome_release(&one);
    outcome_release(&several);
}

/* Documents of 1 to 100 rows. */
static void fill(int seq_len)
{
    for (int i = 0, start = 0, length = 7; i < N_ROWS_MAX; i++) {
        if (i % seq_len == 0)
            start = 0;
        if (i % seq_len == start + length) {
            start = i % seq_len;
            length = length * 31 % 101;
        }
        starts[i] = start;
        tokens[i] = (int32_t)(golden_word("tokens", i) % VOCAB);
        targets[i] = (int32_t)(golden_word("targets", i) % VOCAB);
    }
}

static void windows(void **state)
{
    static const struct {
        int seq_len, window, n_sequences, ulysses, keys;
    } cases[] = { { 288, 1, 1, 1, 2 },  { 288, 5, 3, 2, 2 },  { 512, 64, 1, 1, 2 },
                  { 288, 65, 1, 1, 2 }, { 288, 72, 3, 1, 2 }, { 288, 73, 1, 1, 2 },
                  { 240, 5, 3, 1, 3 },  { 240, 40, 1, 1, 3 }, { 208, 26, 3, 1, 4 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = cases[i].n_sequences, sizes[1] = { n };

        fill(cases[i].seq_len);
        check(&(struct experiment){ .spec = spec_of(cases[i].window),
                                    .n_sequences = n,
                                    .seq_len = cases[i].seq_len,
                                    .tokens = tokens,
                                    .targets = targets,
                                    .starts = i % 2 ? starts : NULL,
                                    .sizes = sizes,
                                    .n_sizes = 1,
                                    .weights = layout_golden_weights },
              cases[i].ulysses, cases[i].keys);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
