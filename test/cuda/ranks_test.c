/*
 * ranks_test.c - whole training steps on GPUs: staged or by NCCL, in whatever order queues run, the
 * same bits
 *
 * Parts of a layer's sums on two ranks, two stages of a pipeline, sharded gradients: what is sent
 * between ranks goes by each of the collectives' streams.
 */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(pipeline),
        cmocka_unit_test(sharded_gradients),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
