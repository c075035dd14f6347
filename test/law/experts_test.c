/*
 * experts_test.c - the law of mixtures whose experts are divided over ranks (parallel.ep)
 *
 * Rows of tokens go to the ranks that have their experts and come back as they would have been
 * computed at home: the loss of the first step has the bits that it has without ep, whatever else
 * divides the model. Then experts' gradients are sums over other ranks' tokens in one product, so
 * that ep is of the numerics: among runs of one ep all bits are equal.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/law_rig.h"

static const char *const models[] = { "mixture", "routed", "counted" };

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

/* Twelve experts, which 1, 2 or 4 ranks divide. */
static const char *ep_text(int ep)
{
    static const char *const texts[] = { [1] = "model.n_experts=12",
                                         [2] = "model.n_experts=12|parallel.ep=2",
                                         [4] = "model.n_experts=12|parallel.ep=4" };

    return texts[ep];
}

/* ---- ep and no ep ---- */

static void the_first_loss_does_not_move(void **state)
{
    static const struct {
        int n_ranks, ep, tp, pp, cp;
        const char *dtype;
    } cases[] = {
        { 2, 2, 1, 1, 1, "bf16" }, { 4, 2, 1, 1, 1, "fp32" }, { 4, 4, 1, 1, 1, "bf16" },
        { 4, 2, 2, 1, 1, "bf16" }, { 4, 2, 1, 2, 1, "fp32" }, { 4, 2, 1, 1, 2, "bf16" },
    };

    (void)state;
    for (int m = 0; m < COUNT(models); m++)
        for (int i = 0; i < COUNT(cases); i++) {
            struct law_case c = law_base(models[m], cases[i].dtype);

            if (law_left_out())
                continue;
            c.n_ranks = cases[i].n_ranks;
            c.tp = cases[i].tp;
            c.pp = cases[i].pp;
            c.cp = cases[i].cp;
            c.tuning = ep_text(1);
            struct law_outcome without = law_run(&c);
            c.tuning = ep_text(cases[i].ep);
            struct law_outcome with = law_run(&c);
            if (with.loss[0] != without.loss[0])
                fail_msg("%s, %d ranks, ep %d, tp %d, pp %d, cp %d: %a, not %a", c.model, c.n_ranks,
                         cases[i].ep, c.tp, c.pp, c.cp, with.loss[0], without.loss[0]);
            for (int step = 0; step < LAW_STEPS; step++) {
                double tolerance = strcmp(c.dtype, "fp32") ? 2e-2 : 1e-5;

                assert_true(fabs(with.loss[step] - without.loss[step]) < tolerance);
                assert_true(fabs(with.norm[step] / without.norm[step] - 1) < 4 * tolerance);
            }
            assert_true(with.numerics != without.numerics);
        }
}

/*
 * Where experts' matrices are frozen, all that is trained is reduced over ep and dp as it is over
 * as many ranks without ep: no bit of the whole run tells them apart, at any zero stage.
 */
static void other_gradients_do_not_move(void **state)
{
    static const char frozen[] = "train.freeze=[\"layers.*.experts.*\"]";
    char text[256], what[64];

    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        struct law_case c = law_base(zero % 2 ? "mixture" : "routed", zero < 2 ? "bf16" : "fp32");
        int ep = zero == 1 ? 4 : 2;

        if (law_left_out())
            continue;
        c.n_ranks = 4;
        c.gradient_sum = zero % 3 ? "early" : "late";
        snprintf(text, sizeof text, "%s|%s", frozen, ep_text(1));
        c.tuning = text;
        struct law_outcome without = law_run(&c);
        snprintf(text, sizeof text, "%s|%s", frozen, ep_text(ep));
        c.zero = zero;
        struct law_outcome with = law_run(&c);
        snprintf(what, sizeof what, "%s, ep %d, zero %d", c.model, ep, zero);
        assert_true(with.numerics != without.numerics);
        with.numerics = without.numerics;
        with.parameters = without.parameters; /* experts' are hashed by their parts */
        law_must_equal(what, &without, &with);
    }
}

/* ---- whole experts on tp ranks ---- */

