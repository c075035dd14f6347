/*
 * recheck_test.c - a recheck in every step changes no bit, and finds nothing where all is well;
 * nor does an optimizer behind a second gate (split_optimizer)
 *
 * Its entry runs the step's functions on the step's memory before the step, and what it leaves
 * behind must not be seen: with memory poisoned, over all stages of zero, schedules and meshes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define RECHECK "train.recheck_every=1|train.on_spike=skip"

struct way {
    const char *model, *dtype, *schedule, *hold, *gradient_sum, *recompute;
    int dp, tp, pp, chunks, zero, zero_group;
    const char *states; /* of the optimizer; NULL: fp32 */
};

static void check(const struct way *w)
{
    struct law_case c = law_base(w->model, w->dtype);
    char what[160], tuning[160], plain[96] = "";

    if (law_left_out())
        return;
    c.n_ranks = w->dp * w->tp * w->pp;
    c.tp = w->tp;
    c.pp = w->pp;
    c.chunks = w->chunks;
    c.schedule = w->schedule;
    c.zero = w->zero;
    c.zero_group = w->zero_group;
    c.hold = w->hold;
    c.gradient_sum = w->gradient_sum;
    c.recompute = w->recompute;
    if (w->states)
        snprintf(plain, sizeof plain, "optimizer.states=%s", w->states);
    c.tuning = plain[0] ? plain : NULL;
    struct law_outcome wanted = law_run(&c);
    snprintf(tuning, sizeof tuning, "%s%s%s", plain, plain[0] ? "|" : "", RECHECK);
    c.tuning = tuning;
    c.poison = 1;
    struct law_outcome got = law_run(&c);
    /* What is done about spikes is a part of its description; there are none. */
    got.numerics = wanted.numerics;
    snprintf(what, sizeof what, "%s %s dp %d tp %d pp %d %s zero %d %s %s %s", w->model, w->dtype,
             w->dp, w->tp, w->pp, w->schedule ? w->schedule : "", w->zero, w->hold ? w->hold : "",
             w->gradient_sum, plain);
    law_must_equal(what, &wanted, &got);
}

#define MUON "fp32|optimizer.name=muon"
#define SPLIT "fp32|optimizer.weight_rounding=half_away|optimizer.masters=split"

static void test_ways(void **state)
{
    static const struct way ways[] = {
        { "gpt2", "fp32", NULL, NULL, "late", "none", 1, 1, 1, 0, 0, 0, NULL },
        { "gpt2", "fp32", NULL, NULL, "late", "selective", 4, 1, 1, 0, 0, 0, NULL },
        { "llama", "bf16", NULL, NULL, "late", "none", 2, 1, 1, 0, 1, 0, NULL },
        { "llama", "bf16", NULL, NULL, "early", "full", 2, 1, 1, 0, 2, 0, NULL },
        { "llama", "bf16", NULL, "op", "early", "none", 4, 1, 1, 0, 3, 0, NULL },
        { "gpt2", "fp32", NULL, "pass", "late", "none", 2, 1, 1, 0, 3, 0, NULL },
        { "llama", "bf16", NULL, NULL, "late", "none", 4, 1, 1, 0, 1, 2, NULL },
        { "llama", "fp32", NULL, NULL, "late", "none", 2, 2, 1, 0, 1, 0, NULL },
        { "gpt2", "bf16", NULL, "pass", "late", "none", 2, 2, 1, 0, 3, 0, NULL },
        { "llama-deep", "bf16", "1f1b", NULL, "late", "none", 2, 1, 2, 0, 0, 0, NULL },
        { "llama-deep", "fp32", "zb-h1", NULL, "early", "none", 2, 1, 2, 0, 2, 0, NULL },
        { "llama-deep", "bf16", "interleaved", "run", "late", "none", 2, 1, 2, 4, 3, 0, NULL },
        { "llama-deep", "bf16", "interleaved", "run", "early", "none", 1, 2, 2, 2, 0, 0, NULL },
        { "llama", "bf16", NULL, NULL, "late", "none", 4, 1, 1, 0, 1, 2, "bf16" },
        { "llama", "bf16", NULL, "op", "early", "none", 2, 2, 1, 0, 3, 0, "bf16" },
        { "llama-deep", "bf16", "1f1b", NULL, "late", "none", 2, 1, 2, 0, 2, 0, "bf16" },
        { "llama", "bf16", NULL, NULL, "early", "none", 2, 1, 1, 0, 2, 0, SPLIT },
        { "llama", "bf16", NULL, NULL, "late", "none", 2, 2, 1, 0, 1, 0, MUON },
        { "gpt2", "fp32", NULL, NULL, "early", "none", 4, 1, 1, 0, 3, 0, MUON },
    };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        check(&ways[i]);
}

/* Rows behind those that an expert has are whatever was there: no finding. */
static void test_experts(void **state)
{
    static const struct {
        const char *model, *dtype;
        int n_ranks, ep, zero, poison;
    } ways[] = {
        { "mixture", "bf16", 4, 2, 0, 0 },
        { "routed", "fp32", 4, 2, 1, 0 },
        { "mixture", "fp32", 8, 4, 1, 1 },
        { "counted", "bf16", 2, 2, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct law_case c = law_base(ways[i].model, ways[i].dtype);
        char plain[80], tuning[160];

        if (law_left_out())
            continue;
        snprintf(plain, sizeof plain, "model.n_experts=12|parallel.ep=%d", ways[i].ep);
        c.n_ranks = ways[i].n_ranks;
        c.zero = ways[i].zero;
        c.tuning = plain;
        struct law_outcome wanted = law_run(&c);
        snprintf(tuning, sizeof tuning, "%s|%s", plain, RECHECK);
        c.tuning = tuning;
        c.poison = ways[i].poison;
        struct law_outcome got = law_run(&c);
        got.numerics = wanted.numerics;
        law_must_equal(plain, &wanted, &got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_experts),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
