/*
 * law_tensor_test.c - equal bits of tensor-parallel training under every other setting
 *
 * The reference of each tensor-parallel degree is compared to the bit with what must not change it:
 * data parallelism's stages of sharding, pipelines, recompute, threads, stops and resumes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/law_rig.h"
#include "support/pairs.h"

static const struct {
    int dp, pp, zero;
    const char *schedule, *recompute;
} tensor_ways[] = {
    { 1, 1, 0, "1f1b", "selective" },
    { 1, 1, 0, "1f1b", "full" },
    { 1, 2, 0, "1f1b", "none" },
    { 1, 2, 0, "interleaved", "selective" },
    { 1, 2, 0, "zb-h1", "full" },
    { 2, 1, 0, "1f1b", "none" },
    { 2, 1, 1, "1f1b", "selective" },
    { 2, 1, 2, "1f1b", "none" },
    { 2, 2, 1, "interleaved", "selective" },
};

/*
 * The rig's models have 2 and 4 kv heads, the last as many as it has heads. The ways that each
 * takes, by number: every way thrice at least where ranks and layers allow it, or all that it can.
 */
static const struct {
    const char *model, *dtype;
    int tp, sequence_parallel;
    const char *some, *all;
} tensor_cases[] = {
    { "llama", "bf16", 2, 1, "0238", "012345678" },
    { "llama", "fp32", 4, 0, "1346", "01234567" },
    { "llama", "bf16", 4, 1, "0357", "01234567" },
    { "llama-untied", "bf16", 2, 0, "147", "0124567" },
    { "gpt2", "bf16", 2, 1, "26", "0124567" },
    { "gpt2", "fp32", 2, 0, "15", "0124567" },
    { "mixture", "bf16", 2, 1, "047", "0124567" },
    { "mixture", "fp32", 4, 0, "126", "0124567" },
    { "pooled", "fp32", 2, 1, "15", "01567" },
};

static void tensor_parallel_way(struct law_case c, int way, const struct law_outcome *wanted)
{
    char what[128];

    c.n_ranks = c.tp * tensor_ways[way].dp * tensor_ways[way].pp;
    c.pp = tensor_ways[way].pp;
    c.zero = tensor_ways[way].zero;
    c.schedule = tensor_ways[way].schedule;
    c.recompute = tensor_ways[way].recompute;
    c.poison = way % 2;
    c.n_threads = 1 + way % 2;
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "%s %s, tp %d%s, dp %d, pp %d %s, zero %d, recompute %s", c.model,
             c.dtype, c.tp, c.no_sequence_parallel ? "" : " sequence parallel", tensor_ways[way].dp,
             c.pp, c.schedule, c.zero, c.recompute);
    law_must_equal(what, wanted, &got);
}

static void tensor_parallel(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tensor_cases / sizeof *tensor_cases; i++) {
        const char *ways = pairs_whole() ? tensor_cases[i].all : tensor_cases[i].some;
        struct law_case c = law_base(tensor_cases[i].model, tensor_cases[i].dtype);
        struct law_outcome wanted[3];

        c.tp = tensor_cases[i].tp;
        c.no_sequence_parallel = !tensor_cases[i].sequence_parallel;
        for (int dp = 1; dp <= 2; dp++) {
            c.n_ranks = c.tp * dp;
            wanted[dp] = law_reference(c);
        }
        for (; *ways; ways++)
            if (!law_left_out())
                tensor_parallel_way(c, *ways - '0', &wanted[tensor_ways[*ways - '0'].dp]);
    }
}

/* A checkpoint knows no tensor parallelism either. */
static void check_resumed(const char *model)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = c.tp = 2;
    struct law_outcome wanted = law_reference(c);
    c.stop_after = 3;
    struct law_outcome got = law_run(&c);
    law_must_equal("tp 2, stopped", &wanted, &got);
    c.n_ranks_after = 4;
    c.pp_after = 2;
    got = law_run(&c);
    law_must_equal("tp 2, gone on with by two stages", &wanted, &got);
}

static void tensor_parallel_resumes(void **state)
{
    (void)state;
    check_resumed("llama");
    check_resumed("mixture");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(tensor_parallel_resumes),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
