/*
 * states_test.c - optimizer states in bf16 under the law (design.md §5)
 *
 * What is rounded by chance is rounded by the same numbers whichever rank has it, in whatever
 * bucket, and after a stop.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/law_rig.h"

static struct law_case base_case(const char *model, const char *dtype, int dp, const char *sum)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = dp;
    c.gradient_sum = sum;
    c.tuning = "optimizer.states=bf16";
    return c;
}

static void zero_stages(const char *model, const char *dtype, int tp, const char *more)
{
    static const char *const sums[] = { "early", "late" };

    for (int s = 0; s < 2; s++) {
        struct law_case c = base_case(model, dtype, 2 * tp, sums[s]);

        c.tp = tp;
        c.tuning = more ? more : c.tuning;
        struct law_outcome wanted = law_run(&c);
        for (c.zero = 1; c.zero < 4; c.zero++) {
            c.n_threads = c.zero;
            c.bucket_mb = c.zero == 1 ? 64 : 1;
            law_must_run_alike(&c, &wanted);
        }
    }
}

static void zero_of_bf16(void **state)
{
    (void)state;
    zero_stages("llama-untied", "bf16", 1, NULL);
}

static void zero_of_fp32(void **state)
{
    (void)state;
    zero_stages("gpt2", "fp32", 1, NULL);
}

static void zero_of_parts(void **state)
{
    (void)state;
    zero_stages("llama", "bf16", 2, NULL);
}

static void pipelines(void **state)
{
    static const char *const schedules[] = { "1f1b", "interleaved", "zb-h1" };
    struct law_case c = base_case("llama-deep", "bf16", 2, "early");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.pp = 2;
    c.n_ranks = 4;
    for (int s = 0; s < 3; s++) {
        c.schedule = schedules[s];
        c.chunks = s == 1 ? 2 : 0;
        c.zero = s + 1;
        law_must_run_alike(&c, &wanted);
    }
}

#define GRADIENTS "train.gradient_dtype=bf16"

static void bf16_gradients(void **state)
{
    (void)state;
    zero_stages("gpt2", "bf16", 1, GRADIENTS);
    zero_stages("llama", "bf16", 2, GRADIENTS "|optimizer.states=bf16");
    zero_stages("mixture", "fp32", 1, GRADIENTS);
}

static void bf16_gradients_of_pipelines(void **state)
{
    struct law_case c = base_case("llama-deep", "bf16", 2, "late");

    (void)state;
    c.tuning = GRADIENTS;
    struct law_outcome wanted = law_run(&c);
    c.tuning = NULL;
    struct law_outcome wide = law_run(&c);
    assert_true(wanted.norm[0] != wide.norm[0]);
    /* AdamW soon makes much of little gradients' signs. */
    for (int step = 0; step < 2; step++) {
        assert_true(fabs(wanted.norm[step] - wide.norm[step]) < 0.002 * wide.norm[step]);
        assert_true(fabs(wanted.loss[step] - wide.loss[step]) < 0.001 * wide.loss[step]);
    }
    c.tuning = GRADIENTS;
    c.pp = 2;
    c.n_ranks = 4;
    for (c.zero = 0; c.zero < 4; c.zero++) {
        c.schedule = c.zero % 2 ? "zb-h1" : "1f1b";
        c.recompute = c.zero > 1 ? "full" : "none";
        law_must_run_alike(&c, &wanted);
    }
}

/* In another layout, too: the checkpoint has the count of updates, and bf16 as it is. */
static void resumed(void **state)
{
    struct law_case c = base_case("llama", "bf16", 2, "early");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    for (c.stop_after = 1; c.stop_after < LAW_STEPS; c.stop_after += 2) {
        c.zero = c.stop_after == 3;
        c.zero_after = c.zero ? 4 : 3;
        law_must_run_alike(&c, &wanted);
    }
    c.stop_after = 3;
    c.zero = c.zero_after = 0;
    c.n_ranks_after = 4;
    c.pp_after = 2;
    law_must_run_alike(&c, &wanted);
}

/* The same but for chance: near, and of another hash. */
static void near_fp32_states(void **state)
{
    struct law_case c = base_case("llama", "bf16", 2, "late");
    struct law_outcome rounded = law_run(&c);

    (void)state;
    c.tuning = NULL;
    struct law_outcome exact = law_run(&c);
    assert_true(rounded.numerics != exact.numerics);
    assert_true(rounded.states != exact.states);
    assert_true(rounded.loss[0] == exact.loss[0]);
    for (int step = 1; step < LAW_STEPS; step++) {
        assert_true(rounded.loss[step] != exact.loss[step]);
        assert_true(fabs(rounded.loss[step] - exact.loss[step]) < 0.02 * exact.loss[step]);
    }
    c.tuning = "optimizer.states=bf16";
    c.seed = 2;
    struct law_outcome other = law_run(&c);
    assert_true(other.states != rounded.states);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_of_bf16),   cmocka_unit_test(zero_of_fp32),
        cmocka_unit_test(zero_of_parts),  cmocka_unit_test(pipelines),
        cmocka_unit_test(resumed),        cmocka_unit_test(near_fp32_states),
        cmocka_unit_test(bf16_gradients), cmocka_unit_test(bf16_gradients_of_pipelines),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
