/*
 * optimizers.h - the optimizers there are, a row each
 *
 * An optimizer is an op kind whose operands lie at the places of enum optimizer_in (operands.h),
 * and a row here, which the passes of the update, the job's fields and plan read. To add one: its
 * value and row here, its op in optimizer.c, and what lib/README.md says of ops. Pure.
 */
#ifndef OPS_OPTIMIZERS_H
#define OPS_OPTIMIZERS_H

#include <stdbool.h>

#include "base/choice.h"
#include "base/dtype.h"
#include "ops/kinds.h"

enum optimizer_rule { RULE_ADAMW, RULE_LION, RULE_SGD, RULE_CADAM, RULE_MUON, N_OPTIMIZER_RULES };

/* The words of optimizer.name, and of optimizer.states: int8 is DTYPE_U8. */
extern const struct choice optimizer_choices[];
extern const struct choice optimizer_states_choices[];

struct optimizer_row {
    enum op_kind kind;
    bool has_v;            /* a second state beside m */
    bool is_fp16;          /* m is fp16 with scales where optimizer.states is fp32 */
    unsigned state_dtypes; /* 1 << dtype of those that its states may be in memory */

    /* Where the job does not say; 0: the optimizer has no such constant (but eps of adamw is not).
     * SGD's momentum takes the place of its beta1. */
    double beta1, beta2, momentum, eps, weight_decay;
    double lr_factor; /* of AdamW's rate; 0: none is known that is right for most models */
};

const struct optimizer_row *optimizer_row(enum optimizer_rule rule);

/* Of the optimizer that has this op. */
const struct optimizer_row *optimizer_row_of(enum op_kind kind);

/* The dtype of its states where optimizer.states is this; whether it allows that. */
enum dtype optimizer_state_dtype(const struct optimizer_row *row, enum dtype states);
bool optimizer_allows(const struct optimizer_row *row, enum dtype states);

/* Whether OPS_STATE_BLOCK elements of such a state have a scale. */
bool optimizer_is_scaled(enum dtype state);

/* Bytes of memory that the optimizer takes for a parameter beside its weight of that dtype: states,
 * scales, and its master, whole or split. */
double optimizer_bytes(const struct optimizer_row *row, enum dtype weight, enum dtype states,
                       bool split);

#endif
