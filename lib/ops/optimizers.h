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
#include "ops/kinds.h"

enum optimizer_rule { RULE_ADAMW, RULE_MUON, N_OPTIMIZER_RULES };

/* The words of optimizer.name. */
extern const struct choice optimizer_choices[];

struct optimizer_row {
    enum op_kind kind;
    bool has_v; /* a second state beside m */
};

const struct optimizer_row *optimizer_row(enum optimizer_rule rule);

#endif
