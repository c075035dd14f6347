/*
 * op_info.h - a row of the catalogue: all that is known of an op kind
 *
 * The row of a kind stands in its family file (linear.c, attention.c, ...), below the functions
 * that it points to. Everything that must know an op's nature (op_check, op_spread, op_flops, the
 * passes, print, the front door of kernels) reads it here. A row has tables where these say it all,
 * and a function only where none does.
 */
#ifndef OPS_OP_INFO_H
#define OPS_OP_INFO_H

#include "ops/ops.h"

/*
 * A dimension is a letter of ops.h's notation. Those that attributes fix (heads) and constants are
 * known at once; the others are bound by the first operand that has them and must then agree.
 */
enum dim {
    DIM_T, /* tokens; a multiple of seq_len where that is used */
    DIM_U, /* rows of keys, of as many sequences */
    DIM_D,
    DIM_K,
    DIM_N,
    DIM_V,
    DIM_R,
    DIM_F,
    DIM_ANY_ROWS,
    DIM_ONE,
    DIM_TWO,
    DIM_THREE,
    DIM_SCALARS,
    DIM_STATS, /* constants */
    DIM_C,
    DIM_QK,     /* q's and k's columns */
    DIM_C_PART, /* with a part of the kv heads' columns */
    DIM_H,
    DIM_QK_HEADS,
    DIM_E,
    DIM_HE,
    DIM_GE, /* from the heads */
    DIM_GV,
    DIM_HV,
    DIM_STATE, /* of values: one from the other, and the heads; with maxima and sums */
    DIM_2F,
    DIM_SEQUENCES,
    DIM_BLOCKS,
    DIM_STATE_BLOCKS, /* of OPS_STATE_BLOCK elements of R x D */
    DIM_M,            /* experts */
    DIM_S,            /* a token's */
    DIM_1M,           /* 1 + M */
    DIM_TS,           /* T * S */
    DIM_MN,           /* M * N */
    DIM_SIZE_N,
    DIM_SIZE_T, /* from other dimensions */
    DIM_FREE,   /* anything, binds nothing */
    N_DIMS
};

enum operand_type {
    TYPE_F32,
    TYPE_F64,
    TYPE_U8,
    TYPE_I16,
    TYPE_I32,
    TYPE_I64,
    TYPE_ACT,        /* fp32, bf16 or fp16, all such operands of one op alike */
    TYPE_ACT_OR_F32, /* the op's act, or fp32 */
    TYPE_FLOAT,      /* fp32, bf16 or fp16, whatever the others are */
    TYPE_STREAM,     /* residual stream and its gradient: fp32, or bf16 beside bf16, all alike */
    TYPE_KEPT,       /* accumulators and states: fp32 or bf16 */
    TYPE_ACT_OR_U8,  /* the op's act, or codes of it */
    TYPE_STATE,      /* of an optimizer: as its kind checks it */
    TYPE_MOVED,      /* what a collective carries: fp32, bf16, fp16 or fp64, alike on both sides */
    TYPE_ANY,        /* any, alike on both sides */
};

enum operand_flag {
    OPERAND_PLAIN = 0, /* none of the following */
    OPERAND_OPTIONAL = 1,
    OPERAND_ACCUMULATED = 2, /* "+=" output */
    OPERAND_UPDATED = 4,     /* "~" input, or output that is read before it is written */
    OPERAND_IN_PLACE = 8,    /* output that may be the memory of the first input */
    OPERAND_CAST = 16,       /* output that is a cast of the first output */
    OPERAND_AWAY = 32,       /* lies in host memory or a file; all others in the device's memory */
    OPERAND_SEQUENCES = 64,  /* input of whole sequences, though ranks may have parts of them */
    OPERAND_STAYS = 128,     /* output that may stay as it was, if nothing is to change */
};

struct op_operand {
    const char *name;
    enum dim rows, cols;
    enum operand_type type;
    unsigned flags;
};

