/*
 * rules_impl.h - what a row of the catalogue says of each operand's shape and dtype
 *
 * A dimension is a letter of ops.h's notation. Those that attributes fix (heads, one) are known at
 * once; the others are bound by the first operand that has them and must then agree.
 */
#ifndef OPS_RULES_IMPL_H
#define OPS_RULES_IMPL_H

#include "ops/ops.h"

enum dim {
    DIM_T, /* tokens; a multiple of seq_len where that is given */
    DIM_D,
    DIM_K,
    DIM_N,
    DIM_V,
    DIM_R,
    DIM_F,
    DIM_ANY_ROWS,
    DIM_ONE,
    DIM_THREE,
    DIM_SCALARS,
    DIM_STATS, /* constants */
    DIM_C,
    DIM_C_PART, /* with a part of the kv heads' columns */
    DIM_H,
    DIM_QK_HEADS,
    DIM_E,
    DIM_HE,
    DIM_GE, /* from the heads */
    DIM_2F,
    DIM_SEQUENCES,
    DIM_CACHE,
    DIM_BLOCKS,
    DIM_M,  /* experts */
    DIM_S,  /* a token's */
    DIM_1M, /* 1 + M */
    DIM_TS, /* T * S */
    DIM_MN, /* M * N */
    DIM_SIZE_N,
    DIM_SIZE_T, /* from other dimensions */
    DIM_FREE,   /* anything, binds nothing */
    N_DIMS
};

enum type_rule {
    TYPE_F32,
    TYPE_F64,
    TYPE_I32,
    TYPE_I64,
    TYPE_ACT,        /* fp32, bf16 or fp16, all such operands of one op alike */
    TYPE_ACT_OR_F32, /* the op's act, or fp32 */
    TYPE_FLOAT,      /* fp32, bf16 or fp16, whatever the others are */
    TYPE_STREAM,     /* residual stream and its gradient: fp32, or bf16 beside bf16, all alike */
    TYPE_KEPT,       /* accumulators and states: fp32 or bf16 */
    TYPE_MOVED,      /* what a collective carries: fp32, bf16, fp16 or fp64, alike on both sides */
};

struct operand_rule {
    enum dim rows, cols;
    enum type_rule type;
};

struct op_rules {
    struct operand_rule inputs[OPS_MAX_INPUTS];
    struct operand_rule outputs[OPS_MAX_OUTPUTS];
};

const struct op_rules *op_rules(enum op_kind kind);

#endif
