/*
 * half_test.c - the law in fp16, where the loss scale falls and grows on the way
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/law_rig.h"

/* Gradients overflow in the first steps; two clean ones double the scale. */
#define SCALES \
    "train.loss_scale.initial=8388608|train.loss_scale.growth_every=2|" \
    "train.loss_scale.max=8388608"

static struct law_case half(const char *model, int n_ranks)
{
    struct law_case c = law_base(model, "fp16");

    c.n_ranks = n_ranks;
    c.tuning = SCALES;
    return c;
}

static void check(const char *what, const struct law_outcome *wanted, const struct law_case *law)
{
    struct law_outcome got = law_run(law);

    law_must_equal(what, wanted, &got);
}

/* That the test is one: something was skipped, something was not. */
static void skips_and_learns(const struct law_outcome *o)
{
    int n_skipped = 0;

    for (int i = 0; i < LAW_STEPS; i++)
        n_skipped += !isfinite(o->norm[i]);
    assert_true(n_skipped > 0);
    assert_true(n_skipped < LAW_STEPS - 1);
}

static void one_rank(const char *model)
{
    struct law_case c = half(model, 1);
    struct law_outcome wanted = law_run(&c);

    skips_and_learns(&wanted);
    c.recompute = "full";
    c.n_threads = 3;
    c.poison = 1;
    check("recompute full, 3 threads", &wanted, &c);
    c.recompute = "selective";
    c.stop_after = 2;
    check("recompute selective, stopped", &wanted, &c);
}

static void llama(void **state)
{
    (void)state;
    one_rank("llama");
}

static void gpt2(void **state)
{
    (void)state;
    one_rank("gpt2");
}

static void mixture(void **state)
{
    (void)state;
    one_rank("mixture");
}

/* The same scale on all stages, of all replicas, with all shards. */
static void ranks(void **state)
{
    struct law_case c = half("llama", 2);

    (void)state;
    c.gradient_sum = "early";
    struct law_outcome wanted = law_run(&c);
    skips_and_learns(&wanted);
    for (c.zero = 1; c.zero <= 3; c.zero++)
        check("zero", &wanted, &c);
    c.zero = 2;
    c.stop_after = 3;
    c.zero_after = 1 + 3;
    check("zero 2, then 3", &wanted, &c);
}

static void stages(void **state)
{
    struct law_case c = half("llama", 1);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.n_ranks = c.pp = 2;
    check("two stages", &wanted, &c);
    c.schedule = "zb-h1";
    c.recompute = "full";
    check("zb-h1", &wanted, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama), cmocka_unit_test(gpt2),   cmocka_unit_test(mixture),
        cmocka_unit_test(ranks), cmocka_unit_test(stages),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
