/*
 * additions_test.c - the law for what families add: norms of heads, of the embedding and of the
 * head's rows, windows, ALiBi
 *
 * Whatever way the same numerics are computed, all bits are the same (law_test.c has all ways, for
 * LLaMA's and GPT-2's shape).
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <string.h>

#include "support/law_rig.h"

/* The ways beside the plain one of each dp and tp. */
static const struct way {
    int tp, dp, pp, zero;
    const char *schedule, *recompute, *hold;
    int stop_after;
} ways[] = {
    { 1, 1, 1, 0, "1f1b", "selective", NULL, 0 },
    { 1, 1, 1, 0, "1f1b", "full", NULL, 3 },
    { 1, 1, 1, 0, "1f1b", "[embed, rmsnorm, layernorm, linear, head_norm, rope, attention]", NULL,
      0 },
    { 1, 1, 2, 0, "1f1b", "none", NULL, 2 },
    { 1, 1, 2, 0, "zb-h1", "selective", NULL, 0 },
    { 1, 2, 1, 1, "1f1b", "none", NULL, 0 },
    { 1, 2, 1, 2, "1f1b", "full", NULL, 0 },
    { 1, 2, 1, 3, "1f1b", "none", "pass", 2 },
    { 1, 2, 1, 3, "1f1b", "selective", "op", 0 },
    { 1, 2, 2, 3, "1f1b", "full", "run", 0 },
    { 2, 1, 1, 0, "1f1b", "full", NULL, 0 },
    { 2, 1, 2, 0, "zb-h1", "selective", NULL, 0 },
    { 2, 2, 1, 3, "1f1b", "none", "step", 0 },
};

static struct law_case case_of(const char *model, const struct way *way, const char *sum)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = way->tp * way->dp * way->pp;
    c.n_threads = 1 + way->zero % 2;
    c.tp = way->tp;
    c.pp = way->pp;
    c.zero = way->zero;
    c.hold = way->hold;
    c.schedule = way->schedule;
    c.recompute = way->recompute;
    c.gradient_sum = sum;
    c.poison = way->pp == 1;
    c.stop_after = way->stop_after;
    return c;
}

static void all_ways(const char *model, const char *sum)
{
    struct law_outcome wanted[3][3];
    int known[3][3] = { { 0 } };
    char what[160];

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const struct way *w = &ways[i];
        struct way plain = { w->tp, w->dp, 1, 0, "1f1b", "none", NULL, 0 };
        struct law_case c = case_of(model, &plain, sum);

        if (law_left_out())
            continue;
        if (!known[w->tp][w->dp])
            wanted[w->tp][w->dp] = law_run(&c);
        known[w->tp][w->dp] = 1;
        c = case_of(model, w, sum);
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "%s %s, tp %d, dp %d, pp %d %s, zero %d %s, recompute %s",
                 model, sum, w->tp, w->dp, w->pp, w->schedule, w->zero, w->hold ? w->hold : "",
                 w->recompute);
        law_must_equal(what, &wanted[w->tp][w->dp], &got);
    }
}

static void normed(void **state)
{
    (void)state;
    all_ways("normed", "early");
}

static void alibi(void **state)
{
    (void)state;
    all_ways("alibi", "late");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(normed), cmocka_unit_test(alibi) };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
