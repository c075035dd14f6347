/*
 * fp8_test.c - products of e4m3 under the law (design.md §5)
 *
 * What is rounded to 8 bits is what other ops have stored, and each product rounds its own
 * operands: so recomputation, stages, shards, slices and threads change no bit. Micro-batches have
 * 160 tokens, and sums of down and of gradients 144 and 288 elements: more than one block of each.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define BATCHES "train.micro_batch=8|"

#define E5M2 "|train.fp8_gradients=e5m2"

static const char *const recipes[] = { BATCHES "train.fp8=blockwise",
                                       BATCHES "train.fp8=tensor" E5M2 };

#define N_RECIPES (int)(sizeof recipes / sizeof *recipes)

static struct law_case fp8_case(const char *model, int recipe, int n_ranks)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = n_ranks;
    c.global_batch = 64;
    c.tuning = recipes[recipe];
    return c;
}

static void check(const char *what, const struct law_outcome *wanted, const struct law_case *law)
{
    struct law_outcome got;

    if (law_left_out())
        return;
    got = law_run(law);
    law_must_equal(what, wanted, &got);
}

static void one_rank(const char *model, int recipe)
{
    struct law_case c = fp8_case(model, recipe, 1);
    struct law_outcome wanted = law_run(&c);

    c.recompute = "full";
    c.n_threads = 3;
    c.poison = 1;
    check("recompute full, 3 threads", &wanted, &c);
    c.recompute = "selective";
    c.stop_after = 2;
    check("recompute selective, stopped", &wanted, &c);
}

static void families(void **state)
{
    (void)state;
    for (int recipe = 0; recipe < N_RECIPES; recipe++) {
        one_rank("llama", recipe);
        one_rank("mixture", recipe);
    }
    one_rank("llama-untied", 0);
}

static void stages(void **state)
{
    static const char *const schedules[] = { "1f1b", "interleaved", "zb-h1", "zb-v" };
    struct law_case c = fp8_case("llama-deep", 0, 1);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.n_ranks = c.pp = 2;
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        c.schedule = schedules[i];
        c.chunks = i == 1 ? 2 : 0;
        c.recompute = i % 2 ? "full" : "none";
        check(schedules[i], &wanted, &c);
    }
}

/* Zero's stages over dp 2, with tp 1 and 2, with context parallelism, then on stages, too. */
static void ranks(void **state)
{
    (void)state;
    for (int recipe = 0; recipe < N_RECIPES; recipe++)
        for (int tp = 1; tp <= 2; tp++) {
            struct law_case c = fp8_case("llama", recipe, 2 * tp);

            c.tp = tp;
            c.gradient_sum = "early";
            struct law_outcome wanted = law_run(&c);
            for (c.zero = 1; c.zero <= 3; c.zero++)
                check("zero", &wanted, &c);
            c.zero = 2;
            c.pp = 2;
            c.n_ranks *= 2;
            c.stop_after = 3;
            c.zero_after = 1 + 1;
            check("zero 2 over two stages, then 1", &wanted, &c);
        }
}

/* With one scale of each tensor, ranks of cp and tp find it together. */
static void context(void **state)
{
    (void)state;
    for (int recipe = 0; recipe < N_RECIPES; recipe++) {
        struct law_case c = fp8_case("llama", recipe, 2);

        c.cp = 2;
        struct law_outcome wanted = law_run(&c);
        c.recompute = "full";
        c.n_threads = 2;
        check("cp 2, recompute full", &wanted, &c);
        c.recompute = "none";
        c.tp = 2;
        c.n_ranks = 8;
        c.gradient_sum = "early";
        wanted = law_run(&c);
        c.zero = 3;
        check("cp 2, tp 2, dp 2, zero 3", &wanted, &c);
    }
}

