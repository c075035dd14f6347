/*
 * overlap_test.c - slices and halves of what layers exchange change no bit
 *
 * The reference issues whole collectives; each way cuts them, under tensor parallelism with and
 * without sequence parallelism, parts of sequences whose keys are gathered, pipelines, zero's
 * stages and recomputation. A slice of the rows of parts may begin and end within a sequence's
 * chunk, or have several of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define NONE "parallel.overlap=none"
#define SLICES(n) "parallel.overlap=slices|parallel.overlap_slices=" n
#define HALVES "parallel.overlap=halves"
/* Twelve experts on some ranks, whose rows are in no pages, or in some; by too few the step is run
 * again. */
#define EXPERTS(ep) "model.n_experts=12|moe.stash_factor=0|parallel.ep=" ep "|"
#define PAGES(factor) "moe.stash_factor=" factor "|"
#define ONE_RANK "moe.expert_tp=1|"
#define CAPACITY "moe.capacity_factor=1|"
#define LORA "lora.rank=3|lora.targets=[all, experts]|"
#define LORA_ALL "lora.rank=3|lora.targets=[all]|"
/* 96 rows a rank of two, of which two slices are 64 and 32. */
#define SHORT_LAST "data.seq_len=24|"
/* Keys are gathered; in slices of heads, too: the same bits (context_test). */
#define GATHER "parallel.cp_kind=gather|"
#define KEY_SLICES "parallel.cp_slices=2|"
/* Heads are exchanged for rows; or rows are gathered for the products of a rank's heads: of several
 * sequences, or of one. */
#define HEADS "parallel.cp_kind=ulysses|"
#define FASTSEQ "parallel.cp_kind=fastseq|"
#define ONE_LONG "model.max_seq_len=128|data.seq_len=128|train.micro_batch=1|train.global_batch=4|"

