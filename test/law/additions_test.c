/*
 * additions_test.c - the law for what families add: norms of heads, of the embedding and of the
 * head's rows, windows, ALiBi
 *
 * Whatever way the same numerics are computed, all bits are the same (law_test.c has all ways, for
 * LLaMA's and GPT-2's shape).
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "support/law_rig.h"
#include "support/temporary.h"

static char folder[256], dataset[300];

static int make_dataset(void **state)
{
    (void)state;
    if (temporary_folder(folder, sizeof folder))
        return -1;
    snprintf(dataset, sizeof dataset, "%s/tokens", folder);
    law_write_dataset(dataset);
    return 0;
}

static int drop_dataset(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

/* The ways beside the plain one of each dp and tp. */
static const struct way {
    int tp, dp, pp, zero;
    const char *schedule, *recompute, *hold;
    int stop_after;
} ways[] = {
    { 1, 1, 1, 0, "1f1b", "selective", NULL, 0 },
    { 1, 1, 1, 0, "1f1b", "full", NULL, 3 },
    { 1, 1, 1, 0, "1f1b", "[embed, rmsnorm, layernorm, linear, head_norm, rope, attention]", NULL,
      0 },
    { 1, 1, 2, 0, "1f1b", "none", NULL, 2 },
    { 1, 1, 2, 0, "zb-h1", "selective", NULL, 0 },
    { 1, 2, 1, 1, "1f1b", "none", NULL, 0 },
    { 1, 2, 1, 2, "1f1b", "full", NULL, 0 },
    { 1, 2, 1, 3, "1f1b", "none", "pass", 2 },
    { 1, 2, 1, 3, "1f1b", "selective", "op", 0 },
    { 1, 2, 2, 3, "1f1b", "full", "run", 0 },
    { 2, 1, 1, 0, "1f1b", "full", NULL, 0 },
    { 2, 1, 2, 0, "zb-h1", "selective", NULL, 0 },
    { 2, 2, 1, 3, "1f1b", "none", "step", 0 },
};

static struct law_case case_of(const char *model, const struct way *way, const char *sum)
{
    return (struct law_case){ .folder = folder,
                              .dataset = dataset,
                              .model = model,
                              .dtype = "bf16",
                              .n_ranks = way->tp * way->dp * way->pp,
                              .n_threads = 1 + way->zero % 2,
                              .tp = way->tp,
                              .pp = way->pp,
                              .zero = way->zero,
                              .hold = way->hold,
                              .schedule = way->schedule,
                              .recompute = way->recompute,
                              .gradient_sum = sum,
                              .poison = way->pp == 1,
                              .stop_after = way->stop_after };
}

static void must_equal(const char *what, const struct law_outcome *a, const struct law_outcome *b)
{
    if (memcmp(a->loss, b->loss, sizeof a->loss) != 0 ||
        memcmp(a->norm, b->norm, sizeof a->norm) != 0)
        fail_msg("%s: losses or norms differ", what);
    if (a->parameters != b->parameters || a->states != b->states)
        fail_msg("%s: the final parameters or moments differ", what);
    if (a->numerics != b->numerics)
        fail_msg("%s: the numerics differ", what);
}

static void all_ways(const char *model, const char *sum)
{
    struct law_outcome wanted[3][3];
    int known[3][3] = { { 0 } };
    char what[160];

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const struct way *w = &ways[i];
        struct way plain = { w->tp, w->dp, 1, 0, "1f1b", "none", NULL, 0 };
        struct law_case c = case_of(model, &plain, sum);

        if (law_left_out())
            continue;
        if (!known[w->tp][w->dp])
            wanted[w->tp][w->dp] = law_run(&c);
        known[w->tp][w->dp] = 1;
        c = case_of(model, w, sum);
        struct law_outcome got = law_run(&c);
        snprintf(what, sizeof what, "%s %s, tp %d, dp %d, pp %d %s, zero %d %s, recompute %s",
                 model, sum, w->tp, w->dp, w->pp, w->schedule, w->zero, w->hold ? w->hold : "",
                 w->recompute);
        must_equal(what, &wanted[w->tp][w->dp], &got);
    }
}

static void normed(void **state)
{
    (void)state;
    all_ways("normed", "early");
}

static void alibi(void **state)
{
    (void)state;
    all_ways("alibi", "late");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(normed), cmocka_unit_test(alibi) };

    return cmocka_run_group_tests(tests, make_dataset, drop_dataset);
}
