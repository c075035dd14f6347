/*
 * hold_test.c - zero 3 is zero 0 to the bit, however long weights are held, and so are zero 1 and
 * 2, wherever weights are gathered (design.md §5)
 *
 * As law_test.c, with memory poisoned throughout: a weight that is read after its memory went to
 * somebody else shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/law_rig.h"
#include "support/pairs.h"

static const char *const holds[] = { "op", "pass", "run", "step" };
static const char *const sums[] = { "early", "late" };
static const char *const modes[] = { "none", "full", "selective" };
static const char *const prefetches[] = { "parallel.prefetch=0", "parallel.prefetch=1",
                                          "parallel.prefetch=3" };

static struct law_case base_case(const char *model, const char *dtype, int dp, const char *sum)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = dp;
    c.gradient_sum = sum;
    return c;
}

static void must_equal(const struct law_case *c, int dp, const struct law_outcome *wanted,
                       const struct law_outcome *got)
{
    char what[200];

    snprintf(what, sizeof what, "%s %s %s, dp %d, pp %d %s, hold %s, recompute %s %s", c->model,
             c->dtype, c->gradient_sum, dp, max_int(c->pp, 1), c->schedule ? c->schedule : "",
             c->hold, c->recompute, c->tuning ? c->tuning : "");
    law_must_equal(what, wanted, got);
}

/* Zero 3 in the way that c says. */
static void must_be_zero_0(struct law_case c, int dp, const struct law_outcome *wanted)
{
    if (law_left_out())
        return;
    c.zero = 3;
    c.poison = 1;
    struct law_outcome got = law_run(&c);
    must_equal(&c, dp, wanted, &got);
}

/* Of two models, dp 2 and 4, both orders of sums; recomputed or not with the buckets' sizes. */
static void every_hold(void **state)
{
    static const char *const models[][2] = { { "llama", "bf16" }, { "gpt2", "fp32" } };
    struct law_outcome wanted[2][2][2];
    struct pairs rows;

    (void)state;
    for (int k = 0; k < 8; k++) {
        const char *const *model = models[k / 4];
        struct law_case c = base_case(model[0], model[1], k / 2 % 2 ? 4 : 2, sums[k % 2]);

        wanted[k / 4][k / 2 % 2][k % 2] = law_run(&c);
    }
    pairs_build(&rows, (int[]){ 2, 2, 2, 4, 2, 3 }, 6);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i];
        int dp = row[1] ? 4 : 2;
        struct law_case c = base_case(models[row[0]][0], models[row[0]][1], dp, sums[row[2]]);

        c.hold = holds[row[3]];
        c.recompute = modes[row[4]];
        c.bucket_mb = row[4] ? 64 : 1;
        c.tuning = prefetches[row[5]];
        must_be_zero_0(c, dp, &wanted[row[0]][row[1]][row[2]]);
    }
}

static void odd_ranks(void **state)
{
    struct law_case c = base_case("llama-untied", "fp32", 3, "early");

    (void)state;
    c.global_batch = 12;
    struct law_outcome wanted = law_run(&c);
    for (int h = 0; h < 4; h++) {
        c.hold = holds[h];
        c.recompute = modes[h % 3];
        c.n_threads = 1 + h % 3;
        must_be_zero_0(c, 3, &wanted);
    }
}

/* Chunks of several ranks that share staging cells, an embedding that two chunks read, gradients
 * apart. */
static void pipelines(void **state)
{
    static const struct {
        const char *schedule;
        int pp, chunks;
    } ways[] = {
        { "1f1b", 2, 0 },          { "interleaved", 2, 2 }, { "interleaved", 2, 4 },
        { "breadth-first", 2, 3 }, { "zb-h1", 2, 0 },       { "zb-v", 2, 0 },
    };

    struct law_outcome wanted[2];
    struct pairs rows;

    (void)state;
    for (int s = 0; s < 2; s++) {
        struct law_case c = base_case("llama-deep", s ? "fp32" : "bf16", 2, sums[s]);

        wanted[s] = law_run(&c);
    }
    pairs_build(&rows, (int[]){ sizeof ways / sizeof *ways, 4, 2, 3, 3 }, 5);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i];
        int s = row[2];
        struct law_case c = base_case("llama-deep", s ? "fp32" : "bf16", 2, sums[s]);

        c.pp = ways[row[0]].pp;
        c.n_ranks = 2 * c.pp;
        c.schedule = ways[row[0]].schedule;
        c.chunks = ways[row[0]].chunks;
        c.hold = holds[row[1]];
        c.recompute = modes[row[3]];
        c.tuning = prefetches[row[4]];
        must_be_zero_0(c, 2, &wanted[s]);
    }
}

