/*
 * optimizer.c - facts of the update
 */
#include <math.h>

#include "support/ops/op_family.h"

static void sumsq(const struct op_shape *op)
{
    start(&op->out[SUMSQ_SUMS]);
    for (int64_t i = 0; i < tensor_elements(&op->in[SUMSQ_X]); i++)
        OUT(SUMSQ_SUMS, 0, i / OPS_NORM_BLOCK) += IN(SUMSQ_X, 0, i) * IN(SUMSQ_X, 0, i);
}

static void sum_runs(const struct op_shape *op)
{
    start(&op->out[SUM_RUNS_Y]);
    for (int64_t k = 0; k < op->out[SUM_RUNS_Y].cols; k++)
        for (int64_t i = k ? int_at(&op->in[SUM_RUNS_ENDS], k - 1) : 0;
             i < int_at(&op->in[SUM_RUNS_ENDS], k); i++)
            OUT(SUM_RUNS_Y, 0, k) +=
                IN(SUM_RUNS_X, 0,
                   tensor_given(&op->in[SUM_RUNS_ORDER]) ? int_at(&op->in[SUM_RUNS_ORDER], i) : i);
}

static void gradient_norm(const struct op_shape *op)
{
    double sum = 0, clip = op->attributes.clip;

    if (tensor_given(&op->in[GRADIENT_NORM_ORDER]))
        for (int64_t i = 0; i < op->in[GRADIENT_NORM_ORDER].cols; i++)
            sum += IN(GRADIENT_NORM_SUMS, 0, int_at(&op->in[GRADIENT_NORM_ORDER], i));
    else
        for (int64_t i = 0; i < op->in[GRADIENT_NORM_SUMS].cols; i++)
            sum += IN(GRADIENT_NORM_SUMS, 0, i);
    double scale = tensor_given(&op->in[GRADIENT_NORM_SCALE]) ? IN(GRADIENT_NORM_SCALE, 0, 0) : 1;
    sum = sqrt(sum) / scale;
    OUT(GRADIENT_NORM_NORM, 0, 0) = sum;
    OUT(GRADIENT_NORM_CLIP_FACTOR, 0, 0) = (clip > 0 && sum > clip ? clip / sum : 1) / scale;
    *(int32_t *)op->out[GRADIENT_NORM_SKIP_UPDATE].data = !isfinite(sum);
}

static void adamw(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    double lr = IN(OPTIMIZER_SCALARS, 0, SCALAR_LR), bias1 = IN(OPTIMIZER_SCALARS, 0, SCALAR_BIAS1),
           bias2 = IN(OPTIMIZER_SCALARS, 0, SCALAR_BIAS2);

    if (int_at(&op->in[OPTIMIZER_SKIP_UPDATE], 0))
        return;
    for (int64_t i = 0; i < tensor_elements(&op->in[OPTIMIZER_GRADIENT]); i++) {
        double g = IN(OPTIMIZER_GRADIENT, 0, i) * IN(OPTIMIZER_CLIP_FACTOR, 0, 0),
               *p = at(&op->in[OPTIMIZER_MASTER], 0, i);
        double *m = at(&op->in[OPTIMIZER_M], 0, i), *v = at(&op->in[OPTIMIZER_V], 0, i);
        double decay = tensor_given(&op->in[OPTIMIZER_DECAY])
                           ? IN(OPTIMIZER_DECAY, 0, i / OPS_NORM_BLOCK)
                           : a->weight_decay;

        *m = a->beta1 * *m + (1 - a->beta1) * g;
        *v = a->beta2 * *v + (1 - a->beta2) * g * g;
        *p -= lr * (*m / bias1 / (sqrt(*v / bias2) + a->eps) + decay * *p);
        if (tensor_given(&op->out[OPTIMIZER_WEIGHT]))
            OUT(OPTIMIZER_WEIGHT, 0, i) = *p;
    }
}

