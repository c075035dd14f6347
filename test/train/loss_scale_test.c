/*
 * loss_scale_test.c - training in fp16: the scale falls, grows, is saved; losses are those of fp32
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/trained.h"

#define STEPS 20

static struct trained rig;

static int teardown(void **state)
{
    (void)state;
    trained_close(&rig);
    return 0;
}

static struct trainer_result step(void)
{
    struct trainer_result result = { 0 };
    struct err err;

    if (trainer_step(rig.trainer, &result, &err) < 0)
        fail_msg("%s", err.text);
    return result;
}

/* The bits of all weights, chained. */
static uint64_t weights(void)
{
    const struct program *program = trainer_program(rig.trainer);
    uint64_t hash = 0;

    for (int i = 0; i < program->n_parameters; i++) {
        int cell = program->parameters[i].weight;
        const struct value *v = &program->values[cell];
        const unsigned char *bytes = run_data(trainer_run(rig.trainer), cell, 0);
        size_t n = (size_t)(v->rows * v->cols) * dtype_bytes(v->dtype);

        for (size_t k = 0; k < n; k++)
            hash = (hash ^ bytes[k]) * 0x100000001b3u;
    }
    return hash;
}

/* ---- against fp32 ---- */

/*
 * At first a loss errs by no more than one rounding to fp16 would: errors of single numbers, as
 * large each, average out over the sums that it is made of; the norm, a sum of squares of what errs
 * by some roundings, by a few. From then on weights drift apart with each update, and losses do.
 */
static void same_losses(const char *model, const char *model_override)
{
    double losses[STEPS], norms[STEPS];

    trained_open(&rig, model, (const char *const[]){ "train.dtype=fp32", model_override, NULL });
    for (int i = 0; i < STEPS; i++) {
        struct trainer_result r = step();

        losses[i] = r.loss;
        norms[i] = r.grad_norm;
        assert_true(r.loss_scale == 0);
    }
    trained_again(&rig, model, (const char *const[]){ "train.dtype=fp16", model_override, NULL });
    for (int i = 0; i < STEPS; i++) {
        struct trainer_result r = step();

        assert_false(r.skipped);
        assert_true(r.loss_scale == 65536);
        if (!(fabs(r.loss - losses[i]) <= (i + 1) * 0x1p-11 * losses[i]))
            fail_msg("step %d: loss %.9g, in fp32 %.9g", i + 1, r.loss, losses[i]);
        if (i == 0 && !(fabs(r.grad_norm - norms[i]) <= 0x1p-9 * norms[i]))
            fail_msg("step %d: norm %.9g, in fp32 %.9g", i + 1, r.grad_norm, norms[i]);
    }
    assert_true(losses[STEPS - 1] != losses[0]);
}

static void llama(void **state)
{
    (void)state;
    same_losses("llama", NULL);
}

static void gpt2(void **state)
{
    (void)state;
    same_losses("gpt2", NULL);
}

/* The balance's gradient, which is in no loss, is scaled as all others are: seen in the norm. */
static void experts(void **state)
{
    (void)state;
    same_losses("llama", "model={vocab_size: 64, hidden_size: 48, n_layers: 2, n_heads: 4, "
                         "n_kv_heads: 2, head_dim: 12, ffn_size: 72, n_experts: 4, "
                         "n_active_experts: 2, expert_ffn_size: 24, router_balance: 4.0}");
}

/* ---- the scale ---- */

/* Nothing is updated while gradients overflow, and it learns once they do not. */
static void overflow_recovers(void **state)
{
    struct trainer_result r;
    double scale = 0x1p30;
    int n = 0;

    (void)state;
    trained_open(&rig, "llama",
                 (const char *const[]){ "train.dtype=fp16", "train.steps=60",
                                        "train.loss_scale.initial=1073741824",
                                        "train.loss_scale.max=1073741824", NULL });
    uint64_t first = weights();
    for (r = step(); r.skipped; r = step(), n++) {
        assert_true(r.loss_scale == scale);
        assert_true(r.scale_fell);
        assert_true(isfinite(r.loss));
        assert_true(!isfinite(r.grad_norm));
        assert_true(weights() == first);
        scale /= 2;
        assert_true(n < 30);
    }
    assert_true(n >= 3);
    assert_int_equal(trainer_n_skipped(rig.trainer), n);
    assert_true(r.loss_scale == scale);
    assert_false(weights() == first);
    assert_false(r.scale_fell);
    for (int i = 0; i < 10; i++)
        assert_false(step().skipped);
}

