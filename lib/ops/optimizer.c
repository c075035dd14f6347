/*
 * optimizer.c - the gradient norm and AdamW
 */
#include <string.h>

#include "ops/family_impl.h"

static const struct op_info sum_runs = {
    .name = "sum_runs",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 3,
    .inputs = {
        [SUM_RUNS_X] = { "x", DIM_ONE, DIM_FREE, TYPE_F64, OPERAND_PLAIN },
        [SUM_RUNS_ENDS] = { "ends", DIM_ONE, DIM_N, TYPE_I32, OPERAND_PLAIN },
        [SUM_RUNS_ORDER] = { "order", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [SUM_RUNS_Y] = { "y", DIM_ONE, DIM_N, TYPE_F64, OPERAND_PLAIN },
    },
    .spread_form = { .data = IN(SUM_RUNS_X), .allowed = MAY_COLS | MAY_PARTIAL }, /* by tables alike */
    .flops_per_element = 1,
};

/* Sums of blocks follow the shard, whose edges lie on blocks' edges. */
static int sumsq_spread(const struct spread_query *q)
{
    enum spread x = q->in[SUMSQ_X];

    if (x == SPREAD_PARTIAL)
        return spread_refuse(q, SUMSQ_X, MAY_ROWS | MAY_COLS);
    spread_give_all(q, x == SPREAD_SAME ? SPREAD_SAME : SPREAD_COLS);
    return 0;
}

static const struct op_info sumsq = {
    .name = "sumsq",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 1,
    .inputs = {
        [SUMSQ_X] = { "x", DIM_R, DIM_D, TYPE_KEPT, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [SUMSQ_SUMS] = { "sums", DIM_ONE, DIM_BLOCKS, TYPE_F64, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_BLOCKS,
    .spread = sumsq_spread,
    .flops_per_element = 2,
};

static const struct op_info gradient_norm = {
    .name = "gradient_norm",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 3,
    .inputs = {
        [GRADIENT_NORM_SUMS] = { "sums", DIM_ONE, DIM_N, TYPE_F64, OPERAND_PLAIN },
        [GRADIENT_NORM_ORDER] = { "order", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_OPTIONAL },
        [GRADIENT_NORM_SCALE] = { "scale", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_OPTIONAL },
    },
    .n_outputs = 3,
    .outputs = {
        [GRADIENT_NORM_NORM] = { "norm", DIM_ONE, DIM_ONE, TYPE_F64, OPERAND_PLAIN },
        [GRADIENT_NORM_CLIP_FACTOR] = { "clip_factor", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [GRADIENT_NORM_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
    },
    .spread_form = { .data = IN(GRADIENT_NORM_SUMS) },
    .flops_per_element = 1, /* a bound where the order leaves padding out */
};

static int adamw_check_attributes(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (!(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1))
        return err_set(err, ERR_FAILED, "%s: betas are %g and %g, wanted 0 <= beta < 1",
                       op_name(op->kind), a->beta1, a->beta2);
    return 0;
}

/* An fp32 master in two operands, of which the upper is the weight. */
static int check_halves(const struct op_shape *op, struct err *err)
{
    enum dtype master = op->in[OPTIMIZER_MASTER].dtype;
    enum dtype m = op->in[OPTIMIZER_M].dtype, v = op->in[OPTIMIZER_V].dtype;

    if (master != DTYPE_BF16 || m != DTYPE_F32 || v != DTYPE_F32)
        return err_set(err, ERR_FAILED,
                       "adamw: master, m and v are %s, %s and %s beside low, wanted bf16, fp32 and "
                       "fp32",
                       dtype_name(master), dtype_name(m), dtype_name(v));
    if (tensor_given(&op->out[OPTIMIZER_WEIGHT]))
        return err_set(err, ERR_FAILED, "adamw: weight and low are given, wanted one of them");
    return 0;
}

/* Moments alike; where even the master is bf16 all are, and it is the weight. */
static int adamw_check(const struct op_shape *op, struct err *err)
{
    enum dtype master = op->in[OPTIMIZER_MASTER].dtype;
    enum dtype m = op->in[OPTIMIZER_M].dtype, v = op->in[OPTIMIZER_V].dtype;

    if (tensor_given(&op->in[OPTIMIZER_LOW]))
        return check_halves(op, err);
    if (op->attributes.half_away && m != DTYPE_F32)
        return err_set(err, ERR_FAILED, "adamw: half_away beside m of %s, wanted fp32",
                       dtype_name(m));
    if (m != v || (master != DTYPE_F32 && master != m))
        return err_set(err, ERR_FAILED, "adamw: master, m and v are %s, %s and %s, wanted %s",
                       dtype_name(master), dtype_name(m), dtype_name(v),
                       "m as v, and a master of fp32 or as these");
    if (tensor_given(&op->out[OPTIMIZER_WEIGHT]) && master != DTYPE_F32)
        return err_set(err, ERR_FAILED, "adamw: weight is given, wanted none: the master is %s",
                       dtype_name(master));
    return 0;
}

/* For a split parameter, an input may give the number of the rank's part. */
static int adamw_spread(const struct spread_query *q)
{
    unsigned data = IN(OPTIMIZER_GRADIENT) | IN(OPTIMIZER_MASTER) | IN(OPTIMIZER_M) |
                    IN(OPTIMIZER_V) | IN(OPTIMIZER_DECAY) | IN(OPTIMIZER_RNG_SITE) |
                    IN(OPTIMIZER_LOW);
    enum spread in[OPS_MAX_INPUTS];
    struct spread_query others = *q;

    memcpy(in, q->in, (size_t)q->info->n_inputs * sizeof *in);
    others.in = in;
    if (spread_given(q, OPTIMIZER_PART) && in[OPTIMIZER_GRADIENT] != SPREAD_SAME &&
        in[OPTIMIZER_PART] == SPREAD_COLS)
        in[OPTIMIZER_PART] = SPREAD_SAME;
    return spread_alike(&others, data, 0, MAY_ROWS | MAY_COLS);
}

static const struct op_info adamw = {
    .name = "adamw",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 11,
    .inputs = {
        [OPTIMIZER_GRADIENT] = { "gradient", DIM_R, DIM_D, TYPE_KEPT, OPERAND_PLAIN },
        [OPTIMIZER_SCALARS] = { "scalars", DIM_ONE, DIM_SCALARS, TYPE_F32, OPERAND_PLAIN },
        [OPTIMIZER_CLIP_FACTOR] = { "clip_factor", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [OPTIMIZER_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [OPTIMIZER_MASTER] = { "master", DIM_R, DIM_D, TYPE_KEPT, OPERAND_UPDATED },
        [OPTIMIZER_M] = { "m", DIM_R, DIM_D, TYPE_KEPT, OPERAND_UPDATED },
        [OPTIMIZER_V] = { "v", DIM_R, DIM_D, TYPE_KEPT, OPERAND_UPDATED },
        [OPTIMIZER_DECAY] = { "decay", DIM_ONE, DIM_BLOCKS, TYPE_F64, OPERAND_OPTIONAL },
        [OPTIMIZER_RNG_SITE] = { "rng_site", DIM_ONE, DIM_BLOCKS, TYPE_F64, OPERAND_OPTIONAL },
        [OPTIMIZER_PART] = { "part", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [OPTIMIZER_LOW] = { "low", DIM_R, DIM_D, TYPE_I16, OPERAND_UPDATED | OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [OPTIMIZER_WEIGHT] = { "weight", DIM_R, DIM_D, TYPE_ACT, OPERAND_OPTIONAL | OPERAND_STAYS },
    },
    .attributes = ATTRIBUTE_EPS,
    .traits = TRAIT_ON_HOST | TRAIT_BY_BLOCKS,
    .site_input = 1 + OPTIMIZER_RNG_SITE,
    .check_attributes = adamw_check_attributes,
    .check = adamw_check,
    .spread = adamw_spread,
    .flops_per_element = 15,
};

const struct op_info *const optimizer_ops[N_OP_KINDS] = {
    [OP_SUM_RUNS] = &sum_runs,
    [OP_SUMSQ] = &sumsq,
    [OP_GRADIENT_NORM] = &gradient_norm,
    [OP_ADAMW] = &adamw,
};