/* The others, on states without codes; what has a scale is read and written by it. */
static void by_sign_or_momentum(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    double lr = IN(OPTIMIZER_SCALARS, 0, SCALAR_LR);

    if (int_at(&op->in[OPTIMIZER_SKIP_UPDATE], 0))
        return;
    for (int64_t i = 0; i < tensor_elements(&op->in[OPTIMIZER_GRADIENT]); i++) {
        double g = IN(OPTIMIZER_GRADIENT, 0, i) * IN(OPTIMIZER_CLIP_FACTOR, 0, 0);
        double *p = at(&op->in[OPTIMIZER_MASTER], 0, i), *m = at(&op->in[OPTIMIZER_M], 0, i), u;
        double decay = tensor_given(&op->in[OPTIMIZER_DECAY])
                           ? IN(OPTIMIZER_DECAY, 0, i / OPS_NORM_BLOCK)
                           : a->weight_decay;

        if (op->kind == OP_SGD) {
            g += decay * *p;
            *m = a->beta1 * *m + g;
            *p -= lr * (a->nesterov ? g + a->beta1 * *m : *m);
        } else {
            u = a->beta1 * *m + (1 - a->beta1) * g;
            *m = op->kind == OP_LION ? a->beta2 * *m + (1 - a->beta2) * g : u;
            *p -= lr * ((u > 0) - (u < 0) + decay * *p);
        }
        if (tensor_given(&op->out[OPTIMIZER_WEIGHT]))
            OUT(OPTIMIZER_WEIGHT, 0, i) = *p;
    }
}

const struct op_facts optimizer_facts[N_OP_KINDS] = {
    [OP_SUM_RUNS] = {
        .example = "sum_runs 1x*7 fp64, 1x5 i32, 1x*6 i32 : 1x5 fp64",
        .spreads = "sss > s; css > c; pss > p",
        .reference = sum_runs,
    },
    [OP_SUMSQ] = {
        .example = "sumsq *200x*50 fp32 : 1x3 fp64",
        .spreads = "s > s; r > c; c > c",
        .reference = sumsq,
    },
    [OP_GRADIENT_NORM] = {
        .example = "gradient_norm 1x*7 fp64, 1x*5 i32, 1x1 fp32 : 1x1 fp64, 1x1 fp32, "
                   "1x1 i32",
        .spreads = "sss > sss",
        .reference = gradient_norm,
    },
    [OP_ADAMW] = {
        .example = "adamw 20x8 fp32, 1x4 fp32, 1x1 fp32, 1x1 i32, 20x8 fp32, 20x8 fp32, "
                   "20x8 fp32, 1x1 fp64, 1x1 fp64, 1x1 i32, -, -, - : 20x8 bf16",
        .spreads = "sssssssssssss > s; rsssrrrrrssss > r; cssscccccssss > c; rsssrrrrrcsss > r; "
                   "csssccccccsss > c",
        .reference = adamw,
    },
    [OP_LION] = {
        .example = "lion 20x8 fp32, 1x4 fp32, 1x1 fp32, 1x1 i32, 20x8 fp32, 20x8 fp32, -, "
                   "1x1 fp64, 1x1 fp64, 1x1 i32, -, -, - : 20x8 bf16",
        .spreads = "sssssssssssss > s; rsssrrsrrssss > r; csssccsccssss > c; rsssrrsrrcsss > r; "
                   "csssccscccsss > c",
        .reference = by_sign_or_momentum,
    },
    [OP_SGD] = {
        .example = "sgd 20x8 fp32, 1x4 fp32, 1x1 fp32, 1x1 i32, 20x8 fp32, 20x8 fp32, -, "
                   "1x1 fp64, 1x1 fp64, 1x1 i32, -, -, - : 20x8 bf16",
        .spreads = "sssssssssssss > s; rsssrrsrrssss > r; csssccsccssss > c; rsssrrsrrcsss > r; "
                   "csssccscccsss > c",
        .reference = by_sign_or_momentum,
    },
    [OP_CADAM] = {
        .example = "cadam 20x8 fp32, 1x4 fp32, 1x1 fp32, 1x1 i32, 20x8 fp32, 20x8 fp16, -, "
                   "1x1 fp64, 1x1 fp64, 1x1 i32, -, 1x1 fp32, - : 20x8 bf16",
        .spreads = "sssssssssssss > s; rsssrrsrrssrs > r; csssccsccsscs > c; rsssrrsrrcsrs > r; "
                   "csssccscccscs > c",
        .reference = by_sign_or_momentum,
    },
};
