/*
 * lr.c - warm-up and decay
 */
#include "train/lr.h"

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

double lr_at(const struct job *job, int64_t step)
{
    double lr = job->optimizer.lr, low = job->optimizer.min_lr;
    int64_t warmup = job->optimizer.warmup_steps, steps = job->train.steps;

    if (step < warmup)
        return lr * (double)(step + 1) / (double)warmup;
    switch (job->optimizer.schedule) {
    case LR_LINEAR:
        return lr + (low - lr) * share_decayed(job, warmup, step);
    case LR_COSINE:
        return low + (lr - low) * 0.5 * (1 + cos(M_PI * share_decayed(job, warmup, step)));
    case LR_WSD: {
        int64_t decay = job->optimizer.decay_steps ? job->optimizer.decay_steps : steps / 5;

        return lr + (low - lr) * share_decayed(job, max_i64(warmup, steps - 1 - decay), step);
    }
    case LR_CONSTANT:
    default:
        return lr;
    }
}
