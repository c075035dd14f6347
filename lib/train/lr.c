/*
 * lr.c - warm-up and decay
 */
#include "train/lr.h"

#include <inttypes.h>
#include <math.h>

#include "base/num.h"

/* How far the decay has come, 0 at `begin`, 1 at the run's last step. */
static double share_decayed(const struct job *job, int64_t begin, int64_t step)
{
    int64_t length = max_i64(1, job->train.steps - 1 - begin);

    if (step <= begin)
        return 0;
    return fmin(1.0, (double)(step - begin) / (double)length);
}

/* The same of the cycle that the step is in. In whole numbers, so that a cycle begins with 0. */
static double share_of_cycle(const struct job *job, int64_t begin, int64_t step)
{
    int64_t length = max_i64(1, job->train.steps - 1 - begin);
    int64_t cycles = max_i64(1, job->optimizer.cycles);

    if (cycles == 1 || step <= begin || step - begin >= length)
        return share_decayed(job, begin, step);
    return (double)((step - begin) * cycles % length) / (double)length;
}

static double wsd_at(const struct job *job, int64_t step)
{
    double lr = job->optimizer.lr, low = job->optimizer.min_lr;
    int64_t warmup = job->optimizer.warmup_steps, steps = job->train.steps;
    int64_t decay = job->optimizer.decay_steps ? job->optimizer.decay_steps : steps / 5;
    double share = share_decayed(job, max_i64(warmup, steps - 1 - decay), step);

    switch (job->optimizer.decay_shape) {
    case LR_DECAY_COSINE:
        return low + (lr - low) * 0.5 * (1 + cos(M_PI * share));
    case LR_DECAY_SQRT:
        return low + (lr - low) * (1 - sqrt(share));
    case LR_DECAY_LINEAR:
    default:
        return lr + (low - lr) * share;
    }
}

static double inverse_sqrt_at(const struct job *job, int64_t step)
{
    int64_t warmup = job->optimizer.warmup_steps, timescale = job->optimizer.timescale;

    if (timescale == 0)
        timescale = warmup > 0 ? warmup : LR_TIMESCALE;
    return fmax(job->optimizer.min_lr,
                job->optimizer.lr *
                    sqrt((double)timescale / ((double)timescale + (double)(step - warmup))));
}

double lr_at(const struct job *job, int64_t step)
{
    double lr = job->optimizer.lr, low = job->optimizer.min_lr;
    int64_t warmup = job->optimizer.warmup_steps;

    if (step < warmup)
        return lr * (double)(step + 1) / (double)warmup;
    switch (job->optimizer.schedule) {
    case LR_LINEAR:
        return lr + (low - lr) * share_of_cycle(job, warmup, step);
    case LR_COSINE:
        return low + (lr - low) * 0.5 * (1 + cos(M_PI * share_of_cycle(job, warmup, step)));
    case LR_WSD:
        return wsd_at(job, step);
    case LR_INVERSE_SQRT:
        return inverse_sqrt_at(job, step);
    case LR_CONSTANT:
    default:
        return lr;
    }
}

#define PRINTED_STEPS 33
#define BAR_COLUMNS 50

void lr_print(const struct job *job, bool json, struct str *out)
{
    int64_t last = job->train.steps - 1, n = min_i64(job->train.steps, PRINTED_STEPS);

    CHECK(job->train.steps > 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t step = n == 1 ? 0 : i * (last / (n - 1)) + i * (last % (n - 1)) / (n - 1);
        double lr = lr_at(job, step);
        int columns = (int)lround(BAR_COLUMNS * lr / job->optimizer.lr);

        if (json)
            str_printf(out, "%s{\"step\":%" PRId64 ",\"lr\":%.17g}", i ? "," : "[", step + 1, lr);
        else
            str_printf(out, "%12" PRId64 "  %-12.6g %.*s\n", step + 1, lr, columns,
                       "##################################################");
    }
    if (json)
        str_add(out, "]\n");
}
