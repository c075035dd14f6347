/*
 * lengths_test.c - the law where micro-batches have lengths of their own (data.lengths)
 *
 * Samples without packing: each length is a program, and a step takes micro-batches of all of them.
 * Whatever the layout, the same bits; with adapters and without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define LENGTHS "data.packing=false|data.lengths=[8, 14]"

static struct law_case base_case(const char *dtype, const char *tuning)
{
    struct law_case c = law_base("llama-deep", dtype);

    c.samples = law_samples();
    c.tuning = tuning;
    return c;
}

struct way {
    const char *schedule;
    int pp, zero;
    const char *recompute;
    int stop_after;
};

static const struct {
    const char *name, *dtype, *tuning;
} kinds[] = {
    { "all", "bf16", LENGTHS },
    { "lora", "bf16", LENGTHS "|lora.rank=3|lora.dropout=0.1" },
    { "part", "fp32", LENGTHS "|train.only=[layers.3.*, final_norm.weight]" },
};

#define N_KINDS (int)(sizeof kinds / sizeof *kinds)

/* On dp x tp ranks each way has the bits of one stage without anything. */
static void all_ways(int dp, int tp, const struct way *ways, int n)
{
    char what[160];

    for (int i = 0; i < N_KINDS; i++) {
        struct law_case c = base_case(kinds[i].dtype, kinds[i].tuning);

        c.tp = tp;
        c.n_ranks = dp * tp;
        struct law_outcome wanted = law_run(&c);
        for (int k = 0; k < n; k++) {
            if (law_left_out())
                continue;
            c.schedule = ways[k].schedule;
            c.pp = ways[k].pp;
            c.n_ranks = dp * tp * ways[k].pp;
            c.zero = ways[k].zero;
            c.recompute = ways[k].recompute;
            c.stop_after = ways[k].stop_after;
            c.poison = k % 2 == 0;
            c.n_threads = 1 + k % 2;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "%s, dp %d, tp %d, pp %d %s, zero %d, recompute %s",
                     kinds[i].name, dp, tp, c.pp, c.schedule, c.zero, c.recompute);
            law_must_equal(what, &wanted, &got);
        }
    }
}

static void stages(void **state)
{
    static const struct way ways[] = {
        { "1f1b", 1, 0, "selective", 2 }, { "1f1b", 2, 0, "none", 0 },
        { "zb-h1", 2, 0, "full", 0 },     { "interleaved", 2, 0, "none", 3 },
        { "zb-v", 2, 0, "selective", 0 }, { "interleaved", 4, 0, "full", 0 },
        { "zb-v", 4, 0, "none", 0 },
    };

    (void)state;
    all_ways(1, 1, ways, 7);
}

static void sharded(void **state)
{
    static const struct way ways[] = {
        { "1f1b", 1, 1, "none", 3 },
        { "interleaved", 2, 2, "selective", 0 },
        { "1f1b", 1, 3, "full", 0 },
        { "zb-v", 2, 3, "none", 2 },
    };

    (void)state;
    all_ways(2, 1, ways, 4);
}

static void tensor_parallel(void **state)
{
    static const struct way ways[] = {
        { "zb-h1", 2, 0, "selective", 0 },
        { "zb-v", 2, 0, "none", 2 },
        { "interleaved", 2, 0, "full", 0 },
    };

    (void)state;
    all_ways(1, 2, ways, 3);
}

/* Rows of padding change nothing: nearly all micro-batches are of 20 rows in the second. */
static void padding_does_not_count(void **state)
{
    struct law_case c = base_case("fp32", LENGTHS);
    struct law_outcome several = law_run(&c);

    (void)state;
    c.tuning = "data.packing=false|data.lengths=[2]";
    struct law_outcome one = law_run(&c);
    for (int i = 0; i < LAW_STEPS; i++) {
        double off = several.loss[i] - one.loss[i];

        assert_true(off < 2e-5 && off > -2e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages),
        cmocka_unit_test(sharded),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(padding_does_not_count),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
