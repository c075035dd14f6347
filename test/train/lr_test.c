/*
 * lr_test.c - learning rates at their corners, against closed forms
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

#include "train/lr.h"

#define LR 0.4
#define LOW 0.04

static struct job job_of(enum lr_schedule_kind schedule, int64_t steps, int64_t warmup)
{
    struct job job = { 0 };

    job.train.steps = steps;
    job.optimizer.lr = LR;
    job.optimizer.min_lr = LOW;
    job.optimizer.schedule = schedule;
    job.optimizer.warmup_steps = warmup;
    return job;
}

static void near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-15 + 1e-14 * fabs(wanted)))
        fail_msg("%.17g, not %.17g", got, wanted);
}

static void warmup_is_a_line(void **state)
{
    (void)state;
    for (int schedule = LR_CONSTANT; schedule <= LR_WSD; schedule++) {
        struct job job = job_of((enum lr_schedule_kind)schedule, 110, 10);

        for (int64_t step = 0; step < 10; step++)
            near(lr_at(&job, step), LR * (double)(step + 1) / 10);
        near(lr_at(&job, 10), LR);
    }
}

static void constant(void **state)
{
    struct job job = job_of(LR_CONSTANT, 100, 0);

    (void)state;
    for (int64_t step = 0; step < 100; step++)
        near(lr_at(&job, step), LR);
}

/* 101 steps after 10 of warm-up: the last is step 110, the middle 60. */
static void linear(void **state)
{
    struct job job = job_of(LR_LINEAR, 111, 10);

    (void)state;
    for (int64_t step = 10; step < 111; step++)
        near(lr_at(&job, step), LR + (LOW - LR) * (double)(step - 10) / 100);
    near(lr_at(&job, 60), (LR + LOW) / 2);
    near(lr_at(&job, 110), LOW);
}

static void cosine(void **state)
{
    struct job job = job_of(LR_COSINE, 111, 10);

    (void)state;
    for (int64_t step = 10; step < 111; step++)
        near(lr_at(&job, step),
             LOW + 0.5 * (LR - LOW) * (1 + cos(M_PI * (double)(step - 10) / 100)));
    near(lr_at(&job, 35), LOW + 0.5 * (LR - LOW) * (1 + sqrt(0.5)));
    near(lr_at(&job, 60), (LR + LOW) / 2);
    near(lr_at(&job, 110), LOW);
}

/* Constant until 20 steps before the last; a fifth of the steps if nothing is said. */
static void wsd(void **state)
{
    struct job job = job_of(LR_WSD, 101, 5);

    (void)state;
    job.optimizer.decay_steps = 25;
    for (int64_t step = 5; step <= 75; step++)
        near(lr_at(&job, step), LR);
    for (int64_t step = 76; step < 101; step++)
        near(lr_at(&job, step), LR + (LOW - LR) * (double)(step - 75) / 25);
    near(lr_at(&job, 100), LOW);
    job.optimizer.decay_steps = 0;
    near(lr_at(&job, 80), LR);
    near(lr_at(&job, 90), (LR + LOW) / 2);
    near(lr_at(&job, 100), LOW);
}

/* A decay as long as the run begins after the warm-up. */
static void wsd_decays_after_the_warmup(void **state)
{
    struct job job = job_of(LR_WSD, 31, 10);

    (void)state;
    job.optimizer.decay_steps = 1000;
    near(lr_at(&job, 9), LR);
    near(lr_at(&job, 10), LR);
    near(lr_at(&job, 20), (LR + LOW) / 2);
    near(lr_at(&job, 30), LOW);
}

/* Runs of one step, and those that are all warm-up. */
static void short_runs(void **state)
{
    (void)state;
    for (int schedule = LR_CONSTANT; schedule <= LR_WSD; schedule++) {
        struct job one = job_of((enum lr_schedule_kind)schedule, 1, 0);
        struct job warm = job_of((enum lr_schedule_kind)schedule, 4, 4);

        near(lr_at(&one, 0), LR);
        near(lr_at(&warm, 0), LR / 4);
        near(lr_at(&warm, 3), LR);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_is_a_line),
        cmocka_unit_test(constant),
        cmocka_unit_test(linear),
        cmocka_unit_test(cosine),
        cmocka_unit_test(wsd),
        cmocka_unit_test(wsd_decays_after_the_warmup),
        cmocka_unit_test(short_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
