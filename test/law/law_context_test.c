/*
 * law_context_test.c - equal bits of context-parallel training under every other setting
 *
 * The reference of each way to divide sequences (heads exchanged, keys gathered, or both) is
 * compared to the bit with what must not change it: data parallelism's stages of sharding,
 * pipelines, recompute, threads, poisoned memory, stops and resumes in another layout; also with
 * adapters, micro-batches of several lengths, and packs.
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
#include "support/pairs.h"

#define BOTH "{ulysses: 2, gather: 2}"
#define RINGS "{ulysses: 2, ring: 2}"
#define SLICES "parallel.cp_slices=2"
#define LENGTHS "data.packing=false|data.lengths=[8, 16]"
#define PACKS "data.packing=true"
#define LORA "lora.rank=3|lora.dropout=0.1"

static const struct {
    int dp, pp, zero;
    const char *schedule, *recompute;
    int stop_after, dp_after, pp_after, zero_after; /* dp_after is dp: it is numerics */
} ways[] = {
    { 1, 1, 0, "1f1b", "selective", 0, 0, 0, 0 },
    { 1, 1, 0, "1f1b", "full", 0, 0, 0, 0 },
    { 1, 2, 0, "1f1b", "none", 2, 1, 1, 0 },
    { 1, 2, 0, "interleaved", "selective", 0, 0, 0, 0 },
    { 1, 2, 0, "zb-h1", "full", 0, 0, 0, 0 },
    { 2, 1, 1, "1f1b", "none", 0, 0, 0, 0 },
    { 2, 1, 2, "1f1b", "selective", 3, 2, 1, 3 },
    { 2, 1, 3, "1f1b", "full", 0, 0, 0, 0 },
    { 1, 2, 0, "zb-v", "none", 0, 0, 0, 0 },
};

/* What the samples are for is said in `tuning`; some: by number, the ways that are tried, or all
 * that the model's layers allow. */
static const struct {
    const char *model, *dtype;
    int cp;
    const char *kind;
    int tp, has_samples;
    const char *tuning, *gradient_sum, *some, *all;
} cases[] = {
    { "llama", "bf16", 2, "ulysses", 1, 0, NULL, "late", "38", "012345678" },
    { "llama", "fp32", 2, "gather", 1, 0, NULL, "early", "67", "012345678" },
    { "llama", "bf16", 4, BOTH, 1, 0, NULL, "late", "24", "012345678" },
    { "llama", "bf16", 2, "gather", 2, 0, NULL, "late", "6", "012345678" },
    { "llama", "fp32", 2, "ulysses", 2, 0, NULL, "early", "2", "012345678" },
    { "llama", "bf16", 2, "ring", 1, 0, NULL, "late", "16", "012345678" },
    { "llama", "fp32", 4, RINGS, 1, 0, NULL, "early", "2", "012345678" },
    { "llama", "bf16", 2, "ring", 1, 1, PACKS, "late", "0", "012345678" },
    { "llama", "fp32", 2, "fastseq", 1, 0, NULL, "late", "36", "012345678" },
    { "gpt2", "bf16", 2, "fastseq", 1, 0, NULL, "early", "5", "012457" },
    { "llama-untied", "bf16", 2, "fastseq", 2, 0, NULL, "late", "5", "012457" },
    { "llama", "bf16", 2, "fastseq", 1, 0, LORA, "early", "7", "012345678" },
    { "gpt2", "bf16", 2, "gather", 1, 0, NULL, "late", "5", "012457" },
    { "gpt2", "fp32", 2, "ulysses", 1, 0, NULL, "early", "04", "012457" },
    { "normed", "bf16", 4, BOTH, 1, 0, NULL, "late", "1", "012457" },
    { "alibi", "fp32", 2, "gather", 1, 0, NULL, "late", "7", "012457" },
    { "mixture", "bf16", 2, "ulysses", 1, 0, NULL, "late", "1", "0124567" },
    { "pooled", "fp32", 2, "gather", 1, 0, NULL, "early", "6", "0124567" },
    { "llama", "bf16", 2, "gather", 1, 0, LORA, "late", "7", "012345678" },
    { "llama-deep", "bf16", 2, "gather", 1, 1, LENGTHS, "late", "3", "012345678" },
    { "llama-deep", "bf16", 2, "ulysses", 1, 1, LENGTHS "|" LORA, "late", "4", "012345678" },
    { "llama", "bf16", 4, BOTH, 1, 1, PACKS, "late", "5", "012345678" },
    { "llama", "fp32", 2, "gather", 1, 1, PACKS, "early", "3", "012345678" },
};

