/*
 * layouts_test.c - the law over layouts: every schedule, and from each layout into each
 *
 * What law_test.c samples is walked here in full: all schedules at pp 1, 2 and 4, both orders of
 * sums, on a model deep enough for two chunks a rank; and a run that is stopped under one layout
 * and goes on under another, for all pairs. Ranks are threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/law_rig.h"
#include "support/pairs.h"

static struct law_case base_case(const char *model, const char *gradient_sum)
{
    struct law_case c = law_base(model, "bf16");

    c.gradient_sum = gradient_sum;
    return c;
}

/* ---- schedules ---- */

static void schedules(void **state)
{
    static const char *const names[] = { "gpipe", "1f1b",  "interleaved", "breadth-first",
                                         "zb-h1", "zb-h2", "zb-v" };
    static const char *const modes[] = { "none", "selective", "full" };
    static const char *const sums[] = { "late", "early" };
    struct law_outcome wanted[2][2];
    struct pairs rows;
    char what[96];

    (void)state;
    for (int k = 0; k < 4; k++) {
        struct law_case c = base_case("llama-deep", sums[k % 2]);

        c.n_ranks = 1 + k / 2;
        wanted[k / 2][k % 2] = law_run(&c);
    }
    pairs_build(&rows, (int[]){ 7, 3, 5, 2, 3 }, 5);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i];
        struct law_case c = base_case("llama-deep", sums[row[3]]);
        int dp = row[2] ? 2 : 1; /* two of zero 0, 1, 2 or 3 */

        if (law_left_out())
            continue;
        c.schedule = names[row[0]];
        c.pp = 1 << row[1];
        c.n_ranks = dp * c.pp;
        c.recompute = modes[row[4]];
        c.poison = i % 2;
        c.zero = max_int(row[2] - 1, 0);
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "dp %d, pp %d %s, %s sums, recompute %s, zero %d", dp, c.pp,
                 c.schedule, c.gradient_sum, c.recompute, c.zero);
        law_must_equal(what, &wanted[dp - 1][row[3]], &got);
    }
}

/* ---- layers that are recomputed differently ---- */

static void recomputed_layers(void **state)
{
    static const struct {
        const char *schedule;
        int pp, zero;
        const char *layers;
    } ways[] = {
        { "1f1b", 1, 0, "recompute_layers={full: [3], selective: [2]}" },
        { "1f1b", 2, 1, "recompute_layers={full: [4, 1], selective: [0, 2]}" },
        { "zb-v", 2, 3, "recompute_layers={full: [1, 0, 2, 1]}|recompute=selective" },
        { "interleaved", 2, 2, "recompute_layers={selective: [2, 1, 0, 2]}|recompute=[swiglu]" },
    };
    struct law_case c = base_case("llama-deep", "late");
    char what[160];

    (void)state;
    c.n_ranks = 2;
    struct law_outcome wanted = law_run(&c);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        c.schedule = ways[i].schedule;
        c.pp = ways[i].pp;
        c.zero = ways[i].zero;
        c.tuning = ways[i].layers;
        c.n_ranks = 2 * c.pp;
        c.poison = i % 2;
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "pp %d %s, zero %d, %s", c.pp, c.schedule, c.zero, c.tuning);
        law_must_equal(what, &wanted, &got);
    }
}

/* ---- from each into each ---- */

/* Four data-parallel ranks, one numerics. Each way into each: by this model or by the other. */
static void from_each_into_each(const char *model, const char *gradient_sum, int odd)
{
    static const struct {
        const char *name;
        int zero, group, pp;
    } ways[] = {
        { "zero 0", 0, 0, 1 },        { "zero 1", 1, 0, 1 }, { "zero 2", 2, 0, 1 },
        { "zero 3", 3, 0, 1 },        { "hybrid", 2, 2, 1 }, { "two stages", 0, 0, 2 },
        { "two of zero 3", 3, 0, 2 },
    };
    enum { N = sizeof ways / sizeof *ways };
    struct law_case c = base_case(model, gradient_sum);
    char what[96];

    c.n_ranks = 4;
    struct law_outcome wanted = law_run(&c);
    c.stop_after = 3;
    for (int from = 0; from < N; from++)
        for (int to = 0; to < N; to++) {
            if ((!pairs_whole() && (from + to) % 2 != odd) || law_left_out())
                continue;
            c.zero = ways[from].zero;
            c.zero_group = ways[from].group;
            c.pp = ways[from].pp;
            c.n_ranks = 4 * c.pp;
            c.zero_after = 1 + ways[to].zero;
            c.zero_group_after = 1 + ways[to].group;
            c.pp_after = ways[to].pp;
            c.n_ranks_after = 4 * c.pp_after;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "%s %s, from %s into %s", model, gradient_sum,
                     ways[from].name, ways[to].name);
            law_must_equal(what, &wanted, &got);
        }
}

static void from_each_into_each_late(void **state)
{
    (void)state;
    from_each_into_each("gpt2", "late", 0);
}

static void from_each_into_each_early(void **state)
{
    (void)state;
    from_each_into_each("llama-deep", "early", 1);
}

/* Groups that shard, of tensor-parallel ranks whose norms learn of their own rows alone. */
static void hybrid_and_sequence_parallel(void **state)
{
    static const char *const sums[] = { "late", "early" };
    char what[96];

    (void)state;
    for (int s = 0; s < 2; s++) {
        struct law_case c = base_case("llama-deep", sums[s]);

        c.tp = 2;
        c.n_ranks = 8;
        struct law_outcome wanted = law_run(&c);
        c.zero_group = 2;
        for (c.zero = 1; c.zero <= 3; c.zero++) {
            c.poison = c.zero % 2;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "tp 2, dp 4, zero %d in groups of two, %s sums", c.zero,
                     sums[s]);
            law_must_equal(what, &wanted, &got);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),
        cmocka_unit_test(recomputed_layers),
        cmocka_unit_test(from_each_into_each_late),
        cmocka_unit_test(from_each_into_each_early),
        cmocka_unit_test(hybrid_and_sequence_parallel),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
