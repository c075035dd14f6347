/*
 * compress_test.c - the law of gradients that are compressed between ranks (program/compress.c)
 *
 * What ZeRO shards, how parameters are put into buckets, stages and threads change no bit.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/law_rig.h"

static struct law_case base_case(const char *model, int dp, const char *codec)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = dp;
    c.gradient_sum = "late";
    c.tuning = codec;
    return c;
}

static void all_ways(const char *codec)
{
    struct law_case c = base_case("llama-untied", 2, codec);
    struct law_outcome wanted = law_run(&c);

    for (c.zero = 0; c.zero < 2; c.zero++)
        for (c.bucket_mb = 1; c.bucket_mb < 128; c.bucket_mb += 63) {
            c.n_threads = 2 + c.zero;
            c.poison = c.bucket_mb > 1;
            law_must_run_alike(&c, &wanted);
        }
    c = base_case("llama-untied", 4, codec);
    c.pp = 2;
    c.zero = 1;
    law_must_run_alike(&c, &wanted);
    /* What is lost goes on from a checkpoint, from one stage or another to other stages, too. */
    c.stop_after = 2;
    c.pp_after = 1;
    c.n_ranks_after = 2;
    c.zero_after = 1;
    law_must_run_alike(&c, &wanted);
}

/* Tied weights have two accumulators, and tp ranks errors of their own of norms. */
static void parts(const char *codec)
{
    struct law_case c = base_case("llama", 4, codec);

    c.tp = 2;
    struct law_outcome wanted = law_run(&c);
    c.zero = 1;
    c.bucket_mb = 64;
    law_must_run_alike(&c, &wanted);
    c.stop_after = 3;
    law_must_run_alike(&c, &wanted);
    c.zero_after = 1;
    law_must_run_alike(&c, &wanted);
}

/*
 * Not what is computed without, but near it: what a step loses is small, and what is fed back in
 * the next ones is that. Weights hardly move: at this model's learning rate of 1e-2 any rounding
 * grows, and after four steps without a codec norms of bf16 and fp32 are up to 14 % apart.
 */
static void near_none(const char *codec, double of_norm)
{
    struct law_case c = base_case("llama", 2, "optimizer.lr=1e-9");
    struct law_outcome none = law_run(&c);
    char tuning[100];

    snprintf(tuning, sizeof tuning, "optimizer.lr=1e-9|%s", codec);
    c.tuning = tuning;
    struct law_outcome got = law_run(&c);
    assert_true(got.states != none.states);
    assert_true(got.numerics != none.numerics);
    for (int i = 0; i < LAW_STEPS; i++) {
        assert_true(fabs(got.norm[i] / none.norm[i] - 1) < of_norm);
        assert_true(fabs(got.loss[i] / none.loss[i] - 1) < 1e-6);
    }
}

/* As many other ranks begin without errors: that is no mistake. */
static void other_ranks(const char *codec)
{
    struct law_case c = base_case("llama", 2, codec);

    c.stop_after = 2;
    c.n_ranks_after = 4;
    law_run(&c);
}

static void int8(void **state)
{
    (void)state;
    all_ways("parallel.compress=int8");
    parts("parallel.compress=int8");
    near_none("parallel.compress=int8", 2e-4);
    other_ranks("parallel.compress=int8");
}

static void fp8(void **state)
{
    struct law_case c = base_case("llama-untied", 2, "parallel.compress=fp8");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.zero = 1;
    c.stop_after = 2;
    law_must_run_alike(&c, &wanted);
    near_none("parallel.compress=fp8", 1e-3);
}

#define TOP_K "parallel.compress=topk|parallel.compress_ratio="

static void top_k(void **state)
{
    (void)state;
    all_ways(TOP_K "0.1|parallel.compress_start=0");
    parts(TOP_K "0.1|parallel.compress_start=2");
}

