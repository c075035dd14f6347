/*
 * recipe_test.c - the law (design.md §5) for a moving average of weights and a z-loss of the head
 *
 * Neither has an order of sums of its own: every layout has the bits of one rank with the same
 * numerics.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"
#include "train/trainer.h"

enum { MOST_PARAMETERS = 64 };

#define EMA "train.ema=0.75"
#define Z "train.z_loss=0.01"
#define GROUPS \
    "optimizer.groups=[{match: 'layers.*.down.weight', lr_scale: 3.0}, {match: '*norm*', " \
    "weight_decay: 0.2}, {match: 'embedding.*', lr_scale: 0.5, weight_decay: 0.0}]"

static struct law_case case_of(const char *model, const char *dtype, int n_ranks,
                               const char *tuning)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = n_ranks;
    c.gradient_sum = "early";
    c.tuning = tuning;
    return c;
}

static void zero_stages(const char *model, const char *dtype, int tp, const char *tuning)
{
    struct law_case c = case_of(model, dtype, 2 * tp, tuning);

    c.tp = tp;
    struct law_outcome wanted = law_run(&c);
    for (c.zero = 1; c.zero < 4; c.zero++) {
        c.n_threads = c.zero;
        c.bucket_mb = c.zero == 1 ? 64 : 1;
        c.poison = c.zero == 2;
        c.recompute = c.zero == 3 ? "full" : "none";
        law_must_run_alike(&c, &wanted);
    }
}

static void zero(void **state)
{
    (void)state;
    zero_stages("llama-untied", "bf16", 1, EMA "|" Z);
    zero_stages("gpt2", "fp32", 1, EMA "|" Z);
    zero_stages("llama", "bf16", 1, EMA "|optimizer.states=bf16");
    zero_stages("llama", "bf16", 1,
                EMA "|optimizer.weight_rounding=half_away|optimizer.masters=split");
    zero_stages("mixture", "bf16", 1, EMA "|" Z);
}

static void zero_of_parts(void **state)
{
    (void)state;
    zero_stages("llama", "bf16", 2, EMA "|" Z);
    zero_stages("llama-untied", "fp32", 2, EMA "|" Z);
}

/* Buckets are others with groups than without, and so are shards' edges. */
static void zero_of_groups(void **state)
{
    (void)state;
    zero_stages("llama-untied", "bf16", 1, GROUPS "|" EMA);
    zero_stages("gpt2", "fp32", 1, GROUPS);
    zero_stages("llama", "bf16", 2, GROUPS "|optimizer.states=bf16");
    zero_stages("mixture", "bf16", 1, GROUPS);
    zero_stages("llama", "bf16", 2, GROUPS "|" EMA "|optimizer.name=muon");
}

/* Other states than AdamW's, in shards of buckets of groups. */
static void zero_of_optimizers(void **state)
{
    (void)state;
    zero_stages("llama", "bf16", 1, GROUPS "|" EMA "|optimizer.name=cadam");
    zero_stages("llama", "bf16", 2, GROUPS "|" EMA "|optimizer.name=lion");
    zero_stages("llama-untied", "fp32", 1,
                GROUPS "|" EMA "|optimizer.name=sgd|optimizer.momentum=0.9");
    zero_stages("llama", "bf16", 1, GROUPS "|" EMA "|optimizer.states=int8");
}

static void pipelines(void **state)
{
    static const char *const schedules[] = { "1f1b", "interleaved", "zb-h1" };
    struct law_case c = case_of("llama-deep", "bf16", 2, EMA "|" Z "|" GROUPS);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    c.pp = 2;
    c.n_ranks = 4;
    for (int s = 0; s < 3; s++) {
        c.schedule = schedules[s];
        c.chunks = s == 1 ? 2 : 0;
        c.zero = s + 1;
        law_must_run_alike(&c, &wanted);
    }
}

static void parts_of_sequences(void **state)
{
    struct law_case c = case_of("llama", "bf16", 2, EMA "|" Z);

    (void)state;
    c.cp = 2;
    struct law_outcome wanted = law_run(&c);
    c.zero = 3;
    c.recompute = "selective";
    law_must_run_alike(&c, &wanted);
}

/* In another layout, too. */
static void resumed(void **state)
{
    struct law_case c = case_of("llama", "bf16", 2, EMA "|" Z);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    for (c.stop_after = 1; c.stop_after < LAW_STEPS; c.stop_after++) {
        c.zero = c.stop_after;
        c.zero_after = 1 + (c.stop_after + 1) % 4;
        law_must_run_alike(&c, &wanted);
    }
    c.stop_after = 2;
    c.zero = 3;
    c.zero_after = 1;
    c.n_ranks_after = 4;
    c.pp_after = 2;
    law_must_run_alike(&c, &wanted);
}

/* ---- what they do ---- */

static void averages_change_no_bit_of_training(void **state)
{
    struct law_case c = case_of("llama", "bf16", 1, NULL);
    struct law_outcome without = law_run(&c);

    (void)state;
    c.tuning = EMA;
    struct law_outcome with = law_run(&c);
    for (int step = 0; step < LAW_STEPS; step++) {
        assert_true(with.loss[step] == without.loss[step]);
        assert_true(with.norm[step] == without.norm[step]);
    }
    assert_true(with.parameters == without.parameters);
    assert_true(with.states != without.states);
    assert_true(with.numerics != without.numerics);
}