/* The rows that experts get are the same for ep 1 and 2; and what is no numerics changes no bit. */
static void tp_ranks_have_whole_experts(void **state)
{
    static const struct {
        int n_ranks, ep, zero, pp;
        const char *sum, *recompute;
    } cases[] = { { 4, 1, 1, 1, "late", "full" },
                  { 4, 2, 3, 1, "early", "none" },
                  { 8, 2, 2, 2, "late", "selective" } };
    char text[128], what[64];

    (void)state;
    for (int m = 0; m < COUNT(models); m++) {
        struct law_case c = law_base(models[m], m % 2 ? "fp32" : "bf16");

        c.n_ranks = 4;
        c.tp = 2;
        c.tuning = ep_text(1);
        struct law_outcome divided = law_run(&c);
        for (int i = m; i < COUNT(cases) && !law_left_out(); i += 2) {
            snprintf(text, sizeof text, "%s|moe.expert_tp=1", ep_text(cases[i].ep));
            c.tuning = text;
            c.gradient_sum = cases[i].sum;
            c.zero = 0;
            c.n_ranks = 4;
            c.pp = 1;
            c.recompute = "none";
            struct law_outcome wanted = law_run(&c);
            c.zero = cases[i].zero;
            c.n_ranks = cases[i].n_ranks;
            c.pp = cases[i].pp;
            c.recompute = cases[i].recompute;
            c.poison = 1;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "whole experts, %s, ep %d", c.model, cases[i].ep);
            law_must_equal(what, &wanted, &got);
            assert_true(got.numerics != divided.numerics);
            for (int step = 0; step < LAW_STEPS; step++) {
                double tolerance = m % 2 ? 1e-5 : 2e-2;

                assert_true(fabs(got.loss[step] - divided.loss[step]) < tolerance);
                assert_true(fabs(got.norm[step] / divided.norm[step] - 1) < 4 * tolerance);
            }
        }
    }
}

/* ---- runs of one ep ---- */

/* What may differ; n_ranks_after 0: it does not stop. */
static const struct way {
    int zero, pp, stop_after, n_ranks_after, pp_after;
    const char *gradient_sum, *schedule, *recompute;
} ways[] = {
    { 1, 1, 0, 0, 0, "late", "1f1b", "full" },  { 2, 1, 2, 8, 2, "early", "1f1b", "none" },
    { 3, 1, 1, 0, 0, "early", "1f1b", "full" }, { 0, 2, 0, 0, 0, "late", "zb-h1", "selective" },
    { 1, 2, 3, 4, 1, "early", "1f1b", "full" }, { 3, 1, 2, 0, 0, "late", "1f1b", "[dispatch]" },
};

/* A case as it is, and in this way: the same bits. */
static void try_way_of(const struct law_case *as_it_is, const struct way *way)
{
    struct law_case c = *as_it_is;
    char what[200];

    c.gradient_sum = way->gradient_sum;
    struct law_outcome wanted = law_run(&c);
    c.n_ranks *= way->pp;
    c.pp = way->pp;
    c.zero = way->zero;
    c.schedule = way->schedule;
    c.recompute = way->recompute;
    c.stop_after = way->stop_after;
    c.n_ranks_after = way->n_ranks_after;
    c.pp_after = way->pp_after;
    c.poison = 1;
    c.n_threads = 2;
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "%s %s, %s, zero %d, pp %d %s, %s, recompute %s", c.model, c.dtype,
             c.tuning, c.zero, c.pp, c.schedule, c.gradient_sum, c.recompute);
    law_must_equal(what, &wanted, &got);
}

/* Of four data-parallel ranks. */
static void try_way(const char *model, const char *dtype, int ep, const struct way *way)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = 4;
    c.tuning = ep_text(ep);
    try_way_of(&c, way);
}

static void ways_of_one_ep(void **state)
{
    (void)state;
    for (int m = 0; m < COUNT(models); m++)
        for (int w = 0; w < COUNT(ways); w++)
            if (!law_left_out())
                try_way(models[m], w % 2 ? "fp32" : "bf16", (m + w) % 3 ? 2 : 4, &ways[w]);
}

/* Between the ranks that shard what all have lie those of the other stage. */
static void pipelines_may_be_neighbours(void **state)
{
    struct law_case c = law_base("mixture", "bf16");
    char text[128];

    (void)state;
    c.n_ranks = 8;
    c.pp = 2;
    c.zero = 1;
    c.tuning = ep_text(2);
    struct law_outcome wanted = law_run(&c);
    snprintf(text, sizeof text, "%s|parallel.order=tp-pp-dp", ep_text(2));
    c.tuning = text;
    struct law_outcome got = law_run(&c);
    law_must_equal("order tp-pp-dp", &wanted, &got);
}

/* ---- adapters of experts ---- */

#define EXPERT_LORA "|lora.rank=3|lora.targets=[all, experts]"

/* Each rank has the A and B of its experts: the first loss, and all that follows among runs of one
 * ep, kept or computed again, stopped or not. */
static void experts_have_adapters(void **state)
{
    static const struct way adapted[] = {
        { 1, 1, 0, 0, 0, "late", "1f1b", "full" },
        { 2, 1, 2, 4, 1, "early", "1f1b", "[expert_linear, expert_lora, scale]" },
        { 3, 2, 1, 0, 0, "late", "zb-h1", "none" },
    };
    struct law_case c = law_base("routed", "fp32");

    (void)state;
    c.n_ranks = 4;
    c.tuning = "model.n_experts=12" EXPERT_LORA;
    struct law_outcome without = law_run(&c);
    c.tp = 2;
    c.tuning = "model.n_experts=12|parallel.ep=2" EXPERT_LORA;
    struct law_outcome over_tp = law_run(&c);
    c.tuning = "model.n_experts=12|parallel.ep=2|moe.expert_tp=1" EXPERT_LORA;
    struct law_outcome whole = law_run(&c);
    c.tuning = "model.n_experts=12|parallel.ep=2" EXPERT_LORA;
    c.tp = 1;
    struct law_outcome with = law_run(&c);
    assert_true(with.loss[0] == without.loss[0]);
    for (int step = 0; step < LAW_STEPS; step++) {
        assert_true(fabs(with.loss[step] - without.loss[step]) < 1e-5);
        assert_true(fabs(with.norm[step] / without.norm[step] - 1) < 1e-4);
        assert_true(fabs(over_tp.loss[step] - without.loss[step]) < 1e-4);
        assert_true(fabs(whole.loss[step] - without.loss[step]) < 1e-4);
    }
    for (int w = 0; w < COUNT(adapted); w++)
        try_way_of(&c, &adapted[w]);
}

