/*
 * space_test.c - the trials of a sweep: grids, draws by number and key, distributions, rungs
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
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "sweep/space.h"

static struct arena arena;

static const char base[] = "model: {hidden_size: 8, n_layers: 1, n_heads: 1, vocab_size: 16, "
                           "ffn_size: 8, max_seq_len: 16}\n"
                           "data: {train: t, seq_len: 8}\n"
                           "train: {steps: 90, global_batch: 1, micro_batch: 1, log_every: 2}\n"
                           "eval: {split: 0.1, every_steps: 5}\n";

static struct job job_with(const char *sweep)
{
    const char *text = arena_printf(&arena, "%ssweep: {%s}\n", base, sweep);
    struct job job;
    struct err err;

    if (job_read_text(&job, text, strlen(text), "job.yaml", NULL, 0, &arena, &err) < 0)
        fail_msg("%s", err.text);
    return job;
}

static const char *setting(const struct job *job, int trial, const char *key)
{
    struct sweep_row row;

    space_settings(job, trial, &row, &arena);
    for (int i = 0; i < row.n; i++)
        if (!strcmp(row.settings[i].key, key))
            return row.settings[i].value;
    fail_msg("trial %d has no %s", trial, key);
    return NULL;
}

static double number(const struct job *job, int trial, const char *key)
{
    return strtod(setting(job, trial, key), NULL);
}

static void a_grid_has_every_combination_once(void **state)
{
    struct job job =
        job_with("search: grid, parameters: {optimizer.lr: {log: [1e-4, 1e-2], points: "
                 "3}, train.seed: {uniform: [2, 5]}, train.dtype: [bf16, fp32]}");
    const char *seen[24];

    (void)state;
    assert_int_equal(space_n_trials(&job), 3 * 4 * 2);
    for (int i = 0; i < 24; i++) {
        seen[i] = arena_printf(&arena, "%s %s %s", setting(&job, i, "optimizer.lr"),
                               setting(&job, i, "train.seed"), setting(&job, i, "train.dtype"));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(seen[i], seen[k]);
    }
    assert_string_equal(seen[0], "0.0001 2 \"bf16\"");
    assert_string_equal(seen[1], "0.0001 2 \"fp32\"");
    assert_string_equal(seen[2], "0.0001 3 \"bf16\"");
    assert_string_equal(seen[8], "0.001 2 \"bf16\"");
    assert_string_equal(seen[23], "0.01 5 \"fp32\"");
}

static void a_list_is_its_rows(void **state)
{
    struct job job = job_with("search: list, parameters: [{optimizer.lr: 1e-3, train.seed: 7}, "
                              "{parallel.stages: [1, 2], data.train: [{path: a, weight: 2}, b]}]");
    struct sweep_row row;
    struct str text = { 0 };

    (void)state;
    assert_int_equal(space_n_trials(&job), 2);
    assert_string_equal(setting(&job, 0, "optimizer.lr"), "0.001");
    assert_string_equal(setting(&job, 0, "train.seed"), "7");
    space_settings(&job, 1, &row, &arena);
    assert_int_equal(row.n, 2);
    assert_string_equal(row.settings[0].value, "[1, 2]");
    assert_string_equal(row.settings[1].value, "[{\"path\": \"a\", \"weight\": 2}, \"b\"]");
    /* What is printed reads back to the same. */
    job_print_value(&job, "sweep.parameters", &text);
    struct job again =
        job_with(arena_printf(&arena, "search: list, parameters: %s", str_text(&text)));
    assert_string_equal(setting(&again, 1, "data.train"), row.settings[1].value);
    str_release(&text);
}

