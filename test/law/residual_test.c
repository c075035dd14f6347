/*
 * residual_test.c - the residual stream in bf16 under the law (design.md §5)
 *
 * Every sum of the stream, and of its gradient, is rounded where it is stored, whether a stage, a
 * recomputed layer or a fused op stores it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define RESIDUAL "train.residual=bf16"

static struct law_case bf16_stream(const char *model, int n_ranks)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = n_ranks;
    c.tuning = RESIDUAL;
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

/* Of all families: both norms, dropout behind the embedding, a norm there, experts, windows. */
static void one_rank(const char *model)
{
    struct law_case c = bf16_stream(model, 1);
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
    static const char *const models[] = { "llama-untied", "gpt2", "normed", "alibi", "mixture" };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        one_rank(models[i]);
}

static void stages(void **state)
{
    static const char *const schedules[] = { "1f1b", "interleaved", "zb-h1", "zb-v" };
    struct law_case c = bf16_stream("llama-deep", 1);
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

static void ranks(void **state)
{
    (void)state;
    for (int tp = 1; tp <= 2; tp++) {
        struct law_case c = bf16_stream("llama", 2 * tp);

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

static void adapters(void **state)
{
    struct law_case c = bf16_stream("llama", 1);

    (void)state;
    c.tuning = RESIDUAL "|lora.rank=4";
    struct law_outcome wanted = law_run(&c);
    c.n_ranks = c.pp = 2;
    c.recompute = "full";
    check("adapters on two stages", &wanted, &c);
}

/* Other bits, of another hash, and as near as activations of bf16 leave it to be. */
static void near_fp32(const char *model)
{
    struct law_case c = bf16_stream(model, 1);
    struct law_outcome narrow = law_run(&c);

    c.tuning = NULL;
    struct law_outcome wide = law_run(&c);
    assert_true(narrow.numerics != wide.numerics);
    for (int step = 0; step < LAW_STEPS; step++) {
        assert_true(narrow.loss[step] != wide.loss[step]);
        if (fabs(narrow.loss[step] - wide.loss[step]) > 0.005 * wide.loss[step])
            fail_msg("%s: step %d: loss %g, with fp32 %g", model, step + 1, narrow.loss[step],
                     wide.loss[step]);
    }
    assert_true(narrow.norm[0] != wide.norm[0]);
    assert_true(fabs(narrow.norm[0] - wide.norm[0]) < 0.01 * wide.norm[0]);
}

static void near_fp32_stream(void **state)
{
    (void)state;
    near_fp32("llama");
    near_fp32("gpt2");
    near_fp32("mixture");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families), cmocka_unit_test(stages),           cmocka_unit_test(ranks),
        cmocka_unit_test(adapters), cmocka_unit_test(near_fp32_stream),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