static void it_grows_when_all_is_well(void **state)
{
    static const double wanted[] = { 256, 256, 256, 512, 512, 512, 1024, 1024, 1024, 1024 };

    (void)state;
    trained_open(&rig, "llama",
                 (const char *const[]){ "train.dtype=fp16", "train.loss_scale.initial=256",
                                        "train.loss_scale.growth_every=3",
                                        "train.loss_scale.max=1024", NULL });
    for (int i = 0; i < 10; i++)
        assert_true(step().loss_scale == wanted[i]);
    trained_again(&rig, "llama",
                  (const char *const[]){ "train.dtype=fp16", "train.loss_scale.initial=256",
                                         "train.loss_scale.growth_every=0", NULL });
    for (int i = 0; i < 5; i++)
        assert_true(step().loss_scale == 256);
}

/* Where a lower scale mends nothing, or is not allowed, the skip is one as in other dtypes. */
static void what_it_cannot_mend(void **state)
{
    (void)state;
    trained_open(&rig, "llama",
                 (const char *const[]){ "train.dtype=fp16", "train.loss_scale.initial=1073741824",
                                        "train.loss_scale.min=1073741824",
                                        "train.loss_scale.max=1073741824", NULL });
    struct trainer_result r = step();
    assert_true(r.skipped);
    assert_false(r.scale_fell);
    assert_true(step().loss_scale == 0x1p30);

    trained_again(&rig, "llama", (const char *const[]){ "train.dtype=fp16", NULL });
    const struct program *program = trainer_program(rig.trainer);
    int cell = program->parameters[program->n_parameters - 1].weight;
    *(float *)run_data(trainer_run(rig.trainer), cell, 0) = NAN;
    r = step();
    assert_true(r.skipped);
    assert_false(r.scale_fell);
    assert_true(step().loss_scale == 32768);
}

/* Stopped between two changes: scale, count and all that follows go on. */
static void it_is_saved(void **state)
{
    const char *const overrides[] = { "train.dtype=fp16", "train.loss_scale.initial=16384",
                                      "train.loss_scale.growth_every=5", NULL };
    struct numerics_differences notes = { 0 };
    struct err err;

    (void)state;
    trained_open(&rig, "llama", overrides);
    trained_steps(&rig, 8);
    const char *path = trained_save(&rig, "step-00000008");
    double scales[6], losses[6];
    for (int i = 0; i < 6; i++) {
        struct trainer_result r = step();

        scales[i] = r.loss_scale;
        losses[i] = r.loss;
    }
    assert_true(scales[0] == 32768 && scales[1] == 32768 && scales[2] == 65536);
    uint64_t wanted = weights();
    trained_again(&rig, "llama", overrides);
    assert_int_equal(trainer_restore(rig.trainer, path, &notes, &err), 0);
    for (int i = 0; i < 6; i++) {
        struct trainer_result r = step();

        assert_true(r.loss_scale == scales[i]);
        assert_true(r.loss == losses[i]);
    }
    assert_true(weights() == wanted);
    /* Within what the job says now; of another dtype, as it begins. */
    trained_again(&rig, "llama",
                  (const char *const[]){ "train.dtype=fp16", "train.loss_scale.initial=1024",
                                         "train.loss_scale.max=2048", NULL });
    assert_int_equal(trainer_restore(rig.trainer, path, &notes, &err), 0);
    assert_true(step().loss_scale == 2048);
    rig.accept_numerics = 1;
    trained_again(&rig, "llama", (const char *const[]){ "train.dtype=bf16", NULL });
    assert_int_equal(trainer_restore(rig.trainer, path, &notes, &err), 0);
    assert_true(step().loss_scale == 0);
    numerics_differences_release(&notes);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_teardown(function, teardown)
    const struct CMUnitTest tests[] = {
        TEST(llama),
        TEST(gpt2),
        TEST(experts),
        TEST(overflow_recovers),
        TEST(it_grows_when_all_is_well),
        TEST(what_it_cannot_mend),
        TEST(it_is_saved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
