/*
 * optimizer.c - the gradient norm and the optimizers
 */
#include <string.h>

#include "ops/family_impl.h"
#include "ops/optimizers.h"

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

static int optimizer_check_attributes(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;

    if (!(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1))
        return err_set(err, ERR_FAILED, "%s: betas are %g and %g, wanted 0 <= beta < 1",
                       op_name(op->kind), a->beta1, a->beta2);
    return 0;
}

/* The dtypes of the master and the states are not these. */
static int refuse_dtypes(const struct op_shape *op, const char *beside, const char *wanted,
                         struct err *err)
{
    const char *master = dtype_name(op->in[OPTIMIZER_MASTER].dtype);
    const char *m = dtype_name(op->in[OPTIMIZER_M].dtype);

    if (!tensor_given(&op->in[OPTIMIZER_V]))
        return err_set(err, ERR_FAILED, "%s: master and m are %s and %s%s, wanted %s",
                       op_name(op->kind), master, m, beside, wanted);
    return err_set(err, ERR_FAILED, "%s: master, m and v are %s, %s and %s%s, wanted %s",
                   op_name(op->kind), master, m, dtype_name(op->in[OPTIMIZER_V].dtype), beside,
                   wanted);
}

/* An fp32 master in two operands, of which the upper is the weight. */
static int check_halves(const struct op_shape *op, struct err *err)
{
    if (op->in[OPTIMIZER_MASTER].dtype != DTYPE_BF16 || op->in[OPTIMIZER_M].dtype == DTYPE_BF16)
        return refuse_dtypes(op, " beside low", "bf16, and states of another dtype", err);
    if (tensor_given(&op->out[OPTIMIZER_WEIGHT]))
        return err_set(err, ERR_FAILED, "%s: weight and low are given, wanted one of them",
                       op_name(op->kind));
    return 0;
}

/* v where the optimizer has one, and scales of the states that have them. */
static int check_states(const struct op_shape *op, const struct optimizer_row *row, struct err *err)
{
    enum dtype m = op->in[OPTIMIZER_M].dtype;
    bool has_v = tensor_given(&op->in[OPTIMIZER_V]), is_scaled = optimizer_is_scaled(m);

    if (has_v != row->has_v)
        return err_set(err, ERR_FAILED, "%s: v is %s", op_name(op->kind),
                       has_v ? "given, wanted none" : "missing, wanted beside m");
    if (!(row->state_dtypes >> m & 1))
        return err_set(err, ERR_FAILED, "%s: m is %s, wanted a dtype of its states",
                       op_name(op->kind), dtype_name(m));
    if (tensor_given(&op->in[OPTIMIZER_M_SCALE]) != is_scaled ||
        tensor_given(&op->in[OPTIMIZER_V_SCALE]) != (is_scaled && has_v))
        return err_set(err, ERR_FAILED,
                       "%s: m is %s and scales are %s, wanted a scale for each state%s",
                       op_name(op->kind), dtype_name(m),
                       tensor_given(&op->in[OPTIMIZER_M_SCALE]) ? "given" : "missing",
                       is_scaled ? "" : " of fp16 or u8 alone");
    return 0;
}

/* States alike; where even the master is bf16 all are, and it is the weight. */
static int optimizer_check(const struct op_shape *op, struct err *err)
{
    enum dtype master = op->in[OPTIMIZER_MASTER].dtype, m = op->in[OPTIMIZER_M].dtype;
    bool has_v = tensor_given(&op->in[OPTIMIZER_V]);

    if (check_states(op, optimizer_row_of(op->kind), err) < 0)
        return -1;
    if (tensor_given(&op->in[OPTIMIZER_LOW]))
        return check_halves(op, err);
    if (op->attributes.half_away && m == DTYPE_BF16)
        return err_set(err, ERR_FAILED, "%s: half_away beside m of %s, wanted fp32",
                       op_name(op->kind), dtype_name(m));
    if ((has_v && m != op->in[OPTIMIZER_V].dtype) ||
        (master != DTYPE_F32 && (master != m || m != DTYPE_BF16)))
        return refuse_dtypes(op, "",
                             has_v ? "m as v, and a master of fp32 or as these"
                                   : "a master of fp32, or both bf16",
                             err);
    if (tensor_given(&op->out[OPTIMIZER_WEIGHT]) && master != DTYPE_F32)
        return err_set(err, ERR_FAILED, "%s: weight is given, wanted none: the master is %s",
                       op_name(op->kind), dtype_name(master));
    return 0;
}

