/*
 * softmax_impl.h - a row of logits: its maximum, the sum of its exponentials, and its gradient
 *
 * Numerics: a sum is made of fp32 sums in LOGIT_LANES lanes over LOGIT_BLOCK elements, which are
 * added in fp64 in order, so its bits depend on the row's length alone. A NaN in a row need not be
 * its maximum, but always reaches its sum.
 */
#ifndef KERNELS_CPU_SOFTMAX_IMPL_H
#define KERNELS_CPU_SOFTMAX_IMPL_H

#include "kernels/cpu/cpu_impl.h"
#include "kernels/cpu/vec_math.h"

#define LOGIT_LANES 16
#define LOGIT_BLOCK 1024
#define LOGIT_ROWS_A_TILE 2

/* n >= 1 */
CPU_INLINE float logit_max(const float *row, int64_t n)
{
    float lanes[LOGIT_LANES];
    float max = row[0];
    int64_t i = 0;

    for (int j = 0; j < LOGIT_LANES; j++)
        lanes[j] = row[0];
    for (; i + LOGIT_LANES <= n; i += LOGIT_LANES)
        for (int j = 0; j < LOGIT_LANES; j++)
            lanes[j] = row[i + j] > lanes[j] ? row[i + j] : lanes[j];
    for (; i < n; i++)
        max = row[i] > max ? row[i] : max;
    for (int j = 0; j < LOGIT_LANES; j++)
        max = lanes[j] > max ? lanes[j] : max;
    return max;
}

/* Sum of e^(row - max) over one block, which go to `exps` too unless that is NULL; it may be row.
 */
CPU_INLINE double logit_exp_block(const float *row, float *exps, int64_t n, float max)
{
    float lanes[LOGIT_LANES] = { 0 };
    double sum = 0;
    int64_t i = 0;

    for (; i + LOGIT_LANES <= n; i += LOGIT_LANES)
        for (int j = 0; j < LOGIT_LANES; j++) {
            float e = vec_exp(row[i + j] - max);

            if (exps)
                exps[i + j] = e;
            lanes[j] += e;
        }
    for (int j = 0; i < n; i++, j++) {
        float e = vec_exp(row[i] - max);

        if (exps)
            exps[i] = e;
        lanes[j] += e;
    }
    for (int j = 0; j < LOGIT_LANES; j++)
        sum += (double)lanes[j];
    return sum;
}

CPU_INLINE double logit_exp_sum(const float *row, float *exps, int64_t n, float max)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i += LOGIT_BLOCK)
        sum += logit_exp_block(row + i, exps ? exps + i : NULL,
                               n - i < LOGIT_BLOCK ? n - i : LOGIT_BLOCK, max);
    return sum;
}

/* -log softmax of the target's logit. */
static inline double logit_nll(float logit, float max, double log_sum)
{
    return log_sum - ((double)logit - (double)max);
}

/*
 * What the gradient of the loss and of z lse^2 (2 z lse times the probabilities) multiplies the
 * probabilities by. Without z exactly 1, whatever lse is.
 */
static inline double logit_pull(double z, double lse)
{
    return z > 0 ? 1.0 + 2.0 * z * lse : 1.0;
}

/* Gradient in the target's logit; e: e^(logit - max). All others' is e * logit_factor. */
static inline float logit_gradient_at_target(float e, double sum, double pull, float scale)
{
    return (float)(((double)e / sum * pull - 1.0) * (double)scale);
}

static inline float logit_factor(double sum, double pull, float scale)
{
    return (float)((double)scale * pull / sum);
}

/* *to += the sum of n rows', in order: one add, to 0 where `first` is set. */
static inline void logit_add_rows(const struct tensor *to, const double *rows, int64_t n, int first)
{
    double *total = to->data, sum = 0;

    for (int64_t row = 0; row < n; row++)
        sum += rows[row];
    *total = (first ? 0.0 : *total) + sum;
}

#endif