/* Slices of rows: with one scale of each operand a product is not cut. */
static void slices(void **state)
{
    static const char *const ways[] = { "slices|parallel.overlap_slices=2", "halves" };
    char tuning[256];

    (void)state;
    for (int recipe = 0; recipe < N_RECIPES; recipe++) {
        struct law_case c = fp8_case("llama", recipe, 2);

        c.tp = 2;
        c.tuning = tuning;
        snprintf(tuning, sizeof tuning, "%s|parallel.overlap=none", recipes[recipe]);
        struct law_outcome wanted = law_run(&c);
        for (int i = 0; i < 2; i++) {
            snprintf(tuning, sizeof tuning, "%s|parallel.overlap=%s", recipes[recipe], ways[i]);
            c.recompute = i ? "full" : "none";
            check(ways[i], &wanted, &c);
        }
    }
}

/* Rounded by each product, or once a step: by a rank that has all of a weight, or by those that
 * have shards, which cut blocks. */
static void weights(void **state)
{
    static const char *const holds[] = { "op", "pass", "run", "step" };

    (void)state;
    for (int recipe = 0; recipe < N_RECIPES; recipe++)
        for (int tp = 1; tp <= 2; tp++) {
            struct law_case c = fp8_case("llama", recipe, 2 * tp);
            char by_product[256];

            snprintf(by_product, sizeof by_product, "%s|train.fp8_weights=product",
                     recipes[recipe]);
            c.tp = tp;
            c.gradient_sum = "early";
            c.tuning = by_product;
            struct law_outcome wanted = law_run(&c);
            c.tuning = recipes[recipe];
            for (c.zero = 0; c.zero <= 2; c.zero++)
                check("once a step", &wanted, &c);
            for (int i = 0; i < 4; i++) {
                c.hold = holds[i];
                c.recompute = i % 2 ? "full" : "none";
                check(holds[i], &wanted, &c);
            }
        }
}

/* Adapters' own products are not rounded; those of the frozen matrices are. */
static void adapters(void **state)
{
    struct law_case c = fp8_case("llama", 0, 1);

    (void)state;
    c.tuning = BATCHES "train.fp8=blockwise|lora.rank=4";
    struct law_outcome wanted = law_run(&c);
    c.n_ranks = c.pp = 2;
    c.recompute = "full";
    check("adapters on two stages", &wanted, &c);
    c.n_ranks = 2;
    c.pp = 1;
    c.gradient_sum = "early";
    c.tuning = BATCHES "train.fp8=blockwise|lora.rank=4|train.fp8_weights=product";
    wanted = law_run(&c);
    c.tuning = BATCHES "train.fp8=blockwise|lora.rank=4";
    c.zero = 3;
    check("adapters, frozen shards", &wanted, &c);
}

enum { N_OTHERS = 5 };

/* Other bits, of another hash, and near those of bf16; each recipe, and each number of edges. */
static void near_bf16(void **state)
{
    static const char *const others[N_OTHERS] = {
        BATCHES "train.fp8=blockwise", BATCHES "train.fp8=tensor", BATCHES "train.fp8=tensor" E5M2,
        BATCHES "train.fp8=blockwise|train.fp8_edge_layers=0",
        BATCHES "train.fp8=blockwise|train.fp8_dw=bf16"
    };
    struct law_case c = law_base("llama", "bf16");
    struct law_outcome got[N_OTHERS + 1];

    (void)state;
    c.global_batch = 64;
    c.tuning = "train.micro_batch=8";
    got[0] = law_run(&c);
    for (int i = 1; i <= N_OTHERS; i++) {
        c.tuning = others[i - 1];
        got[i] = law_run(&c);
        for (int k = 0; k < i; k++) {
            assert_true(got[i].numerics != got[k].numerics);
            assert_true(got[i].norm[0] != got[k].norm[0]);
        }
        for (int step = 0; step < LAW_STEPS; step++)
            if (fabs(got[i].loss[step] - got[0].loss[step]) > 0.015 * got[0].loss[step])
                fail_msg("%s: step %d: loss %g, in bf16 %g", c.tuning, step + 1, got[i].loss[step],
                         got[0].loss[step]);
        assert_true(fabs(got[i].norm[0] - got[0].norm[0]) < 0.05 * got[0].norm[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families), cmocka_unit_test(stages),    cmocka_unit_test(ranks),
        cmocka_unit_test(context),  cmocka_unit_test(slices),    cmocka_unit_test(weights),
        cmocka_unit_test(adapters), cmocka_unit_test(near_bf16),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
