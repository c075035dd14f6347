/*
 * acts.h - the dtypes of activations, for loops over them, and what they round
 */
#ifndef SUPPORT_ACTS_H
#define SUPPORT_ACTS_H

#include <math.h>

#include "base/dtype.h"

enum { N_ACTS = 3 };

static inline enum dtype act_at(int i)
{
    static const enum dtype acts[N_ACTS] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

    return acts[i];
}

/* Dtypes of the residual stream and of activations beside it. */
enum { N_RESIDUALS = 4 };

static inline enum dtype residual_at(int i)
{
    return i < N_ACTS ? DTYPE_F32 : DTYPE_BF16;
}

static inline enum dtype act_beside(int i)
{
    return i < N_ACTS ? act_at(i) : DTYPE_BF16;
}

/*
 * The most that one rounding of a number to a 16-bit dtype changes it: half a step, of fp16's
 * subnormal numbers, too, where that is more. Other dtypes: 0.
 */
static inline double act_rounding(enum dtype act, double value)
{
    if (act == DTYPE_BF16)
        return 0x1p-8 * fabs(value);
    return act == DTYPE_F16 ? fmax(0x1p-11 * fabs(value), 0x1p-25) : 0;
}

/*
 * The tolerance of attention by the dtype of activations, relative to the largest element: where
 * pairs of 16 bits are multiplied, P, dS and the scaled queries are rounded to them.
 */
static inline double attention_tolerance(enum dtype act, double fp32)
{
    return act == DTYPE_BF16 ? 8e-3 : act == DTYPE_F16 ? 1e-3 : fp32;
}

#endif
