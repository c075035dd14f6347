/*
 * compress_rows_test.c - the law of activations that travel compressed between tp ranks
 * (program/compress_rows.c)
 *
 * Its own numerics, in which threads, recomputation, ZeRO, a stop and poisoned memory change no
 * bit; with all rows in full it is that of no compression.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/law_rig.h"

static struct law_case base_case(const char *model, int tp, const char *codec)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = c.tp = tp;
    c.tuning = codec;
    return c;
}

static void must_equal(const struct law_case *c, const struct law_outcome *wanted, const char *what)
{
    struct law_outcome got;

    if (law_left_out())
        return;
    got = law_run(c);
    law_must_equal(what, wanted, &got);
}

/* All rows in full: only the way differs. */
static void all_rows_in_full(void **state)
{
    static const char *const dtypes[] = { "bf16", "fp32" };

    (void)state;
    for (int tp = 2; tp <= 4; tp *= 2)
        for (int i = 0; i < 2; i++) {
            struct law_case c = base_case("llama", tp, NULL);

            if (law_left_out())
                continue;
            c.dtype = dtypes[i];
            struct law_outcome none = law_run(&c);
            c.tuning = "parallel.compress_activations=1";
            struct law_outcome got = law_run(&c);
            assert_true(got.numerics != none.numerics);
            got.numerics = none.numerics;
            law_must_equal("all rows in full", &none, &got);
        }
}

static void every_way(const char *model, const char *codec)
{
    struct law_case c = base_case(model, 2, codec);
    struct law_outcome wanted = law_run(&c);
    static const char *const kinds[] = { "none", "selective", "full" };

    for (int i = 0; i < 3; i++) {
        c.recompute = kinds[i];
        c.n_threads = 1 + 2 * i;
        c.poison = i > 0;
        must_equal(&c, &wanted, kinds[i]);
    }
    c.stop_after = 2;
    must_equal(&c, &wanted, "a stop");
    c = base_case(model, 2, codec);
    c.n_ranks = 4;
    wanted = law_run(&c);
    c.zero = 1;
    must_equal(&c, &wanted, "zero 1");
    c = base_case(model, 2, codec);
    c.n_ranks = 4;
    c.pp = 2;
    wanted = law_run(&c);
    c.recompute = "full";
    c.schedule = "zb-h1";
    must_equal(&c, &wanted, "stages, split backwards");
}

static void codes_of_8_bits(void **state)
{
    (void)state;
    every_way("llama-deep", "parallel.compress_activations=0.2");
    every_way("alibi", "parallel.compress_activations=0.2");
}

static void codes_of_4_bits(void **state)
{
    (void)state;
    every_way("mixture", "parallel.compress_activations=0.1|parallel.compress_bits=4");
}

/* Farther with fewer bits; near it with 8. Weights hardly move. */
static void near_none(void **state)
{
    static const char *const codecs[] = {
        "optimizer.lr=1e-9",
        "optimizer.lr=1e-9|parallel.compress_activations=0.2",
        "optimizer.lr=1e-9|parallel.compress_activations=0.2|parallel.compress_bits=4",
    };
    double off[3] = { 0 };
    struct law_outcome none;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct law_case c = base_case("llama-deep", 2, codecs[i]);
        struct law_outcome got = law_run(&c);

        if (i == 0)
            none = got;
        off[i] = fabs(got.norm[0] / none.norm[0] - 1);
        assert_true(fabs(got.loss[0] / none.loss[0] - 1) < 0.05);
        assert_true(i == 0 || got.loss[0] != none.loss[0]);
    }
    print_message("gradient norms: off by %.3g with 8 bits, %.3g with 4\n", off[1], off[2]);
    assert_true(off[1] < 0.02);
    assert_true(off[2] < 0.3);
    assert_true(off[1] < off[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_rows_in_full),
        cmocka_unit_test(codes_of_8_bits),
        cmocka_unit_test(codes_of_4_bits),
        cmocka_unit_test(near_none),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
