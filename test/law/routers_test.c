/*
 * routers_test.c - equal numerics, equal bits, of mixtures with all that routers have
 *
 * Sigmoids, a bias that balances, groups, balances of sequences and of all ranks, z-loss, shared
 * experts: in every way that must not matter. The bias, which no gradient changes, is among the
 * parameters that are compared.
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

static const char *const models[] = { "routed", "counted" };

static void one_rank(void **state)
{
    static const char *const modes[] = { "selective", "full", "[swiglu, gate_rows, linear]" };

    (void)state;
    for (int m = 0; m < 2; m++) {
        struct law_case c = law_base(models[m], "bf16");
        struct law_outcome wanted = law_reference(c);

        assert_true(isfinite(wanted.loss[0]));
        assert_true(wanted.loss[LAW_STEPS - 1] != wanted.loss[0]);
        for (int i = 0; i < 3; i++) {
            if (law_left_out())
                continue;
            c.recompute = m && i == 2 ? "[router, linear]" : modes[i];
            c.n_threads = 2 + i;
            c.poison = 1;
            c.stop_after = i;
            struct law_outcome got = law_run(&c);
            law_must_equal(c.recompute, &wanted, &got);
        }
    }
}

/* Ways of dp 2: everything that may differ, and the reference has not. */
static const struct way {
    int zero, pp, stop_after, n_ranks_after, pp_after;
    const char *gradient_sum, *schedule, *recompute;
} ways[] = {
    { 1, 1, 0, 0, 0, "late", "1f1b", "full" },  { 2, 1, 2, 4, 2, "early", "1f1b", "none" },
    { 3, 1, 1, 0, 0, "early", "1f1b", "full" }, { 0, 2, 0, 0, 0, "late", "zb-h1", "selective" },
    { 1, 2, 3, 2, 1, "early", "1f1b", "full" },
};

#define N_WAYS (int)(sizeof ways / sizeof *ways)

/* each: ranks of one replica of the model. */
static void try_way(struct law_case c, int each, const struct way *way)
{
    char what[160];

    c.n_ranks = 2 * each;
    c.gradient_sum = way->gradient_sum;
    struct law_outcome wanted = law_reference(c);
    c.n_ranks *= way->pp;
    c.pp = way->pp;
    c.zero = way->zero;
    c.schedule = way->schedule;
    c.recompute = way->recompute;
    c.stop_after = way->stop_after;
    c.n_ranks_after = way->n_ranks_after * each;
    c.pp_after = way->pp_after;
    c.poison = 1;
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "%s %s, tp %d, cp %d, zero %d, pp %d %s, %s, recompute %s", c.model,
             c.dtype, max_int(c.tp, 1), max_int(c.cp, 1), c.zero, c.pp, c.schedule, c.gradient_sum,
             c.recompute);
    law_must_equal(what, &wanted, &got);
}

static void data_parallel(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int w = 0; w < N_WAYS; w++)
            if (!law_left_out())
                try_way(law_base(models[m], w % 2 ? "fp32" : "bf16"), 1, &ways[w]);
}

static void tensor_and_context_parallel(void **state)
{
    static const struct {
        const char *model, *dtype, *cp_kind;
        int tp, cp, way;
    } cases[] = {
        { "routed", "bf16", NULL, 2, 1, 0 },      { "routed", "fp32", NULL, 2, 1, 3 },
        { "counted", "bf16", NULL, 2, 1, 2 },     { "routed", "bf16", "gather", 1, 2, 2 },
        { "routed", "fp32", "ulysses", 1, 2, 4 }, { "counted", "bf16", "gather", 1, 2, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct law_case c = law_base(cases[i].model, cases[i].dtype);

        if (law_left_out())
            continue;
        c.tp = cases[i].tp;
        c.cp = cases[i].cp;
        c.cp_kind = cases[i].cp_kind;
        c.no_sequence_parallel = i == 1;
        try_way(c, c.tp * c.cp, &ways[cases[i].way]);
    }
}

/* Adapters of shared experts, and a bias that stays where the rest is frozen. */
static void tuned(void **state)
{
    static const char *const tunings[] = { "lora.rank=2|lora.dropout=0.1",
                                           "train.freeze=[\"layers.3.router.*\"]",
                                           ("train.only=[layers.2.shared.gate.weight, "
                                            "layers.2.router.bias]") };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct law_case c = law_base("routed", "bf16");

        c.tuning = tunings[i];
        c.n_ranks = 2;
        struct law_outcome wanted = law_run(&c);
        assert_true(wanted.loss[LAW_STEPS - 1] != wanted.loss[0]);
        c.zero = i == 1 ? 3 : i;
        c.recompute = "full";
        c.stop_after = 2;
        struct law_outcome got = law_run(&c);
        law_must_equal(c.tuning, &wanted, &got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(data_parallel),
        cmocka_unit_test(tensor_and_context_parallel),
        cmocka_unit_test(tuned),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
