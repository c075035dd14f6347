/*
 * ranks_test.c - whole training steps on GPUs: staged or by NCCL, in whatever order queues run, the
 * same bits
 *
 * Parts of a layer's sums on two ranks, two stages of a pipeline, sharded gradients: what is sent
 * between ranks goes by each of the collectives' streams. Sums that NCCL adds itself are near
 * those. No code is loaded in the midst of a step, of libraries neither, where a stream waits for a
 * peer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
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

static void all_ways(const struct law_case *law)
{
    static const struct {
        int nccl;
        const char *streams;
    } ways[] = { { 0, "1" }, { 1, "lazy" }, { 1, "2" } };
    struct law_outcome wanted, got;
    char what[64];

    choose(0, "eager");
    wanted = law_run(law);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        choose(ways[i].nccl, ways[i].streams);
        got = law_run(law);
        snprintf(what, sizeof what, "%s, streams %s", ways[i].nccl ? "NCCL" : "staged",
                 ways[i].streams);
        law_must_equal(what, &wanted, &got);
    }
}

static struct law_case small(void)
{
    struct law_case law = law_base("normed", "bf16");

    law.n_ranks = 2;
    law.global_batch = 4;
    return law;
}

static void tensor_parallel(void **state)
{
    struct law_case law = small();

    (void)state;
    law.model = "llama-deep";
    law.tp = 2;
    all_ways(&law);
}

static void pipeline(void **state)
{
    struct law_case law = small();

    (void)state;
    law.pp = 2;
    all_ways(&law);
}

static void sharded_gradients(void **state)
{
    struct law_case law = small();

    (void)state;
    law.zero = 2;
    law.gradient_sum = "early";
    law.global_batch = 8;
    all_ways(&law);
}

/* Groups of two axes at once, whose ranks are every second one, or the next. */
static void tensor_parallel_stages(void **state)
{
    struct law_case law = small();
    struct law_outcome wanted, got;

    (void)state;
    law.n_ranks = 4;
    law.tp = 2;
    law.pp = 2;
    choose(0, "eager");
    wanted = law_run(&law);
    choose(1, "1");
    got = law_run(&law);
    law_must_equal("NCCL, two axes", &wanted, &got);
}

/* The first stage's ranks have no gradients to sum, so no group for it; the last's have. */
static void a_stage_without_gradients(void **state)
{
    struct law_case law = small();
    struct law_outcome wanted, got;

    (void)state;
    law.model = "llama-untied";
    law.n_ranks = 4;
    law.pp = 2;
    law.global_batch = 8;
    law.tuning = "train.only=[head.weight]";
    choose(0, "eager");
    wanted = law_run(&law);
    choose(1, "1");
    got = law_run(&law);
    law_must_equal("NCCL, one stage sums", &wanted, &got);
}

/* How far apart two runs are at their most, as a part of the loss or of the norm. */
static double distance(const struct law_outcome *a, const struct law_outcome *b)
{
    double most = 0;

    for (int i = 0; i < LAW_STEPS; i++) {
        most = fmax(most, fabs(a->loss[i] - b->loss[i]) / a->loss[i]);
        most = fmax(most, fabs(a->norm[i] - b->norm[i]) / a->norm[i]);
    }
    return most;
}

/* NCCL's sums are near the fixed ones and have other bits, so other numerics. */
static void nccl_adds(const struct law_case *law)
{
    struct law_case fast = *law;
    struct law_outcome wanted, got;

    choose(1, "1");
    wanted = law_run(law);
    fast.tuning = "parallel.reductions=fast";
    got = law_run(&fast);
    if (!(distance(&wanted, &got) < 0.01))
        fail_msg("fast and fixed sums are %g apart", distance(&wanted, &got));
    assert_true(wanted.parameters != got.parameters);
    assert_true(wanted.numerics != got.numerics);
}

static void sums_of_nccl(void **state)
{
    struct law_case law = small();

    (void)state;
    law.n_ranks = 4; /* of two the order is one */
    law.zero = 2;
    law.gradient_sum = "early";
    law.global_batch = 8;
    nccl_adds(&law);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),        cmocka_unit_test(pipeline),
        cmocka_unit_test(tensor_parallel_stages), cmocka_unit_test(a_stage_without_gradients),
        cmocka_unit_test(sharded_gradients),      cmocka_unit_test(sums_of_nccl),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
