/*
 * experts_fp8_test.c - the law of experts' products in e4m3 (train.fp8_experts)
 *
 * An expert has all of its rows on one rank, in one order, and its blocks begin with them: so what
 * is kept, recomputed, sharded, gathered as codes, cut into groups of experts, or laid into pages
 * changes no bit, and ep does not move the loss of the first step (blockwise). Experts are of 160:
 * more than one block, and of whole ones and a part also on two tp ranks.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define SIZES \
    "|train.fp8_edge_layers=0|train.micro_batch=8|model.expert_ffn_size=160|" \
    "model.n_experts=4"
#define FP8 "train.fp8=blockwise" SIZES
#define TENSOR "train.fp8=tensor" SIZES
#define PRODUCT "|train.fp8_weights=product"
#define EXPERTS "|train.fp8_experts=fp8"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

static struct law_case experts_case(int n_ranks, const char *tuning)
{
    struct law_case c = law_base("mixture", "bf16");

    c.n_ranks = n_ranks;
    c.global_batch = 64;
    c.tuning = tuning;
    return c;
}

/* Other bits than with experts of bf16, of another hash, near those. */
static void near_bf16(void **state)
{
    static const char *const others[] = { FP8, FP8 EXPERTS, FP8 EXPERTS "|train.fp8_dw=bf16",
                                          TENSOR EXPERTS, TENSOR EXPERTS "|train.fp8_dw=bf16" };
    struct law_outcome got[COUNT(others)];

    (void)state;
    for (int i = 0; i < COUNT(others); i++) {
        struct law_case c = experts_case(1, others[i]);

        got[i] = law_run(&c);
        for (int k = 0; k < i; k++) {
            assert_true(got[i].numerics != got[k].numerics);
            assert_true(got[i].norm[0] != got[k].norm[0]);
        }
        for (int step = 0; step < LAW_STEPS; step++)
            assert_true(fabs(got[i].loss[step] - got[0].loss[step]) < 0.015 * got[0].loss[step]);
    }
}

static void one_rank(void **state)
{
    struct law_case c = experts_case(1, FP8 EXPERTS PRODUCT);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.tuning = FP8 EXPERTS;
    c.recompute = "full";
    c.n_threads = 3;
    c.poison = 1;
    law_must_run_alike(&c, &wanted);
    c.recompute = "[expert_linear]";
    c.stop_after = 2;
    law_must_run_alike(&c, &wanted);
    c.n_ranks = c.pp = 2;
    c.stop_after = 0;
    c.schedule = "zb-h1";
    law_must_run_alike(&c, &wanted);
}

/* both: also of the reference, which rounds weights by product and has zero 0. */
static const struct way {
    const char *both, *own;
    int n_ranks, tp, zero;
    const char *recompute;
} ways[] = {
    { "", "", 2, 1, 1, "full" },
    { "", "", 2, 1, 3, "none" },
    { "|parallel.ep=2", "", 2, 1, 0, "full" },
    { "|parallel.ep=2", "", 4, 1, 1, "none" },
    { "|parallel.ep=2", "", 4, 1, 2, "selective" },
    { "|parallel.ep=2", "|parallel.overlap=slices|parallel.overlap_slices=2", 4, 1, 3, "full" },
    { "", "", 4, 2, 2, "none" },
    { "|parallel.ep=2", "|parallel.overlap=slices|parallel.overlap_slices=2", 4, 2, 0, "none" },
    { "|parallel.ep=2|moe.expert_tp=1", "", 4, 2, 3, "none" },
    { "|parallel.ep=2|moe.stash_factor=0", "|moe.stash_factor=0.5", 2, 1, 1, "none" },
};

static void check_way(const char *recipe, const struct way *way)
{
    char text[512];
    struct law_case c = experts_case(way->n_ranks, text);

    c.tp = way->tp;
    c.gradient_sum = "early";
    snprintf(text, sizeof text, "%s%s%s", recipe, PRODUCT, way->both);
    struct law_outcome wanted = law_run(&c);
    snprintf(text, sizeof text, "%s%s%s", recipe, way->both, way->own);
    c.zero = way->zero;
    c.recompute = way->recompute;
    c.poison = 1;
    law_must_run_alike(&c, &wanted);
}

static void layouts(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(ways); i++)
        if (!law_left_out())
            check_way(FP8 EXPERTS, &ways[i]);
}

/* A scale of each expert's rows, and of what a rank has of its matrices. */
static void layouts_by_tensor(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(ways); i++)
        if (!law_left_out())
            check_way(TENSOR EXPERTS, &ways[i]);
}

/* Rows come home as they would have been computed there; but of a tensor, other rows of an expert
 * would change the scale. */
static void the_first_loss_does_not_move(void **state)
{
    static const char *const eps[] = { FP8 EXPERTS, FP8 EXPERTS "|parallel.ep=2",
                                       FP8 EXPERTS "|parallel.ep=4" };
    double first = 0;

    (void)state;
    for (int i = 0; i < COUNT(eps); i++) {
        struct law_case c = experts_case(4, eps[i]);
        struct law_outcome got = law_run(&c);

        if (i == 0)
            first = got.loss[0];
        if (got.loss[0] != first)
            fail_msg("%s: %a, without ep %a", eps[i], got.loss[0], first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_bf16),
        cmocka_unit_test(one_rank),
        cmocka_unit_test(layouts),
        cmocka_unit_test(layouts_by_tensor),
        cmocka_unit_test(the_first_loss_does_not_move),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
