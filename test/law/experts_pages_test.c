/*
 * experts_pages_test.c - rows of experts in pages (program/pages.c) change no bit, and neither does
 * a step that is run again because there were too few pages
 *
 * The reference has memory for all rows there can be. Half of the pages of balanced rows are too
 * few in every step; as many as balanced rows take are too few in some.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))
#define ROOM "|moe.stash_factor=0"

/* Twelve experts on 2 or 4 ranks. */
static const char *settings(int ep, const char *more)
{
    static char text[2][160];
    static int turn;

    turn = !turn;
    snprintf(text[turn], sizeof text[turn], "model.n_experts=12|parallel.ep=%d%s", ep, more);
    return text[turn];
}

static const struct way {
    const char *model, *dtype;
    int ep, zero, pp, stop_after;
    const char *gradient_sum, *schedule, *recompute;
} ways[] = {
    { "mixture", "bf16", 2, 0, 1, 0, "late", "1f1b", "none" },
    { "routed", "fp32", 4, 1, 1, 2, "late", "1f1b", "none" },
    { "counted", "bf16", 2, 2, 1, 0, "early", "1f1b", "selective" },
    { "mixture", "fp32", 2, 3, 1, 1, "early", "1f1b", "none" },
    { "routed", "bf16", 2, 0, 2, 0, "late", "zb-h1", "none" },
    { "mixture", "bf16", 4, 2, 2, 3, "early", "interleaved", "[dispatch]" },
    { "counted", "fp16", 2, 1, 2, 0, "late", "1f1b", "none" },
};

static struct law_case case_of(const struct way *way, const char *more)
{
    struct law_case c = law_base(way->model, way->dtype);

    c.tuning = settings(way->ep, more);
    c.n_ranks = 4 * way->pp;
    c.pp = way->pp;
    c.zero = way->zero;
    c.gradient_sum = way->gradient_sum;
    c.schedule = way->schedule;
    c.recompute = way->recompute;
    return c;
}

static void no_bit_depends_on_pages(void **state)
{
    static const char *const factors[] = { "|moe.stash_factor=0.5", "|moe.stash_factor=1.0",
                                           "|moe.stash_factor=1.3" };

    (void)state;
    for (int w = 0; w < COUNT(ways); w++) {
        struct law_case c = case_of(&ways[w], ROOM);
        struct law_outcome wanted = law_run(&c);

        assert_int_equal(wanted.n_reruns, 0);
        for (int f = 0; f < COUNT(factors); f++) {
            char what[160];

            if (law_left_out())
                continue;
            c = case_of(&ways[w], factors[f]);
            c.stop_after = f == 1 ? ways[w].stop_after : 0;
            c.poison = 1;
            c.n_threads = 2;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "way %d, %s", w, factors[f]);
            law_must_equal(what, &wanted, &got);
            if (f == 0 && got.n_reruns != LAW_STEPS)
                fail_msg("%s: %d reruns", what, (int)got.n_reruns);
        }
    }
}

/* What is kept by a stage's layers in another place, or not at all, is in no pages. */
static void a_full_recompute_has_none(void **state)
{
    struct law_case c = law_base("mixture", "bf16");

    (void)state;
    c.n_ranks = 2;
    c.tuning = settings(2, ROOM);
    struct law_outcome wanted = law_run(&c);
    c.recompute = "full";
    c.tuning = settings(2, "|moe.stash_factor=0.5");
    struct law_outcome got = law_run(&c);
    law_must_equal("full", &wanted, &got);
    assert_int_equal(got.n_reruns, 0);
}

/* Adapters of experts have rows of theirs; with a capacity there are fewer, on whole experts of tp
 * ranks other ones. */
static void whatever_the_rows_are(void **state)
{
    static const struct {
        const char *more;
        int tp;
    } cases[] = {
        { "|lora.rank=2|lora.targets=[experts]", 1 },
        { "|moe.capacity_factor=1.5", 1 },
        { "|moe.expert_tp=1|moe.capacity_factor=1.2", 2 },
        { "|moe.expert_tp=1|lora.rank=2|lora.targets=[experts]", 2 },
    };

    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct law_case c = law_base("mixture", i % 2 ? "fp32" : "bf16");
        char text[128];

        if (law_left_out())
            continue;
        c.n_ranks = 4;
        c.tp = cases[i].tp;
        snprintf(text, sizeof text, "%s%s", ROOM, cases[i].more);
        c.tuning = settings(2, text);
        struct law_outcome wanted = law_run(&c);
        snprintf(text, sizeof text, "|moe.stash_factor=0.5%s", cases[i].more);
        c.tuning = settings(2, text);
        struct law_outcome got = law_run(&c);
        law_must_equal(cases[i].more, &wanted, &got);
        assert_int_equal(got.n_reruns, LAW_STEPS);
    }
}

/* Both computations of a step's first micro-batch recompute the rows. */
static void a_step_that_is_checked_does_not_depend_on_them(void **state)
{
    struct law_case c = law_base("mixture", "bf16");

    (void)state;
    c.n_ranks = 4;
    c.tuning = settings(2, ROOM);
    struct law_outcome wanted = law_run(&c);
    c.tuning = settings(2, "|moe.stash_factor=0.5|train.recheck_every=2");
    struct law_outcome got = law_run(&c);
    law_must_equal("rechecked", &wanted, &got);
    assert_int_equal(got.n_reruns, LAW_STEPS - LAW_STEPS / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_depends_on_pages),
        cmocka_unit_test(a_full_recompute_has_none),
        cmocka_unit_test(whatever_the_rows_are),
        cmocka_unit_test(a_step_that_is_checked_does_not_depend_on_them),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
