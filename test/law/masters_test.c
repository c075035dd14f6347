/*
 * masters_test.c - masters in two words have the bits of whole ones under the law (design.md §5)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define WHOLE "optimizer.weight_rounding=half_away"
#define SPLIT WHOLE "|optimizer.masters=split"

static struct law_case base_case(const char *model, int dp, const char *sum)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = dp;
    c.gradient_sum = sum;
    c.tuning = WHOLE;
    return c;
}

static void zero_stages(const char *model, int tp)
{
    struct law_case c = base_case(model, 2 * tp, "early");

    c.tp = tp;
    struct law_outcome wanted = law_run(&c);
    c.tuning = SPLIT;
    for (c.zero = 0; c.zero < 4; c.zero++) {
        c.n_threads = 1 + c.zero;
        c.bucket_mb = c.zero == 1 ? 64 : 1;
        c.poison = c.zero == 2;
        law_must_run_alike(&c, &wanted);
    }
}

static void zero(void **state)
{
    (void)state;
    zero_stages("llama-untied", 1);
    zero_stages("gpt2", 1);
}

static void zero_of_parts(void **state)
{
    (void)state;
    zero_stages("llama", 2);
}

static void one_rank(void **state)
{
    struct law_case c = base_case("mixture", 1, "late");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.tuning = SPLIT;
    c.recompute = "full";
    law_must_run_alike(&c, &wanted);
}

static void pipelines(void **state)
{
    struct law_case c = base_case("llama-deep", 2, "early");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.tuning = SPLIT;
    c.pp = 2;
    c.n_ranks = 4;
    for (int s = 0; s < 2; s++) {
        c.schedule = s ? "zb-h1" : "1f1b";
        c.zero = s ? 3 : 1;
        law_must_run_alike(&c, &wanted);
    }
}

#define LORA "|lora.rank=4"

static void adapters(void **state)
{
    struct law_case c = base_case("llama", 2, "early");

    (void)state;
    c.tuning = WHOLE LORA;
    struct law_outcome wanted = law_run(&c);
    c.tuning = SPLIT LORA;
    for (c.zero = 0; c.zero < 4; c.zero += 3)
        law_must_run_alike(&c, &wanted);
}

/* Whole from split and the other way, in another layout: checkpoints are alike. */
static void resumed(void **state)
{
    struct law_case c = base_case("llama", 2, "early");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    for (c.stop_after = 1; c.stop_after < LAW_STEPS; c.stop_after += 2) {
        c.tuning = c.stop_after == 1 ? SPLIT : WHOLE;
        c.tuning_after = c.stop_after == 1 ? WHOLE : SPLIT;
        c.zero = c.stop_after == 3;
        c.zero_after = c.zero ? 4 : 3;
        law_must_run_alike(&c, &wanted);
    }
    c.stop_after = 2;
    c.tuning = c.tuning_after = SPLIT;
    c.zero = 3;
    c.zero_after = 1;
    c.n_ranks_after = 4;
    c.pp_after = 2;
    law_must_run_alike(&c, &wanted);
}

/* Halves are rare: the first bits to differ are those of weights that lie between two. */
static void rounding_is_numerics(void **state)
{
    struct law_case c = base_case("llama", 1, "late");
    struct law_outcome away = law_run(&c);

    (void)state;
    c.tuning = NULL;
    struct law_outcome even = law_run(&c);
    assert_true(away.numerics != even.numerics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero),
        cmocka_unit_test(zero_of_parts),
        cmocka_unit_test(one_rank),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(adapters),
        cmocka_unit_test(resumed),
        cmocka_unit_test(rounding_is_numerics),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
