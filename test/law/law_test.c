/*
 * law_test.c - equal numerics, equal bits (design.md §5)
 *
 * A small model with everything in it is trained for a few steps, once as a reference and then in
 * every way that must not matter: recompute modes, threads, poisoned memory, unfused ops, stops and
 * resumes, ranks as threads. Loss and gradient norm of every step and all final parameters are
 * compared to the bit. Ranks as processes are in law_process_test.c, tensor parallelism in
 * law_tensor_test.c. Products of many settings are rows of pairs (support/pairs.h), or complete
 * with `make soak`.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/law_rig.h"
#include "support/pairs.h"

static void one_rank(void **state)
{
    static const struct {
        const char *model, *dtype;
    } kinds[] = { { "llama", "fp32" }, { "llama", "bf16" }, { "gpt2", "bf16" } };
    static const char *const modes[] = { "none", "selective", "full" };
    static const int threads[] = { 1, 2, 3, 7 };
    struct law_outcome wanted[3];
    struct pairs rows;
    char what[96];

    (void)state;
    for (int k = 0; k < 3; k++) {
        wanted[k] = law_reference(law_base(kinds[k].model, kinds[k].dtype));
        assert_true(isfinite(wanted[k].loss[0]));
        assert_true(wanted[k].loss[LAW_STEPS - 1] != wanted[k].loss[0]);
    }
    pairs_build(&rows, (int[]){ 3, 3, 4, 2 }, 4);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i];
        struct law_case c = law_base(kinds[row[0]].model, kinds[row[0]].dtype);

        if (law_left_out())
            continue;
        c.recompute = modes[row[1]];
        c.n_threads = threads[row[2]];
        c.poison = row[3];
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "%s %s, recompute %s, %d threads, poison %d", c.model, c.dtype,
                 c.recompute, c.n_threads, c.poison);
        law_must_equal(what, &wanted[row[0]], &got);
    }
}

static void mixture(void **state)
{
    static const char *const models[] = { "mixture", "pooled" };
    static const char *const modes[] = {
        "selective",
        "full",
        "[router, expert_order, dispatch, expert_linear, expert_swiglu, combine]",
        "none",
    };

    (void)state;
    for (int m = 0; m < 2; m++) {
        struct law_case c = law_base(models[m], "bf16");
        struct law_outcome wanted = law_reference(c);

        for (int i = 0; i < 4; i++) {
            c.recompute = modes[i];
            c.n_threads = 2 + i;
            c.poison = 1;
            struct law_outcome got = law_run(&c);
            law_must_equal(modes[i], &wanted, &got);
        }
    }
}

/* Whatever ops are named, what is made again is what was. */
static void lists_on_one_rank(const char *model, const char *dtype)
{
    static const char *const lists[] = {
        "[rmsnorm, layernorm, swiglu, gelu]",
        "[attention]",
        "[add, rope]",
        "[linear, dropout]",
        "[embed, rmsnorm, layernorm, linear, rope, attention, swiglu, gelu, dropout, add]",
    };
    struct law_case c = law_base(model, dtype);
    struct law_outcome wanted = law_reference(c);
    char what[160];

    c.n_threads = 2;
    c.poison = 1;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (law_left_out())
            continue;
        c.recompute = lists[i];
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "%s %s, recompute %s", model, dtype, lists[i]);
        law_must_equal(what, &wanted, &got);
    }
}

/* Also where the backward is in two, on stages and under tensor parallelism. */
static void lists_on_ranks(int tp, int pp)
{
    struct law_case c = law_base("llama", "bf16");
    char what[64];

    c.tp = tp;
    c.n_ranks = tp;
    struct law_outcome wanted = law_reference(c);
    c.n_ranks = tp * pp;
    c.pp = pp;
    c.schedule = "zb-h1";
    c.poison = 1;
    c.recompute = "[rmsnorm, linear, rope, swiglu, add]";
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "tp %d, pp %d zb-h1, recompute %s", tp, pp, c.recompute);
    law_must_equal(what, &wanted, &got);
}

static void recompute_by_list(void **state)
{
    (void)state;
    lists_on_ranks(1, 2);
    lists_on_ranks(2, 1);
    lists_on_ranks(2, 2);
    lists_on_one_rank("llama", "bf16");
    lists_on_one_rank("llama-untied", "fp32");
    lists_on_one_rank("gpt2", "bf16");
}