static void try_way(struct law_case c, int way, const struct law_outcome *wanted)
{
    int each = c.cp * max_int(1, c.tp);
    char what[192];

    c.n_ranks = each * ways[way].dp * ways[way].pp;
    c.pp = ways[way].pp;
    c.zero = ways[way].zero;
    c.schedule = ways[way].schedule;
    c.recompute = ways[way].recompute;
    c.stop_after = ways[way].stop_after;
    c.n_ranks_after = each * ways[way].dp_after * ways[way].pp_after;
    c.pp_after = ways[way].pp_after;
    c.zero_after = 1 + ways[way].zero_after;
    c.poison = way % 2;
    c.n_threads = 1 + way % 2;
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what,
             "%s %s, cp %d %s, tp %d, %s, dp %d, pp %d %s, zero %d, recompute %s", c.model, c.dtype,
             c.cp, c.cp_kind, max_int(1, c.tp), c.tuning ? c.tuning : "", ways[way].dp, c.pp,
             c.schedule, c.zero, c.recompute);
    law_must_equal(what, wanted, &got);
}

static void context_parallel(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct law_case c = law_base(cases[i].model, cases[i].dtype);
        struct law_outcome wanted[3];
        int has_wanted[3] = { 0 };

        if (law_left_out())
            continue;
        c.cp = cases[i].cp;
        c.cp_kind = cases[i].kind;
        c.tp = cases[i].tp;
        c.samples = cases[i].has_samples ? law_samples() : NULL;
        c.tuning = cases[i].tuning;
        c.gradient_sum = cases[i].gradient_sum;
        for (const char *at = pairs_whole() ? cases[i].all : cases[i].some; *at; at++) {
            int way = *at - '0', dp = ways[way].dp;

            if (c.cp * c.tp * dp * ways[way].pp > 8)
                continue;
            c.n_ranks = c.cp * c.tp * dp;
            if (!has_wanted[dp])
                wanted[dp] = law_reference(c);
            has_wanted[dp] = 1;
            assert_true(isfinite(wanted[dp].loss[0]));
            try_way(c, way, &wanted[dp]);
        }
    }
}

/* Keys that travel in slices are the same keys. */
static void slices_change_no_bit(void **state)
{
    static const struct {
        const char *tuning, *recompute;
    } rows[] = { { SLICES, "none" }, { SLICES, "full" }, { SLICES "|" LORA, "selective" } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct law_case c = law_base("llama", "bf16");

        c.n_ranks = c.cp = 2;
        c.cp_kind = "gather";
        c.tuning = strstr(rows[i].tuning, "lora") ? LORA : NULL;
        struct law_outcome wanted = law_reference(c);
        c.tuning = rows[i].tuning;
        c.recompute = rows[i].recompute;
        c.poison = 1;
        struct law_outcome got = law_run(&c);
        law_must_equal(rows[i].tuning, &wanted, &got);
    }
}

/* What divides a sequence is numerics; the first loss is that of one rank but for its order. */
static void other_kinds_other_bits(void **state)
{
    static const char *const kinds[] = { "ulysses", "gather", "fastseq" };
    struct law_case c = law_base("llama", "fp32");
    struct law_outcome one = law_reference(c), of[3];

    (void)state;
    c.n_ranks = c.cp = 2;
    for (int k = 0; k < 3; k++) {
        c.cp_kind = kinds[k];
        of[k] = law_reference(c);
        assert_true(of[k].numerics != one.numerics);
        assert_true(of[k].parameters != one.parameters);
        assert_true(fabs(of[k].loss[0] - one.loss[0]) <= 1e-12 * one.loss[0]);
        assert_true(fabs(of[k].norm[0] - one.norm[0]) <= 1e-5 * one.norm[0]);
    }
    assert_true(of[0].numerics != of[1].numerics);
    assert_true(of[0].numerics != of[2].numerics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_parallel),
        cmocka_unit_test(slices_change_no_bit),
        cmocka_unit_test(other_kinds_other_bits),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