/* Trial i does not depend on how many there are, on other parameters or their order. */
static void a_draw_depends_on_seed_trial_and_key(void **state)
{
    struct job few = job_with("trials: 3, parameters: {optimizer.lr: {log: [1e-5, 1e-3]}}");
    struct job many =
        job_with("trials: 50, parameters: {train.seed: [1, 2, 3], optimizer.lr: {log: "
                 "[1e-5, 1e-3]}, optimizer.min_lr: {log: [1e-5, 1e-3]}}");
    struct job other =
        job_with("trials: 3, seed: 2, parameters: {optimizer.lr: {log: [1e-5, 1e-3]}}");
    int n_alike = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_string_equal(setting(&few, i, "optimizer.lr"), setting(&many, i, "optimizer.lr"));
        assert_string_not_equal(setting(&few, i, "optimizer.lr"),
                                setting(&other, i, "optimizer.lr"));
    }
    for (int i = 0; i < 50; i++)
        n_alike +=
            !strcmp(setting(&many, i, "optimizer.lr"), setting(&many, i, "optimizer.min_lr"));
    assert_int_equal(n_alike, 0);
}

enum { N_DRAWS = 9000, N_BINS = 9 };

/* Chi-squared of 9 bins: 99.99 % of uniform samples are below 32. */
static void must_be_uniform(const int counts[N_BINS])
{
    double sum = 0, expected = (double)N_DRAWS / N_BINS;

    for (int i = 0; i < N_BINS; i++)
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    if (sum > 32)
        fail_msg("chi-squared %.1f", sum);
}

static void ranges_are_uniform_by_their_scale(void **state)
{
    struct job job = job_with(
        "trials: 9000, parameters: {optimizer.lr: {log: [1e-6, 1e-3]}, optimizer.weight_decay: "
        "{uniform: [0.1, 1.0]}, train.seed: {uniform: [1, 9]}, optimizer.warmup_steps: {log: [1, "
        "511]}}");
    int log_bins[N_BINS] = { 0 }, bins[N_BINS] = { 0 }, whole[N_BINS] = { 0 },
        powers[N_BINS] = { 0 };

    (void)state;
    for (int i = 0; i < N_DRAWS; i++) {
        double lr = number(&job, i, "optimizer.lr");
        double decay = number(&job, i, "optimizer.weight_decay");
        double steps = number(&job, i, "optimizer.warmup_steps");

        assert_true(lr >= 1e-6 && lr <= 1e-3 && decay >= 0.1 && decay <= 1.0);
        log_bins[min_int(N_BINS - 1, (int)((log10(lr) + 6) * 3))]++;
        bins[min_int(N_BINS - 1, (int)((decay - 0.1) * 10))]++;
        whole[(int)number(&job, i, "train.seed") - 1]++;
        assert_true(steps >= 1 && steps <= 511 && steps == floor(steps));
        powers[(int)log2(steps)]++;
    }
    must_be_uniform(log_bins);
    must_be_uniform(bins);
    must_be_uniform(whole);
    must_be_uniform(powers); /* 1, 2 to 3, 4 to 7, ..., 256 to 511: a ninth each */
}

static void must_be_rungs(const char *sweep, const char *expected)
{
    struct job job =
        job_with(arena_printf(&arena, "trials: 4, parameters: {train.seed: [1, 2]}%s", sweep));
    const int64_t *steps;
    struct str text = { 0 };
    int n = space_rungs(&job, &steps, &arena);

    for (int i = 0; i < n; i++)
        str_printf(&text, i ? " %d" : "%d", (int)steps[i]);
    assert_string_equal(str_text(&text), expected);
    str_release(&text);
}

static void rungs_are_multiples_of_evaluations(void **state)
{
    (void)state;
    must_be_rungs("", "90");
    must_be_rungs(", stop: asha", "10 30 90");
    must_be_rungs(", stop: asha, eta: 2, min_steps: 5", "5 10 20 40 80 90");
    must_be_rungs(", stop: asha, eta: 4", "5 20 80 90");
    must_be_rungs(", stop: asha, eta: 4, metric: loss", "6 24 90");
    must_be_rungs(", stop: median", "10 20 30 40 50 60 70 80 90");
    must_be_rungs(", stop: median, min_steps: 40", "40 80 90");
}

static int release(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grid_has_every_combination_once),
        cmocka_unit_test(a_list_is_its_rows),
        cmocka_unit_test(a_draw_depends_on_seed_trial_and_key),
        cmocka_unit_test(ranges_are_uniform_by_their_scale),
        cmocka_unit_test(rungs_are_multiples_of_evaluations),
    };

    return cmocka_run_group_tests(tests, NULL, release);
}
