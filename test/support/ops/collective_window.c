/*
 * collective_window.c - facts of what windows see of other ranks' rows: run executes it
 */
#include "support/ops/op_family.h"

const struct op_facts collective_window_facts[N_OP_KINDS] = {
    [OP_GATHER_WINDOW] = {
        .example = "gather_window 12x8 bf16 : 512x8 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_SCATTER_WINDOW] = {
        .example = "scatter_window 512x8 fp32 : 12x8 fp32",
        .spreads = "s > s; r > r; c > c; p > p",
    },
};
