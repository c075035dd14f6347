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
    for (int schedule = LR_CONSTANT; schedule <= LR_INVERSE_SQRT; schedule++) {
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

/* 1-sqrt falls steeply at first, a cosine slowly; all begin with lr and end with min_lr. */
static void wsd_shapes(void **state)
{
    struct job job = job_of(LR_WSD, 101, 5);

    (void)state;
    job.optimizer.decay_steps = 25;
    for (int shape = LR_DECAY_LINEAR; shape <= LR_DECAY_SQRT; shape++) {
        job.optimizer.decay_shape = (enum lr_decay_shape)shape;
        for (int64_t step = 5; step <= 75; step++)
            near(lr_at(&job, step), LR);
        near(lr_at(&job, 100), LOW);
        for (int64_t step = 76; step < 100; step++) {
            double share = (double)(step - 75) / 25;
            const double left[] = { 1 - share, 0.5 + 0.5 * cos(M_PI * share), 1 - sqrt(share) };

            near(lr_at(&job, step), LOW + (LR - LOW) * left[shape]);
        }
    }
    /* A fourth of the way. */
    job = job_of(LR_WSD, 41, 0);
    job.optimizer.decay_steps = 40;
    job.optimizer.decay_shape = LR_DECAY_SQRT;
    near(lr_at(&job, 10), (LR + LOW) / 2);
}

/* Three cycles of 40 steps each: every one begins with lr, and only the last ends with min_lr. */
static void cycles(void **state)
{
    struct job line = job_of(LR_LINEAR, 131, 10), wave = job_of(LR_COSINE, 131, 10);

    (void)state;
    line.optimizer.cycles = wave.optimizer.cycles = 3;
    for (int64_t step = 10; step < 130; step++) {
        double share = (double)((step - 10) % 40) / 40;

        near(lr_at(&line, step), LR + (LOW - LR) * share);
        near(lr_at(&wave, step), LOW + 0.5 * (LR - LOW) * (1 + cos(M_PI * share)));
    }
    near(lr_at(&wave, 49), LOW + 0.5 * (LR - LOW) * (1 + cos(M_PI * 39 / 40)));
    near(lr_at(&wave, 50), LR);
    near(lr_at(&wave, 90), LR);
    near(lr_at(&line, 130), LOW);
    near(lr_at(&wave, 130), LOW);
}

/* A share of seven cycles in doubles would be just below 1 where some of them begin. */
static void cycles_begin_with_lr(void **state)
{
    (void)state;
    for (int n = 2; n <= 50; n++) {
        struct job job = job_of(LR_COSINE, 7 * n + 1, 0);

        job.optimizer.cycles = n;
        for (int cycle = 0; cycle < n; cycle++)
            near(lr_at(&job, 7 * cycle), LR);
    }
}

/* Half of lr at three timescales after warm-up; min_lr bounds it. */
static void inverse_sqrt(void **state)
{
    struct job job = job_of(LR_INVERSE_SQRT, 100000, 10);

    (void)state;
    job.optimizer.min_lr = 0;
    for (int64_t step = 10; step < 1000; step++)
        near(lr_at(&job, step), LR * sqrt(10.0 / (double)step));
    near(lr_at(&job, 40), LR / 2);
    job.optimizer.timescale = 50;
    near(lr_at(&job, 160), LR / 2);
    job.optimizer.timescale = 0;
    job.optimizer.warmup_steps = 0;
    near(lr_at(&job, 30000), LR / 2);
    job.optimizer.min_lr = LR / 4;
    near(lr_at(&job, 99999), LR * sqrt(10000.0 / 109999.0));
    job.optimizer.timescale = 100;
    near(lr_at(&job, 1499), LR * sqrt(100.0 / 1599.0));
    near(lr_at(&job, 1501), LR / 4);
}

/* Runs of one step, and those that are all warm-up. */
static void short_runs(void **state)
{
    (void)state;
    for (int schedule = LR_CONSTANT; schedule <= LR_INVERSE_SQRT; schedule++) {
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
        cmocka_unit_test(wsd_shapes),
        cmocka_unit_test(cycles),
        cmocka_unit_test(cycles_begin_with_lr),
        cmocka_unit_test(inverse_sqrt),
        cmocka_unit_test(short_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
