/*
 * parameter_update.h - how the update treats a parameter: by which optimizer, and with which
 * constants that others may have otherwise
 *
 * One function decides it, from the options and the parameter alone, so that all ranks and all
 * layouts decide alike; update.c and update_shards.c emit what it says. The parameters of a sharded
 * bucket have one optimizer; their decays may differ, and are then a table by norm block.
 */
#ifndef PROGRAM_PARAMETER_UPDATE_H
#define PROGRAM_PARAMETER_UPDATE_H

#include "ops/optimizers.h"
#include "program/passes.h"

struct parameter_update {
    const struct optimizer_row *optimizer;
    double weight_decay;
    int group; /* the parameter's, whose scalars its update reads (update_groups.c) */
};

struct parameter_update parameter_update_of(const struct update_options *options,
                                            const struct parameter *parameter);

#endif
