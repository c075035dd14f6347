/*
 * nodes_test.c - sums and gathers that go by node have the bits of those that do not
 *
 * parallel.node_ranks says how many neighbouring ranks are a node: 4 ranks as two nodes, 8 as two
 * and as four, over data and tensor parallelism, each stage of sharding, both orders of sums.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "plan/node_bytes.h"
#include "support/law_rig.h"
#include "train/trainer.h"

static const struct {
    const char *model, *dtype, *sum, *gradient_dtype;
    int n_ranks, n_on_node, tp, zero, zero_group, pp;
} cases[] = {
    { "llama", "bf16", "late", "fp32", 4, 2, 1, 0, 0, 1 },
    { "llama", "fp32", "late", "fp32", 4, 2, 1, 1, 0, 1 },
    { "mixture", "bf16", "early", "fp32", 4, 2, 1, 2, 0, 1 },
    { "llama", "fp32", "early", "fp32", 4, 2, 1, 3, 0, 1 },
    { "llama-untied", "bf16", "late", "fp32", 8, 4, 1, 1, 0, 1 },
    { "llama", "bf16", "early", "fp32", 8, 4, 1, 3, 0, 1 },
    { "llama", "fp32", "late", "fp32", 8, 4, 2, 1, 0, 1 },
    { "llama", "bf16", "early", "fp32", 8, 2, 1, 1, 4, 1 },
    { "llama", "fp32", "late", "fp32", 8, 2, 1, 1, 0, 2 },
    { "llama", "bf16", "late", "bf16", 8, 4, 1, 0, 0, 1 },
    { "llama", "bf16", "early", "bf16", 8, 4, 1, 2, 0, 1 },
};

static int n_on_node;

/* Ranks are threads: they CHECK. */
static void goes_by_node(struct trainer *trainer, const struct mesh_place *place, int step)
{
    const struct program *program = trainer_program(trainer);

    (void)place;
    (void)step;
    CHECK(node_bytes_of(program, n_on_node, true, false).n_by_node > 0);
}

static struct law_outcome run_on_nodes(struct law_case c, const char *gradient_dtype,
                                       int node_ranks)
{
    char tuning[96];

    snprintf(tuning, sizeof tuning, "train.gradient_dtype=%s|parallel.node_ranks=%d",
             gradient_dtype, node_ranks);
    c.tuning = tuning;
    n_on_node = node_ranks;
    c.before_step = node_ranks > 1 ? goes_by_node : NULL;
    return law_run(&c);
}

static void nodes_change_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct law_case c = law_base(cases[i].model, cases[i].dtype);
        const char *dtype = cases[i].gradient_dtype;
        char what[128];

        if (law_left_out())
            continue;
        c.n_ranks = cases[i].n_ranks;
        c.tp = cases[i].tp;
        c.pp = cases[i].pp;
        c.zero = cases[i].zero;
        c.zero_group = cases[i].zero_group;
        c.gradient_sum = cases[i].sum;
        c.global_batch = 32;
        struct law_outcome wanted = run_on_nodes(c, dtype, 1);
        struct law_outcome got = run_on_nodes(c, dtype, cases[i].n_on_node);
        snprintf(what, sizeof what,
                 "%s %s, gradients %s, %d ranks, %d a node, tp %d, pp %d, zero %d, %s sums",
                 c.model, c.dtype, dtype, c.n_ranks, cases[i].n_on_node, c.tp, c.pp, c.zero,
                 c.gradient_sum);
        law_must_equal(what, &wanted, &got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_change_no_bit),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