/* For a split parameter, an input may give the number of the rank's part. */
static int optimizer_spread(const struct spread_query *q)
{
    unsigned data = IN(OPTIMIZER_GRADIENT) | IN(OPTIMIZER_MASTER) | IN(OPTIMIZER_M) |
                    IN(OPTIMIZER_V) | IN(OPTIMIZER_DECAY) | IN(OPTIMIZER_RNG_SITE) |
                    IN(OPTIMIZER_LOW) | IN(OPTIMIZER_M_SCALE) | IN(OPTIMIZER_V_SCALE);
    enum spread in[OPS_MAX_INPUTS];
    struct spread_query others = *q;

    memcpy(in, q->in, (size_t)q->info->n_inputs * sizeof *in);
    others.in = in;
    if (spread_given(q, OPTIMIZER_PART) && in[OPTIMIZER_GRADIENT] != SPREAD_SAME &&
        in[OPTIMIZER_PART] == SPREAD_COLS)
        in[OPTIMIZER_PART] = SPREAD_SAME;
    return spread_alike(&others, data, 0, MAY_ROWS | MAY_COLS);
}

/* v_flags: OPERAND_OPTIONAL where the optimizer has no v, so that places are the same for all;
 * scale_flags: OPERAND_PLAIN where m always has scales. */
#define OPTIMIZER_OP(op, v_flags, scale_flags, flops) \
    static const struct op_info op = { \
        .name = #op, \
        .family = FAMILY_OPTIMIZER, \
        .n_inputs = 13, \
        .inputs = { \
            [OPTIMIZER_GRADIENT] = { "gradient", DIM_R, DIM_D, TYPE_KEPT, OPERAND_PLAIN }, \
            [OPTIMIZER_SCALARS] = { "scalars", DIM_ONE, DIM_SCALARS, TYPE_F32, OPERAND_PLAIN }, \
            [OPTIMIZER_CLIP_FACTOR] = { "clip_factor", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN }, \
            [OPTIMIZER_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN }, \
            [OPTIMIZER_MASTER] = { "master", DIM_R, DIM_D, TYPE_KEPT, OPERAND_UPDATED }, \
            [OPTIMIZER_M] = { "m", DIM_R, DIM_D, TYPE_STATE, OPERAND_UPDATED }, \
            [OPTIMIZER_V] = { "v", DIM_R, DIM_D, TYPE_STATE, OPERAND_UPDATED | (v_flags) }, \
            [OPTIMIZER_DECAY] = { "decay", DIM_ONE, DIM_BLOCKS, TYPE_F64, OPERAND_OPTIONAL }, \
            [OPTIMIZER_RNG_SITE] = { "rng_site", DIM_ONE, DIM_BLOCKS, TYPE_F64, OPERAND_OPTIONAL }, \
            [OPTIMIZER_PART] = { "part", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL }, \
            [OPTIMIZER_LOW] = { "low", DIM_R, DIM_D, TYPE_I16, OPERAND_UPDATED | OPERAND_OPTIONAL }, \
            [OPTIMIZER_M_SCALE] = { "m_scale", DIM_ONE, DIM_STATE_BLOCKS, TYPE_F32, \
                                    OPERAND_UPDATED | (scale_flags) }, \
            [OPTIMIZER_V_SCALE] = { "v_scale", DIM_ONE, DIM_STATE_BLOCKS, TYPE_F32, \
                                    OPERAND_UPDATED | OPERAND_OPTIONAL }, \
        }, \
        .n_outputs = 1, \
        .outputs = { \
            [OPTIMIZER_WEIGHT] = { "weight", DIM_R, DIM_D, TYPE_ACT, \
                                   OPERAND_OPTIONAL | OPERAND_STAYS }, \
        }, \
        .attributes = ATTRIBUTE_EPS, \
        .traits = TRAIT_ON_HOST | TRAIT_BY_BLOCKS, \
        .site_input = 1 + OPTIMIZER_RNG_SITE, \
        .check_attributes = optimizer_check_attributes, \
        .check = optimizer_check, \
        .spread = optimizer_spread, \
        .flops_per_element = (flops), \
    }

OPTIMIZER_OP(adamw, OPERAND_PLAIN, OPERAND_OPTIONAL, 15);
OPTIMIZER_OP(lion, OPERAND_OPTIONAL, OPERAND_OPTIONAL, 10);
OPTIMIZER_OP(sgd, OPERAND_OPTIONAL, OPERAND_OPTIONAL, 7);
OPTIMIZER_OP(cadam, OPERAND_OPTIONAL, OPERAND_PLAIN, 12);

const struct op_info *const optimizer_ops[N_OP_KINDS] = {
    [OP_SUM_RUNS] = &sum_runs, [OP_SUMSQ] = &sumsq, [OP_GRADIENT_NORM] = &gradient_norm,
    [OP_ADAMW] = &adamw,       [OP_LION] = &lion,   [OP_SGD] = &sgd,
    [OP_CADAM] = &cadam,
};