/* ---- a capacity ---- */

#define CAPACITY(factor, drop) "|moe.capacity_factor=" factor "|moe.drop=" drop

/* What drops is decided where tokens are: it hangs on neither ep, tp nor pp, and what is kept or
 * computed again does not change it. */
static void choices_beyond_a_capacity_are_dropped(void **state)
{
    static const struct way limited[] = {
        { 1, 1, 0, 0, 0, "late", "1f1b", "full" },
        { 2, 1, 2, 4, 1, "early", "1f1b", "[dispatch, expert_swiglu]" },
        { 3, 2, 1, 0, 0, "late", "zb-h1", "selective" },
    };
    static const char *const drops[] = { CAPACITY("0.8", "position"),
                                         CAPACITY("0.8", "probability") };

    (void)state;
    for (int i = 0; i < COUNT(drops); i++) {
        struct law_case c = law_base("routed", i ? "bf16" : "fp32");
        char text[2][160];

        for (int k = 0; k < 2; k++)
            snprintf(text[k], sizeof text[k], "%s%s", ep_text(k ? 2 : 1), drops[i]);
        c.n_ranks = 4;
        c.tuning = ep_text(1);
        struct law_outcome dropless = law_run(&c);
        c.tuning = text[0];
        struct law_outcome without = law_run(&c);
        c.tuning = text[1];
        struct law_outcome with = law_run(&c);
        c.tp = 2;
        struct law_outcome over_tp = law_run(&c);
        c.tp = 1;
        assert_true(without.loss[0] != dropless.loss[0]);
        assert_true(without.numerics != dropless.numerics);
        assert_true(with.loss[0] == without.loss[0]);
        assert_true(fabs(over_tp.loss[0] - without.loss[0]) < (i ? 2e-2 : 1e-5));
        for (int w = 0; w < COUNT(limited); w++)
            if (!law_left_out())
                try_way_of(&c, &limited[w]);
    }
}

/* An expert that has room for all tokens drops none: the bits are those of no capacity. */
static void a_capacity_for_all_drops_nothing(void **state)
{
    struct law_case c = law_base("mixture", "bf16");

    (void)state;
    c.n_ranks = 2;
    c.tuning = ep_text(2);
    struct law_outcome dropless = law_run(&c);
    c.tuning = "model.n_experts=12|parallel.ep=2|moe.capacity_factor=12";
    struct law_outcome limited = law_run(&c);
    for (int step = 0; step < LAW_STEPS; step++) {
        assert_true(limited.loss[step] == dropless.loss[step]);
        assert_true(limited.norm[step] == dropless.norm[step]);
    }
}

/* ---- from one ep to another ---- */

/* States have global names, whichever rank has an expert: what goes on is what was saved. */
static void a_run_goes_on_under_another_ep(void **state)
{
    struct law_case c = law_base("routed", "bf16");

    (void)state;
    c.n_ranks = 4;
    c.tuning = ep_text(4);
    c.zero = 1;
    c.stop_after = 2;
    struct law_outcome same = law_run(&c);
    c.tuning_after = ep_text(1);
    struct law_outcome other = law_run(&c);
    for (int step = 0; step < 2; step++)
        assert_true(same.loss[step] == other.loss[step]);
    assert_true(other.loss[2] == same.loss[2]);
    assert_true(fabs(other.loss[3] - same.loss[3]) < 2e-2);
    /* Whole experts on tp ranks, then parts of each. */
    c.tp = 2;
    c.tuning = "model.n_experts=12|parallel.ep=2|moe.expert_tp=1";
    struct law_outcome divided = law_run(&c);
    for (int step = 0; step < LAW_STEPS; step++)
        assert_true(fabs(divided.loss[step] - same.loss[step]) < 2e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_loss_does_not_move),
        cmocka_unit_test(other_gradients_do_not_move),
        cmocka_unit_test(tp_ranks_have_whole_experts),
        cmocka_unit_test(ways_of_one_ep),
        cmocka_unit_test(experts_have_adapters),
        cmocka_unit_test(pipelines_may_be_neighbours),
        cmocka_unit_test(choices_beyond_a_capacity_are_dropped),
        cmocka_unit_test(a_capacity_for_all_drops_nothing),
        cmocka_unit_test(a_run_goes_on_under_another_ep),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
