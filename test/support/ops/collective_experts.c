/*
 * collective_experts.c - facts of rows that go to the ranks that have their experts and back
 */
#include "support/ops/op_family.h"

const struct op_facts collective_experts_facts[N_OP_KINDS] = {
    [OP_SEND_ROWS] = {
        .example = "send_rows 12x8 bf16, 24x2 i32, 12x2 i32 : 24x8 bf16",
        .spreads = "sss > s; rrr > r; css > c; pss > p",
    },
    [OP_RETURN_ROWS] = {
        .example = "return_rows *20x8 bf16, 24x2 i32, 24x2 i32 : 24x8 bf16",
        .spreads = "sss > s; rrr > r; css > c; pss > p",
    },
};
