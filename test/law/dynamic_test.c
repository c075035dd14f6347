/*
 * dynamic_test.c - micro-batches of given sizes: one numerics on any number of stages (design.md
 * §5)
 *
 * As law_test.c: a list of sizes is trained with on one rank after the other as the reference, and
 * then on stages, in shards, recomputed, stopped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/law_rig.h"

#define RAMPS "[1, 2, 4, 4, 2, 1]"
#define RAMPS_SEQUENCES 14
/* The last micro-batch is no longer the smallest, and sizes come back after others. */
#define MIXED "[3, 1, 3, 1, 2]"
#define MIXED_SEQUENCES 10

static struct law_case base_case(const char *model, const char *dtype, const char *sizes,
                                 int n_sequences)
{
    struct law_case c = law_base(model, dtype);

    c.micro_batches = sizes;
    c.schedule = "dynamic";
    c.global_batch = n_sequences;
    return c;
}

static void must_equal(const struct law_case *c, const struct law_outcome *wanted,
                       const struct law_outcome *got)
{
    char what[240];

    snprintf(what, sizeof what,
             "%s %s %s %s, %d ranks, tp %d, pp %d, zero %d, recompute %s, poison %d", c->model,
             c->dtype, c->micro_batches ? c->micro_batches : "", c->gradient_sum, c->n_ranks,
             max_int(c->tp, 1), max_int(c->pp, 1), c->zero, c->recompute, c->poison);
    law_must_equal(what, wanted, got);
}

struct way {
    int pp, chunks, zero;
    const char *recompute;
    int zero_group;
};

/* On dp (and tp) ranks: every way has the bits of one stage, zero 0, nothing recomputed. */
static void all_ways(struct law_case c, int dp, const struct way *ways, size_t n)
{
    int others = dp * max_int(c.tp, 1);

    c.n_ranks = others;
    c.global_batch *= dp;
    struct law_outcome wanted = law_run(&c);
    for (size_t i = 0; i < n; i++) {
        if (law_left_out())
            continue;
        c.pp = ways[i].pp;
        c.n_ranks = others * c.pp;
        c.chunks = ways[i].chunks;
        c.zero = ways[i].zero;
        c.recompute = ways[i].recompute;
        c.zero_group = ways[i].zero_group;
        c.poison = i % 2 == 0;
        c.n_threads = 1 + (int)i % 2;
        struct law_outcome got = law_run(&c);
        must_equal(&c, &wanted, &got);
    }
}

static void stages(void **state)
{
    static const struct way ways[] = {
        { 1, 0, 0, "selective", 0 },
        { 2, 1, 0, "none", 0 },
        { 2, 2, 0, "full", 0 },
        { 4, 1, 0, "none", 0 },
        { 4, 2, 0, "[rmsnorm, linear]", 0 },
    };

    (void)state;
    all_ways(base_case("llama-deep", "bf16", RAMPS, RAMPS_SEQUENCES), 1, ways, 5);
    all_ways(base_case("llama-deep", "fp32", MIXED, MIXED_SEQUENCES), 1, ways, 5);
    all_ways(base_case("gpt2", "bf16", RAMPS, RAMPS_SEQUENCES), 1, ways, 2);
    all_ways(base_case("mixture", "bf16", RAMPS, RAMPS_SEQUENCES), 1, ways, 3);
}

/* Sums over ranks come early, in the functions of each size, or late, in the last size's. */
static void data_parallel(void **state)
{
    static const struct way ways[] = {
        { 1, 0, 1, "none", 0 }, { 2, 1, 0, "selective", 0 }, { 1, 0, 2, "full", 0 },
        { 2, 1, 3, "none", 0 }, { 2, 2, 3, "selective", 0 }, { 4, 1, 1, "none", 0 },
    };
    static const struct way of_four[] = { { 1, 0, 2, "none", 2 },
                                          { 2, 1, 3, "full", 2 },
                                          { 1, 0, 1, "none", 0 } };
    struct law_case c = base_case("llama-deep", "bf16", RAMPS, RAMPS_SEQUENCES);

    (void)state;
    all_ways(c, 2, ways, 6);
    c.gradient_sum = "early";
    all_ways(c, 2, ways, 6);
    c = base_case("llama", "fp32", MIXED, MIXED_SEQUENCES);
    c.gradient_sum = "early";
    all_ways(c, 4, of_four, 3);
    c = base_case("gpt2", "bf16", RAMPS, RAMPS_SEQUENCES);
    all_ways(c, 2, ways, 3);
}

/* However long zero 3 holds weights: gathers stand in each size's functions, or between actions. */
static void held_weights(void **state)
{
    static const struct way ways[] = { { 2, 4, 3, "none", 0 }, { 1, 0, 3, "full", 0 } };
    static const char *const holds[] = { "op", "run", "step" };
    struct law_case c = base_case("llama-deep", "fp32", RAMPS, RAMPS_SEQUENCES);

    (void)state;
    c.gradient_sum = "early";
    for (int i = 0; i < 3; i++) {
        c.hold = holds[i];
        all_ways(c, 2, ways, 2);
    }
}

static void tensor_parallel(void **state)
{
    static const struct way ways[] = {
        { 1, 0, 0, "full", 0 },
        { 2, 2, 0, "selective", 0 },
        { 2, 1, 0, "none", 0 },
    };
    static const struct way sharded[] = {
        { 2, 2, 1, "selective", 0 },
        { 1, 0, 3, "none", 0 },
        { 1, 0, 2, "full", 0 },
    };
    static const char *const sums[] = { "late", "early" };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct law_case c =
            base_case(i < 2 ? "llama-deep" : "gpt2", i % 2 ? "fp32" : "bf16", i % 2 ? RAMPS : MIXED,
                      i % 2 ? RAMPS_SEQUENCES : MIXED_SEQUENCES);

        c.tp = 2;
        c.no_sequence_parallel = i == 1;
        all_ways(c, 1, ways, i < 2 ? 3 : 1);
        c.gradient_sum = sums[i % 2];
        all_ways(c, 2, sharded + (i >= 2), i < 2 ? 3 : 2);
    }
}

/* Stopped in the middle, it goes on with as many stages or with others. */
static void stopped_and_resumed(void **state)
{
    struct law_case c = base_case("llama-deep", "bf16", RAMPS, RAMPS_SEQUENCES);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.n_ranks = c.pp = 2;
    for (int after = 1; after < LAW_STEPS; after++) {
        c.stop_after = after;
        c.n_ranks_after = c.pp_after = 1 << (after - 1);
        struct law_outcome got = law_run(&c);
        must_equal(&c, &wanted, &got);
    }
}

/* Sizes that are all the same are micro-batches of that size, in numerics and bits. */
static void equal_sizes(void **state)
{
    struct law_case c = base_case("llama-deep", "bf16", NULL, 6);

    (void)state;
    c.schedule = "1f1b";
    struct law_outcome wanted = law_run(&c);
    c.micro_batches = "[1, 1, 1, 1, 1, 1]";
    c.schedule = "dynamic";
    c.n_ranks = c.pp = 2;
    struct law_outcome got = law_run(&c);
    must_equal(&c, &wanted, &got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages),
        cmocka_unit_test(data_parallel),
        cmocka_unit_test(held_weights),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(stopped_and_resumed),
        cmocka_unit_test(equal_sizes),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