/* Stopped after every step there is, the run goes on as if it had not been. */
static void stopped_and_resumed(void **state)
{
    struct law_case c = law_base("gpt2", "bf16");
    struct law_outcome wanted = law_reference(c);
    char what[64];

    (void)state;
    for (c.stop_after = 1; c.stop_after < LAW_STEPS; c.stop_after++) {
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "stopped after step %d", c.stop_after);
        law_must_equal(what, &wanted, &got);
    }
}

static void four_ranks(const char *gradient_sum)
{
    static const char *const modes[] = { "selective", "full" };
    struct law_case c = law_base("llama", "bf16");
    char what[64];

    c.n_ranks = 4;
    c.gradient_sum = gradient_sum;
    struct law_outcome wanted = law_reference(c);
    for (int m = 0; m < 2; m++) {
        c.recompute = modes[m];
        c.n_threads = 1 + m;
        c.poison = m;
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "4 ranks, %s, recompute %s", gradient_sum, modes[m]);
        law_must_equal(what, &wanted, &got);
    }
    c.stop_after = 3;
    struct law_outcome got = law_run(&c);
    law_must_equal("4 ranks, stopped", &wanted, &got);
}

static void four_ranks_late(void **state)
{
    (void)state;
    four_ranks("late");
}

static void four_ranks_early(void **state)
{
    (void)state;
    four_ranks("early");
}

/*
 * Each zero stage is zero 0 to the bit: dp 2, 3 and 4, both orders of sums, recomputed or not,
 * shards that cut parameters anywhere (a bucket holds several, and parameters are larger than a
 * shard).
 */
static void zero_is_zero(struct law_case c, int zero)
{
    static const char *const modes[] = { "none", "selective", "full" };
    char what[96];

    c.global_batch = 12;
    struct law_outcome wanted = law_reference(c);
    c.zero = zero;
    c.recompute = modes[c.n_ranks - 2];
    c.n_threads = c.n_ranks - 1;
    c.poison = c.n_ranks % 2;
    c.bucket_mb = c.n_ranks == 4 ? 64 : 1;
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "zero %d, %s %s, dp %d, %s", zero, c.model, c.dtype, c.n_ranks,
             c.gradient_sum);
    law_must_equal(what, &wanted, &got);
}

static void zero_stages(void **state)
{
    static const char *const models[] = { "llama", "llama-untied", "gpt2", "mixture", "pooled" };
    static const char *const dtypes[] = { "bf16", "fp32" };
    static const char *const sums[] = { "late", "early" };
    struct pairs rows;

    (void)state;
    pairs_build(&rows, (int[]){ 5, 3, 3, 2, 2 }, 5);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i];
        struct law_case c = law_base(models[row[0]], dtypes[row[3]]);

        if (law_left_out())
            continue;
        c.gradient_sum = sums[row[4]];
        c.n_ranks = 2 + row[2];
        zero_is_zero(c, 1 + row[1]);
    }
}

/* Groups of two that shard, and copy each other: as four that shard, as four that do not. */
static void hybrid(const char *model, const char *dtype, const char *gradient_sum)
{
    struct law_case c = law_base(model, dtype);
    char what[96];

    c.n_ranks = 4;
    c.gradient_sum = gradient_sum;
    struct law_outcome wanted = law_reference(c);
    c.zero_group = 2;
    for (c.zero = 1; c.zero <= 3; c.zero++) {
        c.recompute = c.zero == 2 ? "full" : "none";
        c.poison = c.zero % 2;
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "%s %s %s, zero %d in groups of two", model, dtype,
                 gradient_sum, c.zero);
        law_must_equal(what, &wanted, &got);
    }
    c.zero = 1;
    c.stop_after = 3;
    c.zero_after = 1 + 3;
    struct law_outcome got = law_run(&c);
    law_must_equal("zero 1 in groups of two, gone on with under zero 3", &wanted, &got);
}

static void hybrid_sharding(void **state)
{
    (void)state;
    hybrid("llama", "bf16", "late");
    hybrid("llama", "fp32", "early");
    hybrid("gpt2", "bf16", "early");
}

/* With stages and tensor-parallel ranks: two groups of two, twice. */
static void hybrid_of_eight(void **state)
{
    struct law_case c = law_base("llama", "bf16");

    (void)state;
    c.n_ranks = 8;
    c.tp = 2;
    struct law_outcome wanted = law_reference(c);
    c.zero = 3;
    c.zero_group = 2;
    struct law_outcome got = law_run(&c);
    law_must_equal("tp 2, zero 3 in groups of two", &wanted, &got);
    c.tp = 0;
    c.n_ranks = 4;
    wanted = law_reference(c);
    c.n_ranks = 8;
    c.pp = 2;
    got = law_run(&c);
    law_must_equal("pp 2, zero 3 in groups of two", &wanted, &got);
}

