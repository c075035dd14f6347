/*
 * law_experts_test.c - experts divided over ranks on GPUs: the first loss is that without ep, and
 * however rows are sent, staged through the host or by NCCL, the bits are the same
 *
 * What must not matter beside that: ZeRO, recomputation, poisoned memory, and, emulated, the order
 * of streams. Rows that no expert has are not numbers there.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/law_rig.h"

static void choose(int nccl, const char *streams)
{
    setenv("LMTRAIN_EMULATE_STREAMS", streams, 1);
    setenv("LMTRAIN_EMULATE_LOADING", "strict", 1);
    if (nccl)
        setenv("LMTRAIN_TEST_NCCL", "1", 1);
    else
        unsetenv("LMTRAIN_TEST_NCCL");
}

/* Few rows and layers: an emulated GPU is slow. */
#define SIZES "model.n_layers=2|data.seq_len=8|model.n_experts=6"

static const char *const tuning_of_ep[] = { [1] = SIZES, [2] = SIZES "|parallel.ep=2" };

static struct law_case small(const char *model, const char *dtype, int ep)
{
    struct law_case law = law_base(model, dtype);

    law.n_ranks = 2;
    law.global_batch = 4;
    law.tuning = tuning_of_ep[ep];
    return law;
}

static void near(const char *what, const struct law_outcome *a, const struct law_outcome *b,
                 double tolerance)
{
    for (int step = 0; step < LAW_STEPS; step++)
        if (!(fabs(a->loss[step] / b->loss[step] - 1) < tolerance))
            fail_msg("%s, step %d: %g and %g", what, step + 1, a->loss[step], b->loss[step]);
}

static struct law_outcome on_the_cpu(const struct law_case *law)
{
    setenv("LMTRAIN_TEST_DEVICE", "cpu", 1);
    struct law_outcome outcome = law_run(law);
    setenv("LMTRAIN_TEST_DEVICE", "cuda", 1);
    return outcome;
}

static void the_first_loss_does_not_move(void **state)
{
    struct law_case without = small("counted", "fp32", 1), with = small("counted", "fp32", 2);

    (void)state;
    choose(0, "eager");
    struct law_outcome a = law_run(&without), b = law_run(&with), cpu = on_the_cpu(&with);
    assert_true(a.loss[0] == b.loss[0]);
    near("ep and no ep", &a, &b, 1e-4);
    near("a GPU and the CPU", &b, &cpu, 1e-4);
}

/* By position and by weight, as on the CPU; sent by NCCL with the same bits. */
static void choices_are_dropped(void **state)
{
    static const char *const drops[] = { "position", "probability" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct law_case law = small("counted", "fp32", 2);
        char text[160];

        snprintf(text, sizeof text, "%s|moe.capacity_factor=0.7|moe.drop=%s", law.tuning, drops[i]);
        choose(0, "eager");
        struct law_outcome dropless = law_run(&law);
        law.tuning = text;
        struct law_outcome a = law_run(&law), cpu = on_the_cpu(&law);
        near(drops[i], &a, &cpu, 1e-4);
        assert_true(a.loss[0] != dropless.loss[0]);
        choose(1, "lazy");
        struct law_outcome b = law_run(&law);
        law_must_equal(drops[i], &a, &b);
    }
}

static void equal_bits(void **state)
{
    static const struct {
        int nccl, zero;
        const char *streams, *recompute;
    } ways[] = { { 0, 1, "1", "full" }, { 1, 0, "lazy", "none" }, { 1, 1, "2", "[dispatch]" } };
    struct law_case law = small("mixture", "bf16", 2);
    char what[64];

    (void)state;
    choose(0, "eager");
    struct law_outcome wanted = law_run(&law);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        choose(ways[i].nccl, ways[i].streams);
        law.zero = ways[i].zero;
        law.recompute = ways[i].recompute;
        law.poison = 1;
        struct law_outcome got = law_run(&law);
        snprintf(what, sizeof what, "%s, streams %s", ways[i].nccl ? "NCCL" : "staged",
                 ways[i].streams);
        law_must_equal(what, &wanted, &got);
    }
}

/* Of tp and ep ranks together, over their composite axis; all else is sharded over another. */
static void whole_experts(void **state)
{
    struct law_case law = small("mixture", "fp32", 2);

    (void)state;
    law.n_ranks = 4;
    law.tp = 2;
    law.tuning = "model.n_layers=2|data.seq_len=8|model.n_experts=4|parallel.ep=2|moe.expert_tp=1";
    choose(0, "eager");
    struct law_outcome staged = law_run(&law), cpu = on_the_cpu(&law);
    near("a GPU and the CPU, whole experts", &staged, &cpu, 1e-4);
    choose(1, "lazy");
    law.zero = 1;
    struct law_outcome enqueued = law_run(&law);
    law_must_equal("NCCL, whole experts", &staged, &enqueued);
}

#define FP8 \
    "model.n_layers=2|data.seq_len=8|model.n_experts=4|model.expert_ffn_size=160|" \
    "train.fp8_edge_layers=0|train.fp8_experts=fp8|parallel.ep=2|train.fp8="
#define PRODUCT "|train.fp8_weights=product"

/* Rounded by each product, or once a step by those that have shards: rows in slots, some empty. */
static void check_fp8(const char *by_product, const char *by_step)
{
    struct law_case law = small("mixture", "bf16", 2);

    law.n_ranks = 4;
    law.global_batch = 8;
    law.gradient_sum = "early";
    law.tuning = by_product;
    choose(0, "eager");
    struct law_outcome wanted = law_run(&law), cpu = on_the_cpu(&law);
    near("a GPU and the CPU, fp8", &wanted, &cpu, 2e-2);
    choose(1, "lazy");
    law.tuning = by_step;
    law.zero = 3;
    law.recompute = "full";
    law.poison = 1;
    struct law_outcome got = law_run(&law);
    law_must_equal("codes of shards, NCCL", &wanted, &got);
}

static void in_fp8(void **state)
{
    (void)state;
    check_fp8(FP8 "blockwise" PRODUCT, FP8 "blockwise");
    check_fp8(FP8 "tensor" PRODUCT, FP8 "tensor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_loss_does_not_move),
        cmocka_unit_test(choices_are_dropped),
        cmocka_unit_test(equal_bits),
        cmocka_unit_test(whole_experts),
        cmocka_unit_test(in_fp8),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
