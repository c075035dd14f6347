/*
 * compress_layouts_test.c - gradients that are compressed between ranks, beside all else that may
 * be done with gradients: zero 2 and 3, context and expert parallelism, fp16's loss scale, offload
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"

#define TOP_K "parallel.compress=topk|parallel.compress_ratio="
#define INT8 "parallel.compress=int8"
#define POWERSGD "parallel.compress=powersgd|parallel.compress_rank=3|parallel.compress_start="
/* The first steps overflow, and two clean ones double the scale. */
#define SCALES \
    "train.loss_scale.initial=8388608|train.loss_scale.growth_every=2|" \
    "train.loss_scale.max=8388608"

enum { N_LAYERS_MAX = 8, N_STAGES_MAX = 4 };

/* A way to divide and keep gradients. */
struct way {
    const char *model, *dtype;
    int n_ranks, tp, pp, cp;
    const char *cp_kind;
    int zero;
    const char *tuning; /* or NULL */
    bool is_away;
};

static const unsigned char first_set[N_LAYERS_MAX];
static struct keep_set away_set;
static struct rank_offload away[N_STAGES_MAX];

/* All that may be. */
static void send_away(struct law_case *c)
{
    memset(&away_set, 0, sizeof away_set);
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        bitset_add(&away_set.away, kind);
    for (int r = 0; r < N_STAGES_MAX; r++)
        for (int k = 0; k < N_AWAY_KINDS; k++)
            away[r].cells[k].bytes = SIZE_MAX;
    c->keep_sets = (struct layer_keep_sets){ &away_set, first_set };
    c->offload = away;
    c->poison = 1;
}

/* text: of 256 bytes, for its tuning, which the case refers to. */
static struct law_case case_of(const struct way *w, const char *codec, char *text)
{
    struct law_case c = law_base(w->model, w->dtype);

    c.n_ranks = w->n_ranks;
    c.tp = w->tp;
    c.pp = w->pp;
    c.cp = w->cp;
    c.cp_kind = w->cp_kind;
    c.zero = w->zero;
    if (w->is_away)
        send_away(&c);
    snprintf(text, 256, "%s%s%s", w->tuning ? w->tuning : "", w->tuning && codec ? "|" : "",
             codec ? codec : "");
    c.tuning = *text ? text : NULL;
    return c;
}

#define EXPERTS "model.n_experts=6|parallel.ep=2"
#define GROUPS "parallel.zero_group=2"

static const struct way ways[] = {
    { "llama", "bf16", 2, 1, 1, 1, NULL, 2, NULL, false },
    { "llama", "fp32", 4, 1, 1, 1, NULL, 3, NULL, false },
    { "llama-untied", "bf16", 4, 2, 1, 1, NULL, 3, NULL, false },
    { "llama", "bf16", 4, 1, 1, 2, "ulysses", 0, NULL, false },
    { "llama", "fp32", 4, 1, 1, 2, "gather", 1, NULL, false },
    { "llama", "bf16", 8, 1, 1, 4, "{ulysses: 2, gather: 2}", 3, NULL, false },
    { "llama", "bf16", 8, 2, 1, 2, "ring", 0, NULL, false },
    { "mixture", "bf16", 4, 1, 1, 1, NULL, 0, EXPERTS, false },
    { "routed", "fp32", 4, 1, 1, 1, NULL, 3, EXPERTS, false },
    { "mixture", "bf16", 2, 1, 1, 1, NULL, 1, EXPERTS, false },
    { "mixture", "bf16", 8, 1, 1, 2, "gather", 2, EXPERTS, false },
    { "llama", "fp16", 2, 1, 1, 1, NULL, 0, SCALES, false },
    { "llama", "fp16", 4, 1, 2, 1, NULL, 3, SCALES, false },
    { "llama", "fp16", 4, 1, 1, 2, "ulysses", 1, SCALES, false },
    { "llama", "fp32", 4, 1, 1, 1, NULL, 1, GROUPS, false },
    { "llama-untied", "bf16", 8, 2, 1, 1, NULL, 3, GROUPS, false },
    { "llama", "fp16", 8, 1, 1, 2, "gather", 2, GROUPS "|" SCALES, true },
    { "mixture", "bf16", 8, 1, 1, 1, NULL, 2, GROUPS "|" EXPERTS, false },
    { "llama", "bf16", 2, 1, 1, 1, NULL, 0, NULL, true },
    { "llama-untied", "fp32", 2, 1, 1, 1, NULL, 1, NULL, true },
    { "llama", "bf16", 4, 1, 1, 2, "gather", 3, NULL, true },
    { "llama", "fp16", 4, 1, 2, 1, NULL, 2, SCALES, true },
};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* What sends all is as no codec, to the bit: at once, and from the third update on. */
static void top_k_of_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_WAYS; i++) {
        char text[256], what[96];

        if (law_left_out())
            continue;
        struct law_case c = case_of(&ways[i], NULL, text);
        struct law_outcome wanted = law_run(&c);
        c = case_of(&ways[i],
                    i % 2 ? TOP_K "1|parallel.compress_start=2"
                          : TOP_K "1|parallel.compress_start=0",
                    text);
        struct law_outcome got = law_run(&c);

        assert_true(got.numerics != wanted.numerics);
        wanted.numerics = got.numerics;
        snprintf(what, sizeof what, "top-k of all, way %d", i);
        law_must_equal(what, &wanted, &got);
    }
}

