/*
 * parameter_update.c - see the header
 */
#include "program/parameter_update.h"

struct parameter_update parameter_update_of(const struct update_options *options,
                                            const struct parameter *parameter)
{
    enum optimizer_rule rule = options->optimizer;
    int group = parameter->group;
    double own = group ? options->groups.list[group - 1].weight_decay : -1;
    /* Vectors (norms, biases) do not decay, unless their group does. */
    double others = parameter->n_dims > 1 ? options->weight_decay : 0;

    /* What is no hidden matrix, AdamW has. */
    if (rule == RULE_MUON && !parameter->matrices.n_pieces)
        rule = RULE_ADAMW;
    return (struct parameter_update){ .optimizer = optimizer_row(rule),
                                      .weight_decay = own >= 0 ? own : others,
                                      .group = group };
}
