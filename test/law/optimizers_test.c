/*
 * optimizers_test.c - the optimizers under the law (design.md §5): layouts, stops, states that are
 * away, and rechecks change no bit of them; another optimizer is no resume
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"

enum { N_STAGES_MAX = 2 };

static const char *const optimizers[] = {
    "optimizer.name=lion",
    "optimizer.name=lion|optimizer.states=bf16",
    "optimizer.name=lion|optimizer.states=int8",
    "optimizer.name=sgd|optimizer.nesterov=true",
    "optimizer.name=cadam",
    "optimizer.name=cadam|optimizer.weight_rounding=half_away|optimizer.masters=split",
    "optimizer.states=int8",
};
enum { N_OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

static struct law_case base_case(int optimizer, const char *model, int n_ranks)
{
    struct law_case c = law_base(model, "bf16");

    c.n_ranks = n_ranks;
    c.tuning = optimizers[optimizer];
    return c;
}

/* Each learns, and each otherwise than the others. */
static void each_is_another(void **state)
{
    struct law_outcome of[N_OPTIMIZERS];

    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        struct law_case c = base_case(i, "llama", 1);

        of[i] = law_run(&c);
        assert_true(isfinite(of[i].loss[LAW_STEPS - 1]));
        assert_true(of[i].loss[LAW_STEPS - 1] != of[i].loss[0]);
        for (int k = 0; k < i; k++) {
            assert_true(of[i].numerics != of[k].numerics);
            assert_true(of[i].states != of[k].states);
            assert_true(of[i].loss[0] == of[k].loss[0]);
        }
    }
}

static void zero_stages(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        struct law_case c = base_case(i, "llama-untied", 2);
        struct law_outcome wanted = law_run(&c);

        for (c.zero = 1; c.zero < 4; c.zero++) {
            c.n_threads = c.zero;
            c.bucket_mb = c.zero == 1 ? 64 : 1;
            law_must_run_alike(&c, &wanted);
        }
    }
}

static void parts(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        struct law_case c = base_case(i, "llama", 4);

        c.tp = 2;
        struct law_outcome wanted = law_run(&c);
        c.zero = 1 + i % 3;
        law_must_run_alike(&c, &wanted);
    }
}

static void pipelines_and_experts(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        struct law_case c = base_case(i, i % 2 ? "mixture" : "llama-deep", 1);
        struct law_outcome wanted = law_run(&c);

        c.pp = c.n_ranks = 2;
        c.schedule = i % 2 ? "1f1b" : "zb-h1";
        c.recompute = "full";
        law_must_run_alike(&c, &wanted);
    }
}

/* Codes and scales are in the checkpoint: also into another stage of ZeRO, and to shards on more
 * ranks. */
static void resumed(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        struct law_case c = base_case(i, "llama", 2);
        struct law_outcome wanted = law_run(&c);

        c.stop_after = 1 + i % 3;
        c.zero = i % 2;
        c.zero_after = i % 2 ? 1 : 4;
        law_must_run_alike(&c, &wanted);
        c.zero = c.zero_after = 0;
        c.n_ranks_after = 4;
        c.pp_after = 2;
        law_must_run_alike(&c, &wanted);
    }
}

static void resumed_in_parts(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        struct law_case c = base_case(i, "llama", 2);

        c.tp = 2;
        struct law_outcome wanted = law_run(&c);
        c.stop_after = 2;
        law_must_run_alike(&c, &wanted);
    }
}

/* The update on the host, or through the device's memory piece by piece. */
static void away(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++)
        for (int on_host = 0; on_host < 2; on_host++) {
            struct rank_offload ranks[N_STAGES_MAX];
            struct law_case c = base_case(i, "llama", 2);
            struct law_outcome wanted = law_run(&c);

            for (int r = 0; r < N_STAGES_MAX; r++) {
                ranks[r] = (struct rank_offload){ .updates_on_host = on_host };
                ranks[r].piece_bytes = 2 * OPS_NORM_BLOCK * sizeof(float);
                ranks[r].cells[AWAY_STATES].bytes = SIZE_MAX;
            }
            c.offload = ranks;
            c.poison = 1;
            c.zero = on_host == i % 2;
            law_must_run_alike(&c, &wanted);
        }
}

/* Pieces of shards are computed once more by other ranks, with the same bits. */
static void rechecked(void **state)
{
    char tuning[160];

    (void)state;
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        struct law_case c = base_case(i, "llama", 2);
        struct law_outcome wanted = law_run(&c);

        snprintf(tuning, sizeof tuning, "%s|train.recheck_every=1", optimizers[i]);
        c.tuning = tuning;
        c.zero = 1 + i % 3;
        law_must_run_alike(&c, &wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_another),
        cmocka_unit_test(zero_stages),
        cmocka_unit_test(parts),
        cmocka_unit_test(pipelines_and_experts),
        cmocka_unit_test(resumed),
        cmocka_unit_test(resumed_in_parts),
        cmocka_unit_test(away),
        cmocka_unit_test(rechecked),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
