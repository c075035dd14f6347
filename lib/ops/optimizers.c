/*
 * optimizers.c - the table of optimizers
 */
#include "ops/optimizers.h"

#include "base/err.h"

const struct choice optimizer_choices[] = { { "adamw", RULE_ADAMW }, { "muon", RULE_MUON }, { 0 } };

static const struct optimizer_row rows[N_OPTIMIZER_RULES] = {
    [RULE_ADAMW] = { .kind = OP_ADAMW, .has_v = true },
    [RULE_MUON] = { .kind = OP_MUON_UPDATE },
};

const struct optimizer_row *optimizer_row(enum optimizer_rule rule)
{
    CHECK(rule < N_OPTIMIZER_RULES);
    return &rows[rule];
}