/* Stages of ZeRO, buckets, what is away, pipelines and stops change no bit, errors included. */
static void alike(struct way way, const char *codec)
{
    char text[256];
    struct law_case c = case_of(&way, codec, text);
    struct law_outcome wanted = law_run(&c);

    c.stop_after = 3; /* tied weights have two errors, each on another stage then */
    c.n_ranks_after = 2 * c.n_ranks;
    c.pp_after = 2;
    law_must_run_alike(&c, &wanted);
    c = case_of(&way, codec, text);
    c.zero = 3;
    c.bucket_mb = 64;
    c.n_threads = 2;
    law_must_run_alike(&c, &wanted);
    c.zero = 2;
    c.stop_after = 2;
    c.zero_after = 1 + 3;
    law_must_run_alike(&c, &wanted);
    way.is_away = true;
    c = case_of(&way, codec, text);
    law_must_run_alike(&c, &wanted);
    c.zero = 3;
    c.n_ranks *= 2;
    c.pp = 2;
    c.stop_after = 3;
    c.n_ranks_after = c.n_ranks / 2;
    c.pp_after = 1;
    c.zero_after = 1 + 0;
    law_must_run_alike(&c, &wanted);
}

static const struct way divided = {
    .model = "llama", .dtype = "bf16", .n_ranks = 4, .tp = 1, .cp = 2, .cp_kind = "gather"
};
static const struct way of_experts = {
    .model = "mixture", .dtype = "bf16", .n_ranks = 4, .tp = 1, .tuning = EXPERTS
};
static const struct way halves = {
    .model = "llama", .dtype = "fp16", .n_ranks = 2, .tp = 1, .tuning = SCALES
};

static void ways_are_alike(void **state)
{
    (void)state;
    alike(divided, INT8);
    alike(divided, POWERSGD "2");
    alike(of_experts, POWERSGD "0");
    alike(of_experts, TOP_K "0.1|parallel.compress_start=0");
    alike(halves, INT8);
    alike(halves, POWERSGD "0");
}

/* ---- groups that shard among themselves ---- */

static const struct way four = {
    .model = "llama", .dtype = "bf16", .n_ranks = 4, .tp = 1, .pp = 1, .cp = 1
};

/* Codes are of each rank's own, and the sum over groups is a part of the sum over all. */
static void of_any_groups(const char *codec)
{
    char text[256];
    struct law_case c = case_of(&four, codec, text);
    struct law_outcome wanted = law_run(&c);

    c.zero = 1;
    c.zero_group = 2;
    c.stop_after = 2;
    c.zero_after = 1 + 0;
    c.zero_group_after = 1 + 0;
    law_must_run_alike(&c, &wanted);
    c.zero = 3;
    c.zero_group = 0;
    c.zero_after = 1 + 2;
    c.zero_group_after = 1 + 2;
    law_must_run_alike(&c, &wanted);
}

/* Each group has factors of its own, so that these bits are of groups of so many. */
static void of_two_groups(const char *codec)
{
    char text[256];
    struct law_case c = case_of(&four, codec, text);
    uint64_t numerics = law_run(&c).numerics;

    c.zero = 1;
    c.zero_group = 2;
    struct law_outcome wanted = law_run(&c);
    assert_true(wanted.numerics != numerics);
    c.zero = 3;
    c.n_ranks *= 2;
    c.pp = 2;
    c.stop_after = 3;
    c.n_ranks_after = 4;
    c.pp_after = 1;
    c.zero_after = 1 + 2;
    law_must_run_alike(&c, &wanted);
}

static void groups_are_alike(void **state)
{
    (void)state;
    of_any_groups(INT8);
    of_any_groups(TOP_K "0.1|parallel.compress_start=0");
    of_two_groups(POWERSGD "0");
}

/* ---- fp16 ---- */

#define STILL "optimizer.lr=1e-9|"
#define FIXED STILL "train.loss_scale.growth_every=0|train.loss_scale.initial=4096"
#define GROWING \
    STILL "train.loss_scale.growth_every=1|train.loss_scale.max=16777216|" \
          "train.loss_scale.initial=1024"

/* What was lost under another scale is as much under this one. What fp16 rounds to zero hangs on
 * the scale, so bits do. */
static void errors_have_no_scale(void **state)
{
    static const char *const codecs[] = { NULL, INT8, TOP_K "0.02|parallel.compress_start=0",
                                          POWERSGD "0" };
    struct way way = halves;
    char text[256];

    (void)state;
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        way.tuning = FIXED;
        struct law_case c = case_of(&way, codecs[i], text);
        struct law_outcome wanted = law_run(&c);
        way.tuning = GROWING;
        c = case_of(&way, codecs[i], text);
        struct law_outcome got = law_run(&c);

        for (int step = 0; step < LAW_STEPS; step++)
            if (!(fabs(got.norm[step] / wanted.norm[step] - 1) < 1e-4))
                fail_msg("%s, step %d: norm %g, not %g", codecs[i] ? codecs[i] : "no codec",
                         step + 1, got.norm[step], wanted.norm[step]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_k_of_all),
        cmocka_unit_test(ways_are_alike),
        cmocka_unit_test(groups_are_alike),
        cmocka_unit_test(errors_have_no_scale),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