/* Shards of what a tensor-parallel rank has. */
static void tensor_parallel(void **state)
{
    (void)state;
    for (int s = 0; s < 2; s++) {
        struct law_case c = base_case(s ? "gpt2" : "llama", s ? "fp32" : "bf16", 4, sums[s]);

        c.tp = 2;
        struct law_outcome wanted = law_run(&c);
        for (int h = 0; h < 4; h++) {
            c.hold = holds[h];
            c.recompute = modes[h % 3];
            c.tuning = prefetches[1 + h % 2];
            must_be_zero_0(c, 2, &wanted);
        }
    }
}

/* A checkpoint knows no zero. */
static void resumes(void **state)
{
    static const int ways[][2] = { { 0, 3 }, { 3, 1 }, { 3, 3 } };

    (void)state;
    for (int s = 0; s < 2; s++) {
        struct law_case c = base_case(s ? "gpt2" : "llama", s ? "fp32" : "bf16", 4, sums[s]);

        c.stop_after = 3;
        c.n_ranks_after = s ? 2 : 0;
        struct law_outcome wanted = law_run(&c);
        for (int w = 0; w < 3; w++) {
            c.zero = ways[w][0];
            c.zero_after = 1 + ways[w][1];
            c.hold = holds[w];
            struct law_outcome got = law_run(&c);
            must_equal(&c, 4, &wanted, &got);
        }
    }
}

/* ---- once a step ---- */

/* Groups of parameters have buckets of their own: some are gathered in the update, some at the
 * front of the step. */
#define GROUPS \
    "optimizer.groups=[{match: 'layers.1.*', lr_scale: 3.0}, {match: '*norm*', lr_scale: 0.5}, " \
    "{match: '*down*', lr_scale: 2.0}]"

static void gathered_in_the_update(void **state)
{
    static const struct {
        const char *model, *dtype;
        int dp, pp, tp, zero, stop_after;
        const char *both, *prefetch;
    } ways[] = {
        { "llama", "bf16", 2, 1, 1, 1, 0, GROUPS, "parallel.prefetch=1" },
        { "llama", "bf16", 2, 1, 1, 2, 2, GROUPS, "parallel.prefetch=2" },
        { "llama", "fp32", 4, 1, 1, 1, 3, GROUPS "|train.ema=0.9", "parallel.prefetch=1" },
        { "llama-untied", "fp32", 3, 1, 1, 2, 0, GROUPS, "parallel.prefetch=2" },
        { "llama-deep", "bf16", 2, 2, 1, 1, 0, GROUPS, "parallel.prefetch=1" },
        { "llama-deep", "bf16", 2, 2, 1, 2, 0, GROUPS,
          "parallel.prefetch=1|parallel.schedule=zb-v" },
        { "gpt2", "bf16", 2, 1, 2, 1, 0, GROUPS, "parallel.prefetch=2" },
        { "llama", "bf16", 4, 1, 1, 1, 0, GROUPS, "parallel.prefetch=1|parallel.node_ranks=2" },
        { "llama", "bf16", 4, 1, 1, 2, 0, GROUPS, "parallel.prefetch=1|parallel.zero_group=2" },
        { "llama", "bf16", 2, 1, 1, 3, 0, GROUPS, "parallel.prefetch=1|parallel.hold=step" },
        { "llama", "bf16", 2, 1, 1, 1, 2, GROUPS "|optimizer.weight_rounding=half_away",
          "parallel.prefetch=auto|optimizer.masters=split" },
        { "mixture", "bf16", 4, 1, 1, 1, 0, "model.n_experts=12|train.ema=0.9|parallel.ep=2",
          "parallel.prefetch=1" },
        { "llama", "bf16", 2, 1, 1, 1, 0, "optimizer.name=muon|optimizer.momentum=0.9",
          "parallel.prefetch=1000" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct law_case c = base_case(ways[i].model, ways[i].dtype, ways[i].dp * ways[i].tp,
                                      ways[i].zero > 1 ? "early" : "late");
        char settings[400];

        if (law_left_out())
            continue;
        c.tp = ways[i].tp;
        c.global_batch = 24;
        c.tuning = ways[i].both;
        struct law_outcome wanted = law_run(&c);
        snprintf(settings, sizeof settings, "%s|%s", ways[i].both, ways[i].prefetch);
        c.tuning = settings;
        c.pp = ways[i].pp;
        c.n_ranks *= c.pp;
        c.zero = ways[i].zero;
        c.stop_after = ways[i].stop_after;
        c.poison = 1;
        struct law_outcome got = law_run(&c);
        must_equal(&c, ways[i].dp, &wanted, &got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_hold), cmocka_unit_test(odd_ranks),
        cmocka_unit_test(pipelines),  cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(resumes),    cmocka_unit_test(gathered_in_the_update),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
