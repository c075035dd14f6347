/*
 * host_update_test.c - an optimizer that runs on the host, where its states are, gives the same
 * bits
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/law_rig.h"

enum { N_STAGES_MAX = 2 };

/* What is away besides the states. */
enum { STATES, GRADIENTS = 1, WEIGHTS = 2 };

static void update_on_host(struct law_case *c, struct rank_offload ranks[N_STAGES_MAX], int kinds)
{
    for (int r = 0; r < N_STAGES_MAX; r++) {
        ranks[r] = (struct rank_offload){ .updates_on_host = true };
        ranks[r].cells[AWAY_STATES].bytes = SIZE_MAX;
        ranks[r].cells[AWAY_GRADIENTS].bytes = kinds & GRADIENTS ? SIZE_MAX : 0;
        ranks[r].cells[AWAY_WEIGHTS].bytes = kinds & WEIGHTS ? SIZE_MAX : 0;
    }
    c->offload = ranks;
    c->poison = 1;
}

static struct law_outcome check(struct law_case c, const struct law_outcome *wanted, int kinds)
{
    struct rank_offload ranks[N_STAGES_MAX];
    char what[128];

    update_on_host(&c, ranks, kinds);
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "%s %s, %s, %d ranks, zero %d, away %d", c.model, c.dtype,
             c.tuning ? c.tuning : "", c.n_ranks, c.zero, kinds);
    law_must_equal(what, wanted, &got);
    return got;
}

static void check_alone(const char *model, const char *dtype, const char *tuning, int kinds)
{
    struct law_case c = law_base(model, dtype);

    c.tuning = tuning;
    struct law_outcome wanted = law_reference(c);
    check(c, &wanted, kinds);
    c.stop_after = 2;
    check(c, &wanted, kinds);
}

static void each_kind_of_states(void **state)
{
    (void)state;
    check_alone("llama", "bf16", NULL, STATES);
    check_alone("gpt2", "fp32", NULL, GRADIENTS);
    check_alone("llama", "bf16", "optimizer.states=bf16", WEIGHTS);
    check_alone("gpt2", "bf16", "train.gradient_dtype=bf16", GRADIENTS | WEIGHTS);
    check_alone("llama", "bf16", "optimizer.weight_rounding=half_away|optimizer.masters=split",
                STATES);
    check_alone("llama", "bf16", "lora.rank=3|lora.dropout=0.1", STATES);
    check_alone("llama", "bf16", "optimizer.name=muon", STATES);
    check_alone("mixture", "fp32", "optimizer.name=muon", GRADIENTS | WEIGHTS);
    check_alone("llama", "bf16", "train.ema=0.9", STATES);
    check_alone("gpt2", "fp32", "train.ema=0.9", GRADIENTS | WEIGHTS);
    check_alone("llama", "bf16", "optimizer.states=bf16|train.ema=0.9", WEIGHTS);
    check_alone("llama", "bf16",
                "optimizer.weight_rounding=half_away|optimizer.masters=split|train.ema=0.9",
                STATES);
}

static void under_zero(void **state)
{
    (void)state;
    struct law_case c = law_base("llama-untied", "bf16");

    c.n_ranks = 2;
    struct law_outcome wanted = law_reference(c);
    for (c.zero = 0; c.zero <= 3; c.zero++) {
        check(c, &wanted, STATES);
        check(c, &wanted, GRADIENTS | WEIGHTS);
    }
    c.tuning = "optimizer.states=bf16";
    c.zero = 0;
    wanted = law_reference(c);
    for (c.zero = 1; c.zero <= 3; c.zero += 2)
        check(c, &wanted, STATES);
    c.tuning = "optimizer.name=muon";
    c.zero = 0;
    wanted = law_reference(c);
    for (c.zero = 0; c.zero <= 3; c.zero++)
        check(c, &wanted, c.zero % 2 ? STATES : GRADIENTS | WEIGHTS);
    c.tuning = "train.ema=0.9";
    c.zero = 0;
    wanted = law_reference(c);
    for (c.zero = 1; c.zero <= 3; c.zero += 2)
        check(c, &wanted, STATES | WEIGHTS);
}

static void with_tensor_and_pipeline_parallelism(void **state)
{
    (void)state;
    struct law_case c = law_base("llama-deep", "bf16");
    struct law_outcome wanted = law_reference(c);

    c.n_ranks = c.pp = 2;
    check(c, &wanted, STATES);
    c = law_base("llama", "bf16");
    c.n_ranks = c.tp = 2;
    c.tuning = "optimizer.states=bf16";
    wanted = law_reference(c);
    check(c, &wanted, STATES);
}

/* Cells larger than a piece are updated piece by piece, on the host or streamed. */
static void in_pieces(void **state)
{
    struct rank_offload ranks[N_STAGES_MAX];

    (void)state;
    for (int i = 0; i < 16; i++) {
        bool is_half = i & 1, on_host = i & 2, has_average = i & 8;
        struct law_case c = is_half ? law_base("llama-untied", "bf16") : law_base("gpt2", "fp32");

        c.zero = i / 4 % 2;
        c.n_ranks = 1 + c.zero;
        c.tuning = has_average ? is_half ? "optimizer.states=bf16|train.ema=0.9" : "train.ema=0.9"
                   : is_half   ? "optimizer.states=bf16"
                               : NULL;
        struct law_outcome wanted = law_reference(c);
        update_on_host(&c, ranks, GRADIENTS);
        ranks[0].updates_on_host = on_host;
        ranks[0].piece_bytes = (size_t)32 << 10;
        struct law_outcome got = law_run(&c);
        law_must_equal(on_host ? "pieces, on the host" : "pieces, streamed", &wanted, &got);
    }
}

/* The others' are streamed, or never leave. */
static void some_states(void **state)
{
    struct law_case c = law_base("llama", "bf16");
    struct law_outcome wanted = law_reference(c);
    struct rank_offload ranks[N_STAGES_MAX];

    (void)state;
    for (size_t bytes = 100000; bytes < 3000000; bytes *= 5) {
        update_on_host(&c, ranks, STATES);
        ranks[0].cells[AWAY_STATES].bytes = bytes;
        struct law_outcome got = law_run(&c);
        law_must_equal("some states", &wanted, &got);
    }
}

/* A skipped step leaves weights as they are, whether they are away or not. */
static void steps_that_are_skipped(void **state)
{
    static const int kinds[] = { STATES, GRADIENTS, WEIGHTS };
    struct law_case c = law_base("llama", "fp16");
    int n_skipped = 0;

    (void)state;
    c.tuning = "train.loss_scale.initial=8388608|train.loss_scale.growth_every=2|"
               "train.loss_scale.max=8388608";
    struct law_outcome wanted = law_reference(c);
    for (int i = 0; i < LAW_STEPS; i++)
        n_skipped += !isfinite(wanted.norm[i]);
    assert_true(n_skipped > 0 && n_skipped < LAW_STEPS);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        check(c, &wanted, kinds[i]);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_states),
        cmocka_unit_test(under_zero),
        cmocka_unit_test(with_tensor_and_pipeline_parallelism),
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(some_states),
        cmocka_unit_test(steps_that_are_skipped),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