static const struct {
    const char *model, *dtype;
    int tp, no_sequence_parallel, dp, pp, cp, zero;
    const char *schedule, *recompute, *both, *overlap; /* both: also of the reference */
} ways[] = {
    { "llama", "bf16", 2, 0, 1, 1, 1, 0, "1f1b", "none", "", SLICES("2") },
    { "llama", "bf16", 2, 0, 1, 1, 1, 0, "1f1b", "full", "", SLICES("4") },
    { "llama", "bf16", 2, 0, 1, 1, 1, 0, "1f1b", "selective", "", HALVES },
    { "llama", "fp32", 4, 1, 1, 1, 1, 0, "1f1b", "none", "", SLICES("8") },
    { "llama-untied", "fp32", 2, 1, 1, 1, 1, 0, "1f1b", "full", "", HALVES },
    { "llama", "bf16", 2, 0, 1, 2, 1, 0, "interleaved", "none", "", SLICES("4") },
    { "llama", "bf16", 2, 0, 1, 2, 1, 0, "zb-h1", "selective", "", HALVES },
    { "llama", "bf16", 2, 0, 2, 1, 1, 1, "1f1b", "none", "", HALVES },
    { "llama", "bf16", 2, 0, 2, 1, 1, 2, "1f1b", "none", "", SLICES("2") },
    { "llama", "bf16", 2, 0, 2, 1, 1, 3, "1f1b", "full", "", SLICES("4") },
    { "llama", "bf16", 2, 0, 1, 1, 2, 0, "1f1b", "none", "", SLICES("2") },
    { "llama", "bf16", 4, 0, 1, 1, 1, 0, "1f1b", "full", "", SLICES("2") },
    { "llama", "fp32", 2, 0, 1, 1, 1, 0, "1f1b", "none", SHORT_LAST, SLICES("2") },
    { "llama", "bf16", 2, 0, 1, 1, 1, 0, "1f1b", "selective", LORA_ALL, SLICES("2") },
    { "gpt2", "bf16", 2, 0, 1, 1, 1, 0, "1f1b", "none", "", SLICES("4") },
    { "mixture", "bf16", 2, 0, 1, 1, 1, 0, "1f1b", "none", "", SLICES("2") },
    { "normed", "fp32", 2, 0, 1, 1, 1, 0, "1f1b", "selective", "", HALVES },
    { "llama", "bf16", 1, 0, 1, 1, 2, 0, "1f1b", "none", GATHER, SLICES("2") },
    { "llama", "fp32", 1, 0, 1, 1, 2, 0, "1f1b", "full", GATHER, SLICES("4") },
    { "llama", "bf16", 1, 0, 1, 1, 4, 0, "1f1b", "selective", GATHER "data.seq_len=24|",
      SLICES("2") },
    { "llama", "bf16", 1, 0, 1, 1, 2, 0, "1f1b", "none", GATHER KEY_SLICES, SLICES("4") },
    { "llama", "bf16", 2, 0, 1, 1, 2, 0, "1f1b", "full", GATHER, SLICES("2") },
    { "llama", "fp32", 2, 1, 1, 1, 2, 0, "1f1b", "none", GATHER, SLICES("4") },
    { "llama", "bf16", 1, 0, 1, 2, 2, 0, "zb-h1", "selective", GATHER, SLICES("4") },
    { "llama", "bf16", 1, 0, 2, 1, 2, 1, "1f1b", "none", GATHER, SLICES("4") },
    { "llama", "bf16", 1, 0, 2, 1, 2, 2, "1f1b", "selective", GATHER, SLICES("2") },
    { "llama", "fp32", 1, 0, 2, 1, 2, 3, "1f1b", "full", GATHER, SLICES("4") },
    { "gpt2", "bf16", 1, 0, 1, 1, 2, 0, "1f1b", "none", GATHER, SLICES("4") },
    { "alibi", "fp32", 1, 0, 1, 1, 2, 0, "1f1b", "full", GATHER, SLICES("2") },
    { "pooled", "bf16", 1, 0, 1, 1, 2, 0, "1f1b", "none", GATHER, SLICES("2") },
    { "llama", "bf16", 1, 0, 1, 1, 2, 0, "1f1b", "none", HEADS, SLICES("2") },
    { "llama", "fp32", 2, 0, 1, 1, 2, 0, "1f1b", "full", HEADS, SLICES("4") },
    { "llama", "bf16", 1, 0, 1, 1, 4, 0, "1f1b", "selective", HEADS "data.seq_len=24|",
      SLICES("2") },
    { "llama", "bf16", 1, 0, 2, 1, 2, 3, "1f1b", "full", HEADS, SLICES("4") },
    { "llama", "fp32", 1, 0, 1, 2, 2, 0, "zb-h1", "selective", HEADS ONE_LONG, SLICES("2") },
    { "normed", "bf16", 1, 0, 2, 1, 2, 2, "1f1b", "none", HEADS, SLICES("4") },
    { "alibi", "fp32", 1, 0, 1, 1, 2, 0, "1f1b", "full", HEADS, SLICES("2") },
    { "llama", "bf16", 1, 0, 1, 1, 4, 0, "1f1b", "none",
      "parallel.cp_kind={ulysses: 2, gather: 2}|data.seq_len=24|", SLICES("2") },
    { "llama", "bf16", 1, 0, 1, 1, 2, 0, "1f1b", "none", FASTSEQ, SLICES("4") },
    { "llama", "fp32", 1, 0, 1, 1, 2, 0, "1f1b", "full", FASTSEQ ONE_LONG, SLICES("2") },
    { "llama-untied", "bf16", 2, 0, 1, 1, 2, 0, "1f1b", "full", FASTSEQ ONE_LONG, SLICES("2") },
    { "llama", "bf16", 1, 0, 2, 1, 2, 1, "1f1b", "selective", FASTSEQ, SLICES("2") },
    { "llama", "bf16", 1, 0, 1, 2, 2, 0, "zb-h1", "none", FASTSEQ ONE_LONG, SLICES("2") },
    { "gpt2", "fp32", 1, 0, 2, 1, 2, 3, "1f1b", "none", FASTSEQ, SLICES("2") },
    { "mixture", "bf16", 1, 0, 2, 1, 1, 0, "1f1b", "none", EXPERTS("2"), SLICES("2") },
    { "mixture", "fp32", 1, 0, 4, 1, 1, 1, "1f1b", "full", EXPERTS("4"), SLICES("3") },
    { "mixture", "bf16", 1, 0, 4, 1, 1, 3, "1f1b", "selective", EXPERTS("2"), SLICES("4") },
    { "mixture", "bf16", 1, 0, 4, 1, 1, 2, "1f1b", "none", EXPERTS("4"), SLICES("2") },
    { "mixture", "fp32", 1, 0, 2, 2, 1, 0, "zb-h1", "selective", EXPERTS("2"), SLICES("6") },
    { "mixture", "bf16", 2, 0, 2, 1, 1, 0, "1f1b", "full", EXPERTS("2"), SLICES("2") },
    { "mixture", "bf16", 2, 0, 2, 1, 1, 1, "1f1b", "none", ONE_RANK EXPERTS("2"), SLICES("3") },
    { "mixture", "fp32", 1, 0, 2, 1, 2, 0, "1f1b", "none", GATHER EXPERTS("2"), SLICES("2") },
    { "routed", "bf16", 1, 0, 2, 1, 1, 0, "1f1b", "selective", EXPERTS("2"), SLICES("6") },
    { "counted", "fp32", 1, 0, 4, 1, 1, 1, "1f1b", "none", EXPERTS("4"), SLICES("3") },
    { "mixture", "bf16", 1, 0, 2, 1, 1, 0, "1f1b", "none", CAPACITY EXPERTS("2"), SLICES("3") },
    { "mixture", "bf16", 1, 0, 2, 1, 1, 0, "1f1b", "full", LORA EXPERTS("2"), SLICES("2") },
    { "mixture", "fp32", 1, 0, 2, 1, 1, 0, "1f1b", "none", EXPERTS("2") PAGES("1.3"), SLICES("2") },
    { "routed", "bf16", 1, 0, 4, 1, 1, 1, "1f1b", "none", EXPERTS("4") PAGES("0.5"), SLICES("3") },
    { "mixture", "bf16", 1, 0, 4, 1, 1, 3, "1f1b", "none", EXPERTS("2") PAGES("0.5"), SLICES("6") },
    { "mixture", "bf16", 1, 0, 2, 2, 1, 0, "zb-h1", "none", EXPERTS("2") PAGES("0.5"),
      SLICES("2") },
    { "mixture", "bf16", 2, 0, 2, 1, 1, 2, "1f1b", "selective", EXPERTS("2") PAGES("1"),
      SLICES("4") },
};

static void check_way(size_t i)
{
    struct law_case c = law_base(ways[i].model, ways[i].dtype);
    char settings[256], what[256];

    c.tp = ways[i].tp;
    c.no_sequence_parallel = ways[i].no_sequence_parallel;
    c.pp = ways[i].pp;
    c.cp = ways[i].cp;
    c.zero = ways[i].zero;
    c.n_ranks = c.tp * ways[i].dp * c.pp * c.cp;
    c.schedule = ways[i].schedule;
    c.recompute = ways[i].recompute;
    c.global_batch = 64;
    c.tuning = settings;
    snprintf(settings, sizeof settings, "train.micro_batch=8|%s" NONE, ways[i].both);
    struct law_outcome wanted = law_run(&c);
    snprintf(settings, sizeof settings, "train.micro_batch=8|%s%s", ways[i].both, ways[i].overlap);
    c.poison = 1;
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "%s %s, tp %d, dp %d, pp %d, cp %d, zero %d, %s", c.model, c.dtype,
             c.tp, ways[i].dp, c.pp, c.cp, c.zero, ways[i].overlap);
    law_must_equal(what, &wanted, &got);
}

static void slices_change_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!law_left_out())
            check_way(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_change_no_bit),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