/* Attributes that mean something to a kind: op_check holds them against their ranges. */
enum op_attribute {
    ATTRIBUTE_HEADS = 1,     /* n_heads, n_kv_heads and head_dim; the heads' dimensions are known */
    ATTRIBUTE_EVEN_HEAD = 2, /* head_dim is even */
    ATTRIBUTE_SEQ_LEN = 4,
    ATTRIBUTE_VOCAB_SIZE = 8,
    ATTRIBUTE_CHUNK = 16,
    ATTRIBUTE_P = 32,
    ATTRIBUTE_EPS = 64,
};

/* What the operands of the common form of spreads may be, besides the same everywhere. */
enum spread_choice { MAY_ROWS = 1, MAY_COLS = 2, MAY_PARTIAL = 4 };

/*
 * The common form of spreads. `data` is a set of inputs (by bit) that must lie alike in one of the
 * allowed ways, `rowwise` one of inputs with one column a row, that follow them where rows are
 * split and are the same otherwise; all others must be the same. Outputs lie as the data,
 * accumulated ones are partial where rows are split.
 */
struct spread_form {
    unsigned data, rowwise;
    unsigned allowed; /* enum spread_choice */
};

/* What passes ask about a kind. */
enum op_trait {
    TRAIT_COLLECTIVE =
        1, /* it exchanges data with other ranks: run executes it, there is no kernel */
    TRAIT_TRANSFER = 2,    /* a collective of two ranks, of which one sends */
    TRAIT_GATHER = 4,      /* its output is its input and what other ranks of the axis have */
    TRAIT_PRODUCT = 8,     /* a matrix product, long enough for a collective to travel meanwhile */
    TRAIT_CHEAP = 16,      /* made again at the price of a read and a write */
    TRAIT_COPY = 32,       /* between the device's memory and the host's: run executes it */
    TRAIT_ON_HOST = 64,    /* the host's kernels may compute it, without scratch, where its operands
                           are: it is the same sequence of operations, so its bits are the same */
    TRAIT_BY_BLOCKS = 128, /* it treats elements one by one, or norm blocks: on parts of whole norm
                              blocks it is as on all, bit for bit. Operands of R x D are parted, and
                              tables by block; others are the same for all */
    TRAIT_BY_ROWS =
        512, /* a row of what it writes depends on that row of its operands of T rows, and
                            on other operands: on some rows it is as on all, bit for bit. With
                            ATTRIBUTE_SEQ_LEN on whole sequences alone */
    TRAIT_ROW_RUNS = 1024,   /* operands of T rows may be runs of rows (attributes.run_rows) */
    TRAIT_EXPERT_ROWS = 256, /* in a forward: its output has a row for each choice or token that may
                                come to the rank's experts, of which most do not */
};

/* What a model, or its job, must have for its forward to contain the kind. */
enum op_feature {
    FEATURE_NO_FORWARD, /* gradients and updates: no forward contains it */
    FEATURE_ANY_MODEL,
    FEATURE_RMSNORM,
    FEATURE_LAYERNORM,
    FEATURE_QK_NORM,
    FEATURE_ROPE,
    FEATURE_SWIGLU,
    FEATURE_GELU,
    FEATURE_EXPERTS,
    FEATURE_CAPACITY,    /* of experts, beyond which choices are dropped */
    FEATURE_SHARED_GATE, /* of experts that all tokens go to */
    FEATURE_ADAPTERS,
    FEATURE_EXPERT_ADAPTERS,
    FEATURE_DROPOUT,
    FEATURE_SUM_BEFORE_BIAS,   /* output biases under tensor parallelism */
    FEATURE_SEQUENCE_PARALLEL, /* tensor parallelism with rows split between its regions */
    FEATURE_WHOLE_ROWS,        /* tensor parallelism without */
    FEATURE_SHARED_KV_HEADS,   /* more tensor-parallel ranks than kv heads */
    FEATURE_CONTEXT_PARALLEL,
};

/* What a report counts the kind with. */
enum op_family {
    FAMILY_OTHER,
    FAMILY_LINEAR,
    FAMILY_HEAD, /* and the loss */
    FAMILY_ATTENTION,
    FAMILY_NORM,
    FAMILY_ROPE,
    FAMILY_ACTIVATION,
    FAMILY_EMBEDDING,
    FAMILY_OPTIMIZER,
    FAMILY_COLLECTIVE,
    N_FAMILIES
};

