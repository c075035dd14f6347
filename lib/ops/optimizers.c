/*
 * optimizers.c - the table of optimizers
 */
#include "ops/optimizers.h"

#include "ops/ops.h"

#define F32 (1U << DTYPE_F32)
#define BF16 (1U << DTYPE_BF16)
#define F16 (1U << DTYPE_F16)
#define U8 (1U << DTYPE_U8)

const struct choice optimizer_choices[] = { { "adamw", RULE_ADAMW }, { "lion", RULE_LION },
                                            { "sgd", RULE_SGD },     { "cadam", RULE_CADAM },
                                            { "muon", RULE_MUON },   { 0 } };

const struct choice optimizer_states_choices[] = {
    { "fp32", DTYPE_F32 }, { "bf16", DTYPE_BF16 }, { "int8", DTYPE_U8 }, { 0 }
};

/* Lion and Cadam step by the sign: their papers' rates are a third to a tenth of AdamW's, and their
 * decays three to ten times as large, so that the product is alike. */
static const struct optimizer_row rows[N_OPTIMIZER_RULES] = {
    [RULE_ADAMW] = { .kind = OP_ADAMW,
                     .has_v = true,
                     .state_dtypes = F32 | BF16 | U8,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .lr_factor = 1 },
    [RULE_LION] = { .kind = OP_LION,
                    .state_dtypes = F32 | BF16 | U8,
                    .beta1 = 0.9,
                    .beta2 = 0.99,
                    .weight_decay = 0.3,
                    .lr_factor = 1 / 3.0 },
    [RULE_SGD] = { .kind = OP_SGD,
                   .state_dtypes = F32 | BF16,
                   .momentum = 0.9,
                   .weight_decay = 1e-4 },
    [RULE_CADAM] = { .kind = OP_CADAM,
                     .is_fp16 = true,
                     .state_dtypes = F16,
                     .beta1 = 0.965,
                     .eps = 1e-8,
                     .weight_decay = 0.3,
                     .lr_factor = 1 / 3.0 },
    [RULE_MUON] = { .kind = OP_MUON_UPDATE,
                    .state_dtypes = F32,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .momentum = 0.95,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .lr_factor = 1 },
};

const struct optimizer_row *optimizer_row(enum optimizer_rule rule)
{
    CHECK(rule < N_OPTIMIZER_RULES);
    return &rows[rule];
}

const struct optimizer_row *optimizer_row_of(enum op_kind kind)
{
    int rule = 0;

    while (rule < N_OPTIMIZER_RULES && rows[rule].kind != kind)
        rule++;
    return optimizer_row((enum optimizer_rule)rule);
}

enum dtype optimizer_state_dtype(const struct optimizer_row *row, enum dtype states)
{
    return row->is_fp16 && states == DTYPE_F32 ? DTYPE_F16 : states;
}

bool optimizer_allows(const struct optimizer_row *row, enum dtype states)
{
    return row->state_dtypes >> optimizer_state_dtype(row, states) & 1;
}

bool optimizer_is_scaled(enum dtype state)
{
    return state == DTYPE_F16 || state == DTYPE_U8;
}

double optimizer_bytes(const struct optimizer_row *row, enum dtype weight, enum dtype states,
                       bool split)
{
    enum dtype state = optimizer_state_dtype(row, states);
    bool has_master = weight != DTYPE_F32 && states != DTYPE_BF16;
    double each = (double)dtype_bytes(state) +
                  (optimizer_is_scaled(state) ? sizeof(float) / (double)OPS_STATE_BLOCK : 0);

    return (row->has_v ? 2 : 1) * each + (!has_master ? 0 : split ? 2 : 4);
}
