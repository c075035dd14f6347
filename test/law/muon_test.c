/*
 * muon_test.c - Muon under the law (design.md §5)
 *
 * A matrix is computed whole by one rank or by all, from parts that lie wherever shards and
 * tensor-parallel ranks have them: no bit tells. Models are such that matrices lie across the edges
 * of shards, and that more or fewer of one shape are dealt out than there are ranks.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define MUON "optimizer.name=muon"

static struct law_case base_case(const char *model, const char *dtype, int n_ranks, const char *sum)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = n_ranks;
    c.gradient_sum = sum;
    c.tuning = MUON;
    return c;
}

/* Of this many data-parallel ranks; more: of the job. */
static void zero_stages(const char *model, const char *dtype, int dp, int tp, const char *more)
{
    for (int late = 0; late < 2; late++) {
        struct law_case c = base_case(model, dtype, dp * tp, late ? "late" : "early");

        c.tp = tp;
        c.tuning = more ? more : MUON;
        struct law_outcome wanted = law_run(&c);
        for (c.zero = 1; c.zero < 4; c.zero++) {
            c.n_threads = c.zero;
            c.bucket_mb = c.zero == 1 ? 64 : 1;
            c.poison = c.zero == 2;
            law_must_run_alike(&c, &wanted);
        }
    }
}

static void zero_of_bf16(void **state)
{
    (void)state;
    zero_stages("llama-untied", "bf16", 2, 1, NULL);
    zero_stages("llama", "bf16", 4, 1, MUON "|optimizer.weight_rounding=half_away");
    zero_stages("llama-untied", "bf16", 8, 1, MUON "|train.gradient_dtype=bf16");
}

static void zero_of_fp32(void **state)
{
    (void)state;
    zero_stages("gpt2", "fp32", 2, 1, NULL);
}

static void zero_of_parts(void **state)
{
    (void)state;
    zero_stages("llama", "bf16", 2, 2, NULL);
    zero_stages("llama", "fp32", 2, 4, NULL);
    zero_stages("gpt2", "fp32", 2, 2, MUON "|optimizer.muon_scale=unit_rms");
}

static void zero_of_experts(void **state)
{
    (void)state;
    zero_stages("mixture", "bf16", 2, 1, NULL);
    zero_stages("mixture", "fp32", 4, 1, MUON "|model.n_experts=12|parallel.ep=2");
    zero_stages("routed", "bf16", 2, 2, MUON "|model.n_experts=12|parallel.ep=2");
    zero_stages("counted", "bf16", 2, 2, MUON "|model.n_experts=12|parallel.ep=2|moe.expert_tp=1");
}

/* Matrices are whole on any layout: what tensor-parallel ranks (of which more than kv heads share
 * one), and ranks of experts, make of them is what one rank does, to rounding. */
