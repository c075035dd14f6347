/*
 * dynamic_test.c - micro-batches of given sizes: one numerics on any number of stages (design.md §5)
 *
 * As law_test.c: a list of sizes is trained with on one rank after the other as the reference, and
 * then on stages, in shards, recomputed, stopped. Rows of 20 tokens, so that over tp the largest
 * micro-batches have more pieces of the head than the smallest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/num.h"
#include "support/law_rig.h"
#include "support/temporary.h"

#define RAMPS "[1, 2, 4, 4, 2, 1]"
#define RAMPS_SEQUENCES 14
/* The last micro-batch is no longer the smallest, and sizes come back after others. */
#define MIXED "[3, 1, 3, 1, 2]"
#define MIXED_SEQUENCES 10

static char folder[256];
static char dataset[300];

static int make_dataset(void **state)
{
    (void)state;
    if (temporary_folder(folder, sizeof folder))
        return -1;
    snprintf(dataset, sizeof dataset, "%s/tokens", folder);
    law_write_dataset(dataset);
    return 0;
}

static int drop_dataset(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

static struct law_case base_case(const char *model, const char *dtype, const char *sizes,
                                 int n_sequences)
{
    return (struct law_case){ .folder = folder,
                              .dataset = dataset,
                              .model = model,
                              .dtype = dtype,
                              .micro_batches = sizes,
                              .schedule = "dynamic",
                              .global_batch = n_sequences,
                              .n_ranks = 1,
                              .n_threads = 1,
                              .recompute = "none",
                              .gradient_sum = "late" };
}

static void must_equal(const struct law_case *c, const struct law_outcome *a,
                       const struct law_outcome *b)
{
    char what[240];

    snprintf(what, sizeof what,
             "%s %s %s %s, %d ranks, tp %d, pp %d, zero %d, recompute %s, poison %d", c->model,
             c->dtype, c->micro_batches ? c->micro_batches : "", c->gradient_sum, c->n_ranks,
             max_int(c->tp, 1), max_int(c->pp, 1), c->zero, c->recompute, c->poison);
    for (int i = 0; i < LAW_STEPS; i++)
        if (memcmp(&a->loss[i], &b->loss[i], sizeof a->loss[i]) != 0 ||
            memcmp(&a->norm[i], &b->norm[i], sizeof a->norm[i]) != 0)
            fail_msg("%s: step %d: loss %a and norm %a, wanted %a and %a", what, i + 1, b->loss[i],
                     b->norm[i], a->loss[i], a->norm[i]);
    if (a->parameters != b->parameters)
        fail_msg("%s: the final parameters differ", what);
    if (a->states != b->states)
        fail_msg("%s: the final masters and moments differ", what);
    if (a->numerics != b->numerics)
        fail_msg("%s: the numerics differ", what);
}

struct way {
    int pp, chunks, zero;
    const char *recompute;
};

/* On dp (and tp) ranks: every way has the bits of one stage, zero 0, nothing recomputed. */
static void all_ways(struct law_case c, int dp, const struct way *ways, size_t n)
{
    int others = dp * max_int(c.tp, 1);

    c.n_ranks = others;
    c.global_batch *= dp;
    struct law_outcome wanted = law_run(&c);
    for (size_t i = 0; i < n; i++) {
        c.pp = ways[i].pp;
        c.n_ranks = others * c.pp;
        c.chunks = ways[i].chunks;
        c.zero = ways[i].zero;
        c.recompute = ways[i].recompute;
        c.poison = i % 2 == 0;
        c.n_threads = 1 + (int)i % 2;
        struct law_outcome got = law_run(&c);
        must_equal(&c, &wanted, &got);
    }
}

static void stages(void **state)
{
    static const struct way ways[] = {
        { 1, 0, 0, "selective" }, { 2, 1, 0, "none" }, { 2, 2, 0, "full" },
        { 4, 1, 0, "none" },      { 4, 2, 0, "[rmsnorm, linear]" },
    };

    (void)state;
    all_ways(base_case("llama-deep", "bf16", RAMPS, RAMPS_SEQUENCES), 1, ways, 5);
    all_ways(base_case("llama-deep", "fp32", MIXED, MIXED_SEQUENCES), 1, ways, 5);
    all_ways(base_case("gpt2", "bf16", RAMPS, RAMPS_SEQUENCES), 1, ways, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages),
    };

    return cmocka_run_group_tests(tests, make_dataset, drop_dataset);
}