/*
 * A residual add and the norm that follows it are one op, `fused`: its inputs are those of the add,
 * then those of the norm but for the first; its outputs are those of the norm, then the sum.
 */
struct op_fusion {
    enum op_kind norm, fused;
};

struct backward;
struct op_node;
struct spread_query;

struct op_info {
    const char *name;
    int n_inputs, n_outputs;
    struct op_operand inputs[OPS_MAX_INPUTS];
    struct op_operand outputs[OPS_MAX_OUTPUTS];
    unsigned attributes; /* enum op_attribute */
    unsigned traits;     /* enum op_trait */
    enum op_feature feature;
    enum op_family family;
    const struct op_fusion *fusion; /* of a norm and of what it is fused to; else NULL */

    /*
     * What op_check requires besides: of the attributes, ahead of all operands; and, where each
     * operand by itself is right, of several of them. Optional. Return 0, or -1 and ERR_FAILED.
     */
    int (*check_attributes)(const struct op_shape *op, struct err *err);
    int (*check)(const struct op_shape *op, struct err *err);

    /* The rule of op_spread, if it does not have the common form. */
    int (*spread)(const struct spread_query *query);
    struct spread_form spread_form;

    /* The rule of op_flops, if it is not flops_per_element times the elements of the first
     * input. */
    double (*flops)(const struct op_shape *op);
    double flops_per_element;

    /* Of operands with these rows attributes.n_rows are expected, if it is given. */
    enum dim routed_rows;

    /* Narrows operands to what of them is read and written, for op_bytes. NULL: all of each. */
    void (*moved)(struct op_shape *op);

    /* 1 + the input whose last element is the number of rows that there are of operands with
     * routed_rows: ends of experts. 0: none says it. */
    int ends_input;

    /*
     * 1 + the output of codes, and behind it that of largest elements: what products of fp8 read in
     * place of the output that is rounded (op_rounded_output), made of what is stored of that, bf16
     * (fp8_recipe.h). With codes: blockwise, [T x D / 128, rounded up], of each block; without: of
     * each row, [T x 1], the parts of one tensor. Both are optional. 0: the kind has none.
     */
    int codes_output;

    /* Of TRAIT_BY_BLOCKS: 1 + the input that has the site of each block's random numbers; without
     * it attributes.rng_site is the first block's, and the others' follow. 0: there are none. */
    int site_input;

    /* Emits what carries the outputs' gradients to the inputs (backward.h). NULL: there is none. */
    void (*backward)(struct backward *b, const struct op_node *op);
};

const struct op_info *op_info(enum op_kind kind);

/* Outputs that the kind has but for codes. */
static inline int op_plain_outputs(const struct op_info *info)
{
    return info->codes_output ? info->codes_output - 1 : info->n_outputs;
}

/* The output that a kind with codes rounds: the cast of its first one, if it has that and it is
 * given, or the first one. given[k]: output k is not absent. */
static inline int op_rounded_output(const struct op_info *info, const int *given)
{
    for (int k = 1; k < op_plain_outputs(info); k++)
        if ((info->outputs[k].flags & OPERAND_CAST) && given[k])
            return k;
    return 0;
}

/* How many elements of operands of R x D one element of this operand stands for: 1 of these
 * themselves, a block's of tables and scales by block; 0: it is the same for all. */
static inline int64_t operand_stands_for(const struct op_operand *operand)
{
    switch (operand->cols) {
    case DIM_D:
        return 1;
    case DIM_BLOCKS:
        return OPS_NORM_BLOCK;
    case DIM_STATE_BLOCKS:
        return OPS_STATE_BLOCK;
    default:
        return 0;
    }
}

/* Whether an operand of such flags may lie there. */
static inline int operand_takes(unsigned flags, enum space space)
{
    return !(flags & OPERAND_AWAY) == (space == SPACE_DEVICE);
}

static inline const char *op_name(enum op_kind kind)
{
    return op_info(kind)->name;
}

#endif