/* What sends all is as what does not compress, to the bit; so is what has not started. */
static void top_k_of_all(void **state)
{
    struct law_case c = base_case("llama", 4, NULL);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.tuning = TOP_K "1|parallel.compress_start=2";
    for (c.zero = 0; c.zero < 2; c.zero++) {
        struct law_outcome got = law_run(&c);

        wanted.numerics = got.numerics;
        law_must_equal("top-k of all", &wanted, &got);
    }
    c.zero = 0;
    c.tuning = TOP_K "0.01|parallel.compress_start=4";
    struct law_outcome got = law_run(&c);
    wanted.numerics = got.numerics;
    law_must_equal("not started", &wanted, &got);
}

#define POWERSGD "parallel.compress=powersgd|parallel.compress_rank="

/* Also of experts, each of which is a matrix of its own, and where ranks have whole ones. */
static void powersgd(void **state)
{
    struct law_case c = base_case("mixture", 4, POWERSGD "3|parallel.compress_start=0");

    (void)state;
    all_ways(POWERSGD "4|parallel.compress_start=0");
    parts(POWERSGD "2|parallel.compress_start=2");
    other_ranks(POWERSGD "8|parallel.compress_start=0");
    c.tp = 2;
    struct law_outcome wanted = law_run(&c);
    c.zero = 1;
    c.bucket_mb = 64;
    c.stop_after = 2;
    law_must_run_alike(&c, &wanted);
}

/* Under an optimizer of whole matrices, too; and a run goes on with factors of more columns, which
 * start from random ones, as they do where there were none. */
static void powersgd_and_others(void **state)
{
    struct law_case c =
        base_case("llama", 2, "optimizer.name=muon|" POWERSGD "3|parallel.compress_start=0");
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.zero = 1;
    c.stop_after = 2;
    law_must_run_alike(&c, &wanted);
    c = base_case("llama", 2, POWERSGD "3|parallel.compress_start=0");
    wanted = law_run(&c);
    c.stop_after = 2;
    c.tuning_after = POWERSGD "5|parallel.compress_start=0";
    struct law_outcome got = law_run(&c);
    assert_true(got.states != wanted.states);
    c.tuning = "parallel.compress=int8";
    law_run(&c);
}

/* Not started it is as no codec, to the bit. */
static void powersgd_not_started(void **state)
{
    struct law_case c = base_case("llama", 4, NULL);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.tuning = POWERSGD "2|parallel.compress_start=4";
    for (c.zero = 0; c.zero < 2; c.zero++) {
        struct law_outcome got = law_run(&c);

        wanted.numerics = got.numerics;
        law_must_equal("not started", &wanted, &got);
    }
}

#define FEW_TOKENS "data.seq_len=2|optimizer.lr=1e-6|"

/* A step of 16 tokens has gradients of rank 16 at most: factors of as many columns are all of them,
 * and what fewer ones lose is not little. (Weights hardly move: as in near_none.) */
static void powersgd_of_all(void **state)
{
    struct law_case c = base_case("llama-untied", 2, FEW_TOKENS "parallel.compress=none");

    (void)state;
    c.dtype = "fp32";
    c.global_batch = 8;
    struct law_outcome none = law_run(&c);
    c.tuning = FEW_TOKENS POWERSGD "16|parallel.compress_start=0";
    struct law_outcome all = law_run(&c);
    c.tuning = FEW_TOKENS POWERSGD "2|parallel.compress_start=0";
    struct law_outcome few = law_run(&c);

    assert_true(all.states != none.states);
    for (int i = 0; i < LAW_STEPS; i++) {
        assert_true(fabs(all.loss[i] / none.loss[i] - 1) < 1e-5);
        assert_true(fabs(all.norm[i] / none.norm[i] - 1) < 1e-5);
        assert_true(fabs(few.norm[i] / none.norm[i] - 1) > 1e-2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(int8),
                                        cmocka_unit_test(fp8),
                                        cmocka_unit_test(top_k),
                                        cmocka_unit_test(top_k_of_all),
                                        cmocka_unit_test(powersgd),
                                        cmocka_unit_test(powersgd_and_others),
                                        cmocka_unit_test(powersgd_not_started),
                                        cmocka_unit_test(powersgd_of_all) };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