/* A checkpoint knows no zero: each stage goes on from the other's, on as many ranks or fewer. */
static void zero_one_resumes(void **state)
{
    static const int ways[][2] = { { 0, 1 }, { 1, 0 }, { 1, 1 } };
    static const char *const kinds[][2] = { { "llama", "bf16" }, { "gpt2", "fp32" } };
    struct law_outcome wanted[2][2];
    struct pairs rows;
    char what[64];

    (void)state;
    for (int k = 0; k < 2; k++)
        for (int fewer = 0; fewer < 2; fewer++) {
            struct law_case c = law_base(kinds[k][0], kinds[k][1]);

            c.n_ranks = 4;
            c.stop_after = 3;
            c.n_ranks_after = fewer ? 2 : 4;
            wanted[k][fewer] = law_run(&c);
        }
    pairs_build(&rows, (int[]){ 2, 2, 3 }, 3);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i], *way = ways[row[2]];
        struct law_case c = law_base(kinds[row[0]][0], kinds[row[0]][1]);

        if (law_left_out())
            continue;
        c.n_ranks = 4;
        c.stop_after = 3;
        c.n_ranks_after = row[1] ? 2 : 4;
        c.zero = way[0];
        c.zero_after = 1 + way[1];
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "%s, 4 to %d ranks, zero %d to %d", c.dtype, c.n_ranks_after,
                 way[0], way[1]);
        law_must_equal(what, &wanted[row[0]][row[1]], &got);
    }
}

static const struct {
    const char *schedule;
    int pp, chunks;
} pipeline_ways[] = {
    { "gpipe", 2, 0 }, { "1f1b", 2, 0 },        { "zb-h2", 2, 0 },         { "zb-h1", 3, 0 },
    { "1f1b", 4, 0 },  { "interleaved", 2, 2 }, { "breadth-first", 2, 2 }, { "zb-v", 2, 0 },
};

/* Of one or two data-parallel ranks, whose sums come late or early. */
static struct law_case unpiped(const char *model, const char *dtype, int dp, int is_early)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = dp;
    c.gradient_sum = is_early ? "early" : "late";
    return c;
}

static void must_be_unpiped(const struct law_case *c, int dp, const struct law_outcome *wanted)
{
    struct law_outcome got = law_run(c);
    char what[128];

    snprintf(what, sizeof what, "%s %s %s, dp %d, pp %d %s, zero %d, recompute %s, poison %d",
             c->model, c->dtype, c->gradient_sum, dp, c->pp, c->schedule, c->zero, c->recompute,
             c->poison);
    law_must_equal(what, wanted, &got);
}

/*
 * A pipeline, in every order of micro-batches there is, alone and with data-parallel ranks: of the
 * ways the first few, which models of two layers can take, or all. One or two models.
 */
static void pipelines(const char *const *models, int n_models, const char *dtype, int n_ways)
{
    static const char *const modes[] = { "none", "selective", "full" };
    static const char *const early[] = { "memory.recompute_early=0", "memory.recompute_early=1",
                                         "memory.recompute_early=9" };
    struct law_outcome wanted[2][2][2];
    struct pairs rows;

    for (int model = 0; model < n_models; model++)
        for (int k = 0; k < 4; k++)
            wanted[model][k / 2][k % 2] =
                law_reference(unpiped(models[model], dtype, 1 + k / 2, k % 2));
    pairs_build(&rows, (int[]){ n_ways, n_models, 4, 2, 2, 3 }, 6);
    for (int i = 0; i < rows.n_rows; i++) {
        const int *row = rows.level[i];
        int dp = row[2] ? 2 : 1; /* two of zero 0, 1 or 2 */
        struct law_case c = unpiped(models[row[1]], dtype, dp, row[3]);

        if (law_left_out())
            continue;
        c.schedule = pipeline_ways[row[0]].schedule;
        c.pp = pipeline_ways[row[0]].pp;
        c.chunks = pipeline_ways[row[0]].chunks;
        c.n_ranks = dp * c.pp;
        c.zero = max_int(row[2] - 1, 0);
        c.poison = row[4];
        c.recompute = modes[row[5]];
        c.tuning = early[i % 3];
        c.n_threads = 1 + i % 2;
        must_be_unpiped(&c, dp, &wanted[row[1]][dp - 1][row[3]]);
    }
}

