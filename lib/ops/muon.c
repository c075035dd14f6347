/*
 * muon.c - Muon: momentum, matrices made orthogonal, and the update by them
 */
#include "base/num.h"
#include "ops/family_impl.h"

static int check_beta(const struct op_shape *op, struct err *err)
{
    double beta = op->attributes.beta1;

    if (beta >= 0 && beta < 1)
        return 0;
    return err_set(err, ERR_FAILED, "%s: beta1 is %g, wanted 0 <= beta1 < 1", op_name(op->kind),
                   beta);
}

/* What an operand of TYPE_KEPT must be here. */
static int check_fp32(const struct op_shape *op, int input, struct err *err)
{
    if (op->in[input].dtype == DTYPE_F32)
        return 0;
    return err_set(err, ERR_FAILED, "%s: %s is %s, wanted fp32", op_name(op->kind),
                   op_info(op->kind)->inputs[input].name, dtype_name(op->in[input].dtype));
}

static int check_bf16(const struct op_shape *op, const struct tensor *t, const char *name,
                      struct err *err)
{
    if (t->dtype == DTYPE_BF16)
        return 0;
    return err_set(err, ERR_FAILED, "%s: %s is %s, wanted bf16", op_name(op->kind), name,
                   dtype_name(t->dtype));
}

static int muon_momentum_check(const struct op_shape *op, struct err *err)
{
    return check_bf16(op, &op->out[MUON_MOMENTUM_U], "u", err);
}

static const struct op_info muon_momentum = {
    .name = "muon_momentum",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 4,
    .inputs = {
        [MUON_MOMENTUM_GRADIENT] = { "gradient", DIM_R, DIM_D, TYPE_KEPT, OPERAND_PLAIN },
        [MUON_MOMENTUM_CLIP_FACTOR] = { "clip_factor", DIM_ONE, DIM_ONE, TYPE_F32, OPERAND_PLAIN },
        [MUON_MOMENTUM_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [MUON_MOMENTUM_M] = { "m", DIM_R, DIM_D, TYPE_F32, OPERAND_UPDATED },
    },
    .n_outputs = 1,
    .outputs = {
        [MUON_MOMENTUM_U] = { "u", DIM_R, DIM_D, TYPE_KEPT, OPERAND_PLAIN },
    },
    .traits = TRAIT_ON_HOST | TRAIT_BY_BLOCKS,
    .check_attributes = check_beta,
    .check = muon_momentum_check,
    .spread_form = { .data = IN(MUON_MOMENTUM_GRADIENT) | IN(MUON_MOMENTUM_M),
                     .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 7,
};

static int newton_schulz_check_attributes(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const char *name = op_name(op->kind);

    if (a->matrix_rows < 1 || a->matrices < 1 || a->matrix_parts < 1)
        return err_set(err, ERR_FAILED,
                       "%s: matrix_rows, matrices and matrix_parts are %lld, %d and %d, wanted at "
                       "least 1",
                       name, (long long)a->matrix_rows, a->matrices, a->matrix_parts);
    if (a->steps < 1 || a->steps > NEWTON_SCHULZ_STEPS_MAX)
        return err_set(err, ERR_FAILED, "%s: steps is %d, wanted 1..%d", name, a->steps,
                       NEWTON_SCHULZ_STEPS_MAX);
    if ((unsigned)a->coefficients >= N_NEWTON_SCHULZ)
        return err_set(err, ERR_FAILED, "%s: coefficients is %d, wanted 0..%d", name,
                       (int)a->coefficients, N_NEWTON_SCHULZ - 1);
    return 0;
}

static int newton_schulz_check(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *x = &op->in[NEWTON_SCHULZ_X];
    int64_t each = a->matrix_rows * a->matrices * a->matrix_parts;

    if (x->rows % each)
        return err_set(err, ERR_FAILED, "newton_schulz: x has %lld rows, wanted a multiple of %lld",
                       (long long)x->rows, (long long)each);
    return check_bf16(op, x, "x", err);
}

struct newton_schulz_matrix ops_newton_schulz_matrix(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    const struct tensor *x = &op->in[NEWTON_SCHULZ_X];
    int64_t rows = a->matrix_rows * (a->by_columns ? 1 : a->matrix_parts);
    int64_t cols = x->cols * (a->by_columns ? a->matrix_parts : 1);

    return (struct newton_schulz_matrix){ .rows = rows,
                                          .cols = cols,
                                          .n = x->rows / a->matrix_rows / a->matrix_parts };
}

/* Of the products, of which a step has three. */
static double newton_schulz_flops(const struct op_shape *op)
{
    struct newton_schulz_matrix m = ops_newton_schulz_matrix(op);
    double small = (double)min_i64(m.rows, m.cols), large = (double)max_i64(m.rows, m.cols);

    return (double)m.n * op->attributes.steps *
           (4 * small * small * large + 2 * small * small * small);
}

/* Ranks may have other matrices each, but none a part of one. */
static const struct op_info newton_schulz = {
    .name = "newton_schulz",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 1,
    .inputs = {
        [NEWTON_SCHULZ_X] = { "x", DIM_R, DIM_D, TYPE_KEPT, OPERAND_UPDATED },
    },
    .attributes = ATTRIBUTE_EPS,
    .traits = TRAIT_PRODUCT,
    .check_attributes = newton_schulz_check_attributes,
    .check = newton_schulz_check,
    .spread_form = { .data = IN(NEWTON_SCHULZ_X), .allowed = MAY_ROWS },
    .flops = newton_schulz_flops,
};

static int muon_update_check(const struct op_shape *op, struct err *err)
{
    if (check_fp32(op, MUON_UPDATE_MASTER, err))
        return -1;
    return check_bf16(op, &op->in[MUON_UPDATE_X], "x", err);
}

static const struct op_info muon_update = {
    .name = "muon_update",
    .family = FAMILY_OPTIMIZER,
    .n_inputs = 5,
    .inputs = {
        [MUON_UPDATE_X] = { "x", DIM_R, DIM_D, TYPE_KEPT, OPERAND_PLAIN },
        [MUON_UPDATE_SCALARS] = { "scalars", DIM_ONE, DIM_SCALARS, TYPE_F32, OPERAND_PLAIN },
        [MUON_UPDATE_SKIP_UPDATE] = { "skip_update", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [MUON_UPDATE_MASTER] = { "master", DIM_R, DIM_D, TYPE_KEPT, OPERAND_UPDATED },
        [MUON_UPDATE_DECAY] = { "decay", DIM_ONE, DIM_BLOCKS, TYPE_F64, OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [MUON_UPDATE_WEIGHT] = { "weight", DIM_R, DIM_D, TYPE_ACT, OPERAND_OPTIONAL | OPERAND_STAYS },
    },
    .traits = TRAIT_ON_HOST | TRAIT_BY_BLOCKS,
    .check = muon_update_check,
    .spread_form = { .data = IN(MUON_UPDATE_X) | IN(MUON_UPDATE_MASTER) | IN(MUON_UPDATE_DECAY),
                     .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 3,
};

const struct op_info *const muon_ops[N_OP_KINDS] = {
    [OP_MUON_MOMENTUM] = &muon_momentum,
    [OP_NEWTON_SCHULZ] = &newton_schulz,
    [OP_MUON_UPDATE] = &muon_update,
};
