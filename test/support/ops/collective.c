/*
 * collective.c - facts of what ranks do together: run executes it, there is no reference
 */
#include "support/ops/op_family.h"

const struct op_facts collective_facts[N_OP_KINDS] = {
    [OP_ALL_GATHER] = {
        .example = "all_gather 1x6 bf16 : 1x24 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_REDUCE_SCATTER] = {
        .example = "reduce_scatter 1x24 fp32 : 1x6 fp32",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_ALL_REDUCE] = {
        .example = "all_reduce 12x8 fp32 : 12x8 fp32",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_ALL_REDUCE_SCALAR] = {
        .example = "all_reduce_scalar 1x2 fp64 : 1x2 fp64",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_GATHER_HEADS] = {
        .example = "gather_heads 12x10 bf16 : 12x12 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_GATHER_HEADS_GRAD] = {
        .example = "gather_heads_grad 12x12 bf16 : 12x10 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_ROWS_TO_HEADS] = {
        .example = "rows_to_heads 12x16 bf16 : 48x6 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_HEADS_TO_ROWS] = {
        .example = "heads_to_rows 48x6 bf16 : 12x16 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_GATHER_SEQUENCE] = {
        .example = "gather_sequence 12x8 bf16 : 48x8 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_SCATTER_SEQUENCE] = {
        .example = "scatter_sequence 48x8 fp32 : 12x8 fp32",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_ROTATE] = {
        .example = "rotate 12x8 bf16 : 12x8 bf16",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_EXCHANGE_CODES] = {
        .example = "exchange_codes 4x8 u8 : 4x8 u8",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_GATHER_CODES] = {
        .example = "gather_codes 1x8 i32 : *4x8 i32",
        .spreads = "s > s; r > r; c > c; p > p",
    },
    [OP_SEND] = {
        .example = "send *20x*8 fp32 :",
        .spreads = "s >; r >; c >; p >",
    },
    [OP_RECEIVE] = {
        .example = "receive : *20x*8 fp32",
        .spreads = "> s",
    },
};
