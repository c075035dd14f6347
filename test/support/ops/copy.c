/*
 * copy.c - facts of copies between the device's memory and the host's: run executes them
 */
#include "support/ops/op_family.h"

const struct op_facts copy_facts[N_OP_KINDS] = {
    [OP_TO_HOST] = {
        .example = "to_host 12x8 bf16 : 12x8 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_TO_DEVICE] = {
        .example = "to_device 12x8 bf16 : 12x8 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
};