static void layouts_agree(void **state)
{
    static const struct {
        const char *model, *tuning, *alone;
        int tp, n_ranks;
    } cases[] = {
        { "llama", MUON, MUON, 2, 2 },
        { "llama", MUON "|optimizer.muon_scale=unit_rms", MUON "|optimizer.muon_scale=unit_rms", 4,
          4 },
        { "gpt2", MUON, MUON, 2, 2 },
        { "mixture", MUON "|model.n_experts=12|parallel.ep=2", MUON "|model.n_experts=12", 2, 4 },
        { "mixture", MUON "|model.n_experts=12|parallel.ep=2|moe.expert_tp=1",
          MUON "|model.n_experts=12", 2, 4 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct law_case c =
            base_case(cases[i].model, "fp32", cases[i].n_ranks / cases[i].tp, "late");

        c.tuning = cases[i].alone;
        struct law_outcome alone = law_run(&c);
        c.n_ranks = cases[i].n_ranks;
        c.tp = cases[i].tp;
        c.tuning = cases[i].tuning;
        struct law_outcome parts = law_run(&c);
        for (int step = 0; step < LAW_STEPS; step++) {
            double far = fabs(parts.loss[step] / alone.loss[step] - 1);

            if (!(far < 2e-5))
                fail_msg("%s, tp %d, %s, step %d: loss is off by %g", c.model, c.tp, c.tuning, step,
                         far);
        }
    }
}

/* Groups of ranks that shard for themselves, and context parallelism. */
static void other_axes(void **state)
{
    struct law_case c = base_case("llama", "bf16", 4, "late");

    (void)state;
    struct law_outcome wanted = law_run(&c);
    c.zero = 1;
    c.zero_group = 2;
    law_must_run_alike(&c, &wanted);
    c = base_case("llama", "fp32", 4, "late");
    c.cp = 2;
    wanted = law_run(&c);
    for (c.zero = 1; c.zero < 4; c.zero += 2)
        law_must_run_alike(&c, &wanted);
    c.zero = 0;
    c.cp_kind = "fastseq";
    wanted = law_run(&c);
    for (c.zero = 1; c.zero < 4; c.zero += 2)
        law_must_run_alike(&c, &wanted);
}

static void one_rank(void **state)
{
    struct law_case c = base_case("mixture", "bf16", 1, "late");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.recompute = "full";
    c.n_threads = 3;
    c.poison = 1;
    law_must_run_alike(&c, &wanted);
}

static void pipelines(void **state)
{
    static const char *const schedules[] = { "1f1b", "interleaved", "zb-h1" };
    struct law_case c = base_case("llama-deep", "bf16", 2, "early");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.pp = 2;
    c.n_ranks = 4;
    for (int s = 0; s < 3; s++) {
        c.schedule = schedules[s];
        c.chunks = s == 1 ? 2 : 0;
        c.zero = s;
        law_must_run_alike(&c, &wanted);
    }
}

/* In another layout, too: momenta are saved, and there is no second moment of matrices. */
static void resumed(void **state)
{
    struct law_case c = base_case("llama", "bf16", 2, "early");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    for (c.stop_after = 1; c.stop_after < LAW_STEPS; c.stop_after += 2) {
        c.zero = c.stop_after == 3;
        c.zero_after = c.zero ? 4 : 3;
        law_must_run_alike(&c, &wanted);
    }
    c.stop_after = 3;
    c.zero = c.zero_after = 0;
    c.n_ranks_after = 4;
    c.pp_after = 2;
    law_must_run_alike(&c, &wanted);
}

#define LORA "|lora.rank=4"

/* Adapters are no hidden matrices: AdamW's bits. */
static void adapters(void **state)
{
    struct law_case c = base_case("llama", "bf16", 2, "early");

    (void)state;
    c.tuning = "lora.rank=4";
    struct law_outcome adamw = law_run(&c);
    c.tuning = MUON LORA;
    struct law_outcome muon = law_run(&c);
    assert_true(muon.numerics != adamw.numerics);
    muon.numerics = adamw.numerics;
    law_must_equal("adapters by AdamW", &adamw, &muon);
}

/* All that the job says of it changes bits, and is in the hash; training goes on. */
static void settings_are_numerics(void **state)
{
    static const char *const settings[] = {
        "optimizer.name=adamw",
        MUON,
        MUON "|optimizer.muon_coefficients=quintic",
        MUON "|optimizer.muon_coefficients=polar_express",
        MUON "|optimizer.muon_steps=3",
        MUON "|optimizer.muon_scale=original",
        MUON "|optimizer.muon_scale=spectral|optimizer.lr=1e-5",
        MUON "|optimizer.muon_nesterov=false",
        MUON "|optimizer.momentum=0.8",
    };
    enum { N = sizeof settings / sizeof *settings };
    struct law_outcome got[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        struct law_case c = base_case("llama", "fp32", 1, "late");

        c.tuning = settings[i];
        got[i] = law_run(&c);
        assert_true(isfinite(got[i].loss[LAW_STEPS - 1]));
        assert_true(got[i].loss[0] == got[0].loss[0]);
        for (int k = 0; k < i; k++) {
            assert_true(got[i].numerics != got[k].numerics);
            assert_true(got[i].parameters != got[k].parameters);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_of_bf16),
        cmocka_unit_test(zero_of_fp32),
        cmocka_unit_test(zero_of_parts),
        cmocka_unit_test(zero_of_experts),
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(other_axes),
        cmocka_unit_test(one_rank),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(resumed),
        cmocka_unit_test(adapters),
        cmocka_unit_test(settings_are_numerics),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
