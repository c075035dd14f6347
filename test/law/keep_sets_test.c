/*
 * keep_sets_test.c - whatever each layer keeps for its backward, the bits are the same
 *
 * Every subset of the kinds of ops that a small model's layers have is dropped, by each of its
 * layers, and never by two layers alike; of models with many kinds, a sample of the subsets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"
#include "support/tiny_model.h"

enum { N_LAYERS_MAX = 8, N_KINDS_MAX = 16 };

/* The subset of these kinds with this number; one more than there are is "full". */
static struct keep_set set_of_number(const struct bitset *kinds, unsigned number)
{
    struct keep_set set = { 0 };
    int n = 0;

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (bitset_has(kinds, kind) && number >> n++ & 1)
            bitset_add(&set.dropped, kind);
    set.full = number >> n & 1;
    return set;
}

/* Layer i drops subset number + 37 i, of n_subsets. */
static void check_subset(struct law_case c, const struct law_outcome *wanted,
                         const struct bitset *kinds, unsigned number, unsigned n_subsets)
{
    struct keep_set sets[N_LAYERS_MAX];
    unsigned char set_of_layer[N_LAYERS_MAX];
    char what[128];

    for (unsigned i = 0; i < N_LAYERS_MAX; i++) {
        sets[i] = set_of_number(kinds, (number + 37 * i) % n_subsets);
        set_of_layer[i] = (unsigned char)i;
    }
    c.keep_sets = (struct layer_keep_sets){ sets, set_of_layer };
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "%s %s, tp %d, pp %d, subset %u", c.model, c.dtype, c.tp, c.pp,
             number);
    law_must_equal(what, wanted, &got);
}

/* Every `step`th subset, and "full". */
static void check_model(struct law_case c, const char *names, unsigned step)
{
    struct bitset kinds = op_kinds(names);
    struct law_case alone = c;
    unsigned n_subsets = 1;

    c.poison = 1;
    c.global_batch = alone.global_batch = 4;
    alone.n_ranks = c.tp ? c.tp : 1;
    alone.pp = 0;
    alone.schedule = NULL;
    struct law_outcome wanted = law_reference(alone);
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        n_subsets <<= bitset_has(&kinds, kind);
    n_subsets++;
    for (unsigned number = 0; number < n_subsets; number += step)
        if (!law_left_out())
            check_subset(c, &wanted, &kinds, number, n_subsets);
    check_subset(c, &wanted, &kinds, n_subsets - 1, n_subsets);
}

static void all_of_a_llama(void **state)
{
    (void)state;
    check_model(law_base("llama", "bf16"), "rmsnorm linear rope attention swiglu add", 1);
}

static void all_of_a_gpt2_with_dropout(void **state)
{
    (void)state;
    check_model(law_base("gpt2", "bf16"), "layernorm linear gelu attention dropout add", 1);
}

static void some_of_experts(void **state)
{
    static const char kinds[] = "rmsnorm linear rope attention add router expert_order dispatch "
                                "expert_linear expert_swiglu combine";

    (void)state;
    check_model(law_base("mixture", "bf16"), kinds, 83);
    check_model(law_base("pooled", "bf16"), kinds, 131);
}

/* Also what ranks exchange, and where the backward is in two. */
static void some_on_ranks(void **state)
{
    static const char kinds[] = "rmsnorm linear rope attention swiglu add reduce_scatter";
    struct law_case c = law_base("llama-untied", "bf16");

    (void)state;
    c.tp = 2;
    c.n_ranks = 2;
    check_model(c, kinds, 11);
    c = law_base("llama-untied", "fp32");
    c.pp = 2;
    c.n_ranks = 2;
    c.schedule = "zb-h1";
    check_model(c, kinds, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_a_llama),
        cmocka_unit_test(all_of_a_gpt2_with_dropout),
        cmocka_unit_test(some_of_experts),
        cmocka_unit_test(some_on_ranks),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