static void pipelines_of_deep_models(void **state)
{
    static const char *const models[] = { "llama", "mixture" };

    (void)state;
    pipelines(models, 2, "bf16", 8);
}

static void pipelines_gpt2(void **state)
{
    static const char *const models[] = { "gpt2" };

    (void)state;
    pipelines(models, 1, "fp32", 3);
}

/* A checkpoint knows no pipeline: what one saved another goes on with. */
static void pipelines_resume(void **state)
{
    static const int ways[][2] = { { 1, 2 }, { 2, 1 }, { 2, 4 } };
    struct law_case c = law_base("llama", "bf16");
    struct law_outcome wanted = law_reference(c);
    char what[64];

    (void)state;
    c.stop_after = 3;
    for (int i = 0; i < 3; i++) {
        c.n_ranks = c.pp = ways[i][0];
        c.n_ranks_after = c.pp_after = ways[i][1];
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "saved by %d stages, gone on with by %d", c.pp, c.pp_after);
        law_must_equal(what, &wanted, &got);
    }
}

/* Saved by 4 ranks, gone on with by 2: other numerics, the same model to a tolerance. */
static void another_layout_goes_on(void **state)
{
    struct law_case c = law_base("llama", "fp32");

    (void)state;
    c.n_ranks = 4;
    struct law_outcome wanted = law_reference(c);
    c.stop_after = 3;
    c.n_ranks_after = 2;
    struct law_outcome got = law_run(&c);
    assert_true(got.numerics != wanted.numerics);
    for (int i = 0; i < LAW_STEPS; i++)
        if (!(fabs(got.loss[i] - wanted.loss[i]) <= 1e-4 * wanted.loss[i]))
            fail_msg("step %d: loss %.9g, wanted %.9g", i + 1, got.loss[i], wanted.loss[i]);
}

/* dp 1, 2, 4 at one global batch agree to rounding; AdamW's signs of near-zero gradients then part.
 */
static void degrees_agree(void **state)
{
    struct law_case c = law_base("llama", "fp32");
    struct law_outcome wanted = law_reference(c);

    (void)state;
    for (c.n_ranks = 2; c.n_ranks <= 4; c.n_ranks *= 2) {
        struct law_outcome got = law_run(&c);
        for (int i = 0; i < LAW_STEPS; i++) {
            if (!(fabs(got.loss[i] - wanted.loss[i]) <= 1e-5 * wanted.loss[i]))
                fail_msg("dp %d, step %d: loss %.9g, wanted %.9g", c.n_ranks, i + 1, got.loss[i],
                         wanted.loss[i]);
            double allowed = i == 0 ? 1e-5 : 1e-3;
            if (!(fabs(got.norm[i] - wanted.norm[i]) <= allowed * wanted.norm[i]))
                fail_msg("dp %d, step %d: norm %.9g, wanted %.9g", c.n_ranks, i + 1, got.norm[i],
                         wanted.norm[i]);
        }
    }
}

/* The other way round: what is part of the numerics must show, else nothing above means anything.
 */
static void other_numerics_other_bits(void **state)
{
    struct law_case c = law_base("llama", "fp32");
    struct law_outcome one = law_reference(c);

    (void)state;
    c.seed = 2;
    struct law_outcome other_seed = law_reference(c);
    assert_true(one.parameters != other_seed.parameters);
    assert_true(one.numerics != other_seed.numerics);
    c.seed = 0;
    c.n_ranks = 4;
    struct law_outcome late = law_reference(c);
    c.gradient_sum = "early";
    struct law_outcome early = law_reference(c);
    assert_true(late.parameters != early.parameters);
    assert_true(late.loss[0] == early.loss[0]); /* only gradients are summed another way */
    assert_true(late.numerics != early.numerics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(mixture),
        cmocka_unit_test(recompute_by_list),
        cmocka_unit_test(stopped_and_resumed),
        cmocka_unit_test(four_ranks_late),
        cmocka_unit_test(four_ranks_early),
        cmocka_unit_test(zero_stages),
        cmocka_unit_test(zero_one_resumes),
        cmocka_unit_test(hybrid_sharding),
        cmocka_unit_test(hybrid_of_eight),
        cmocka_unit_test(pipelines_of_deep_models),
        cmocka_unit_test(pipelines_gpt2),
        cmocka_unit_test(pipelines_resume),
        cmocka_unit_test(another_layout_goes_on),
        cmocka_unit_test(degrees_agree),
        cmocka_unit_test(other_numerics_other_bits),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