/* The first loss is of the same weights, and without the z-loss; gradients are others. */
static void z_loss_is_not_in_the_loss(void **state)
{
    struct law_case c = case_of("llama", "bf16", 1, NULL);
    struct law_outcome without = law_run(&c);

    (void)state;
    for (int tp = 1; tp <= 2; tp++) {
        c.n_ranks = c.tp = tp;
        c.tuning = NULL;
        without = law_run(&c);
        c.tuning = Z;
        struct law_outcome with = law_run(&c);
        assert_true(with.loss[0] == without.loss[0]);
        assert_true(with.norm[0] != without.norm[0]);
        assert_true(with.loss[1] != without.loss[1]);
        assert_true(with.numerics != without.numerics);
    }
}

/* Sums over parts of the vocabulary differ in rounding alone. */
static void z_loss_agrees_over_parts(void **state)
{
    struct law_case c = case_of("llama-untied", "fp32", 1, Z);
    struct law_outcome whole = law_run(&c);

    (void)state;
    c.n_ranks = c.tp = 2;
    struct law_outcome parts = law_run(&c);
    for (int step = 0; step < LAW_STEPS; step++) {
        assert_true(fabs(parts.norm[step] - whole.norm[step]) < 1e-4 * whole.norm[step]);
        assert_true(fabs(parts.loss[step] - whole.loss[step]) < 1e-5 * whole.loss[step]);
    }
}

/* Groups that change nothing only cut buckets otherwise. */
static void idle_groups_change_no_bit(void **state)
{
    struct law_case c = case_of("llama", "bf16", 2, NULL);
    struct law_outcome without = law_run(&c);

    (void)state;
    for (c.zero = 0; c.zero < 4; c.zero += 3) {
        c.tuning = "optimizer.groups=[{match: '*qkv*'}, {match: '*', lr_scale: 1.0}]";
        struct law_outcome with = law_run(&c);
        assert_true(with.parameters == without.parameters);
        assert_true(with.states == without.states);
    }
}

static float
    *before[2][MOST_PARAMETERS]; /* the first step's weights of each parameter, and the last's */

static void note_masters(struct trainer *t, const struct mesh_place *place, int step);

/* A learning rate of 0 leaves a parameter as it was, without decay; all others move. */
static void a_rate_of_zero(void **state)
{
    struct law_case c =
        case_of("llama", "fp32", 1, "optimizer.groups=[{match: 'layers.1.*', lr_scale: 0.0}]");

    (void)state;
    c.before_step = note_masters;
    law_run(&c);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < MOST_PARAMETERS; i++) {
            free(before[k][i]);
            before[k][i] = NULL;
        }
}

/* ---- the average by itself ---- */

/* Of each parameter, the average as it follows from the masters seen so far. */
static float *expected[MOST_PARAMETERS];

static float *read_cell(struct trainer *t, int cell, size_t n)
{
    float *x = malloc(n * sizeof *x);
    struct err err;

    assert_non_null(x);
    assert_int_equal(run_get(trainer_run(t), cell, 0, 0, x, n * sizeof *x, &err), 0);
    return x;
}

static void note_masters(struct trainer *t, const struct mesh_place *place, int step)
{
    const struct program *p = trainer_program(t);

    (void)place;
    assert_true(p->n_parameters <= MOST_PARAMETERS);
    for (int i = 0; i < p->n_parameters && (!step || step == LAW_STEPS); i++) {
        const struct parameter *q = &p->parameters[i];
        size_t n = (size_t)(q->rows * q->cols);

        before[step > 0][i] = read_cell(t, q->master, n);
        if (!step)
            continue;
        bool is_same = !memcmp(before[0][i], before[1][i], n * sizeof **before[0]);
        if (is_same != !strncmp(q->name, "layers.1.", 9))
            fail_msg("%s: %s", q->name, is_same ? "did not move" : "moved");
    }
}

/* torch's lerp with 1 - decay, and a copy at first. */
static void follow(struct trainer *t, const struct mesh_place *place, int step)
{
    const struct program *p = trainer_program(t);

    (void)place;
    assert_true(p->n_parameters <= MOST_PARAMETERS);
    for (int i = 0; i < p->n_parameters && step; i++) {
        const struct parameter *q = &p->parameters[i];
        size_t n = (size_t)(q->rows * q->cols);
        float *master = read_cell(t, q->master, n), *average = read_cell(t, q->ema, n);

        for (size_t k = 0; k < n && step > 1; k++)
            master[k] = expected[i][k] + 0.25f * (master[k] - expected[i][k]);
        if (memcmp(master, average, n * sizeof *master) != 0)
            fail_msg("%s: not the average of %d steps", q->name, step);
        free(expected[i]);
        expected[i] = master;
        free(average);
    }
}

static void the_average_is_lerp(void **state)
{
    static const char *const dtypes[] = { "fp32", "bf16" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct law_case c = case_of("llama", dtypes[i], 1, EMA);

        c.before_step = follow;
        law_run(&c);
        for (int k = 0; k < MOST_PARAMETERS; k++) {
            free(expected[k]);
            expected[k] = NULL;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero),
        cmocka_unit_test(zero_of_parts),
        cmocka_unit_test(zero_of_groups),
        cmocka_unit_test(zero_of_optimizers),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(parts_of_sequences),
        cmocka_unit_test(resumed),
        cmocka_unit_test(averages_change_no_bit_of_training),
        cmocka_unit_test(z_loss_is_not_in_the_loss),
        cmocka_unit_test(z_loss_agrees_over_parts),
        cmocka_unit_test(idle_groups_change_no_bit),
        cmocka_unit_test(a_rate_of_zero),
        cmocka_unit_test(the_average_is_lerp),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
