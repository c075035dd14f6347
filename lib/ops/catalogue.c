/*
 * catalogue.c - the families of the catalogue
 *
 * Each family file gives a table by kind, of its own rows (OP_FAMILIES).
 */
#include <stdio.h>
#include <string.h>

#include "ops/family_impl.h"

#define TABLE(family) family##_ops,
static const struct op_info *const *const families[] = { OP_FAMILIES(TABLE) };
#undef TABLE

/*
 * Kernels compute several kinds by one function, which names the operands of one of them: those of
 * the others lie at the same places.
 */
#define SAME_PLACE(a, b) _Static_assert((int)(a) == (int)(b), #a " and " #b)

SAME_PLACE(LINEAR_DX_DY, LINEAR_X);
SAME_PLACE(LINEAR_DX_W, LINEAR_W);
SAME_PLACE(LINEAR_DX_DX, LINEAR_Y);
SAME_PLACE(LINEAR_DW_DY, LINEAR_X);
SAME_PLACE(LINEAR_DW_X, LINEAR_W);
SAME_PLACE(LINEAR_DW_DW, LINEAR_Y);
SAME_PLACE(EXPERT_LINEAR_DX_DY, EXPERT_LINEAR_X);
SAME_PLACE(EXPERT_LINEAR_DX_ENDS, EXPERT_LINEAR_ENDS);
SAME_PLACE(EXPERT_LINEAR_DX_W, EXPERT_LINEAR_W);
SAME_PLACE(EXPERT_LINEAR_DX_DX, EXPERT_LINEAR_Y);
SAME_PLACE(EXPERT_LINEAR_DW_DY, EXPERT_LINEAR_X);
SAME_PLACE(EXPERT_LINEAR_DW_DW, EXPERT_LINEAR_Y);
SAME_PLACE(EXPERT_LORA_Y, LORA_Y);
SAME_PLACE(EXPERT_LORA_OUT, LORA_OUT);
/* Norms: `adds` puts delta before w and the sum behind all, a LayerNorm has mean before rstd. */
SAME_PLACE(LAYERNORM_X, RMSNORM_X);
SAME_PLACE(LAYERNORM_W, RMSNORM_W);
SAME_PLACE(LAYERNORM_RSTD, RMSNORM_RSTD + 1);
SAME_PLACE(ADD_RMSNORM_X, RMSNORM_X);
SAME_PLACE(ADD_RMSNORM_W, RMSNORM_W + 1);
SAME_PLACE(ADD_RMSNORM_RSTD, RMSNORM_RSTD);
SAME_PLACE(ADD_LAYERNORM_X, RMSNORM_X);
SAME_PLACE(ADD_LAYERNORM_DELTA, ADD_RMSNORM_DELTA);
SAME_PLACE(ADD_LAYERNORM_W, RMSNORM_W + 1);
SAME_PLACE(ADD_LAYERNORM_B, LAYERNORM_B + 1);
SAME_PLACE(ADD_LAYERNORM_MEAN, LAYERNORM_MEAN);
SAME_PLACE(ADD_LAYERNORM_RSTD, LAYERNORM_RSTD);
SAME_PLACE(ADD_LAYERNORM_SUM, ADD_RMSNORM_SUM + 1);
SAME_PLACE(LAYERNORM_GRAD_DY, RMSNORM_GRAD_DY);
SAME_PLACE(LAYERNORM_GRAD_X, RMSNORM_GRAD_X);
SAME_PLACE(LAYERNORM_GRAD_W, RMSNORM_GRAD_W);
SAME_PLACE(LAYERNORM_GRAD_RSTD, RMSNORM_GRAD_RSTD + 1);
SAME_PLACE(LAYERNORM_GRAD_ADD, RMSNORM_GRAD_ADD + 1);
SAME_PLACE(LAYERNORM_GRAD_DW, RMSNORM_GRAD_DW);
SAME_PLACE(LAYERNORM_GRAD_COPY, RMSNORM_GRAD_COPY + 1);
SAME_PLACE(GELU_GRAD_X, SWIGLU_GRAD_GU);
SAME_PLACE(ADD_BIAS_X, ADD_A);
SAME_PLACE(ADD_BIAS_B, ADD_B);
SAME_PLACE(CAST_X, SELECT_ROWS_X);
SAME_PLACE(CAST_Y, SELECT_ROWS_Y);
SAME_PLACE(ACCUMULATE_X, SELECT_ROWS_X);
SAME_PLACE(DROPOUT_GRAD_DY, DROPOUT_X);
SAME_PLACE(DROPOUT_GRAD_SAMPLE, DROPOUT_SAMPLE);
SAME_PLACE(DROPOUT_GRAD_OFFSET, DROPOUT_OFFSET);
SAME_PLACE(DROPOUT_GRAD_ROW, DROPOUT_ROW);
SAME_PLACE(COMBINE_PLACE, DISPATCH_PLACE);
SAME_PLACE(COMBINE_Y, DISPATCH_X);
SAME_PLACE(EXPERT_SWIGLU_GRAD_WEIGHT, EXPERT_SWIGLU_WEIGHT);
SAME_PLACE(EXPERT_SWIGLU_GRAD_PLACE, EXPERT_SWIGLU_PLACE);
SAME_PLACE(HEAD_CROSS_ENTROPY_X, HEAD_LOSS_X);
SAME_PLACE(HEAD_CROSS_ENTROPY_W, HEAD_LOSS_W);
SAME_PLACE(HEAD_CROSS_ENTROPY_TARGET, HEAD_LOSS_TARGET);
SAME_PLACE(CROSS_ENTROPY_LOGITS, LOGIT_STATS_LOGITS);

/* NULL where no table lists the kind. */
static const struct op_info *row_of(enum op_kind kind)
{
    CHECK((unsigned)kind < N_OP_KINDS);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i][kind])
            return families[i][kind];
    return NULL;
}

/* A kind's name is its row's: without one, what is known is where it stands in ops.h. */
static _Noreturn void refuse_kind_without_row(enum op_kind kind)
{
    const struct op_info *before = kind > 0 ? row_of((enum op_kind)(kind - 1)) : NULL;
    char text[128];

    snprintf(text, sizeof text, "op kind %d (behind %s in ops/ops.h) has a row in a family's table",
             (int)kind, before ? before->name : "no other");
    check_failed(text, __FILE__, __LINE__);
}

const struct op_info *op_info(enum op_kind kind)
{
    const struct op_info *row = row_of(kind);

    if (!row)
        refuse_kind_without_row(kind);
    return row;
}

enum op_kind op_find(const char *name)
{
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (!strcmp(op_name((enum op_kind)kind), name))
            return (enum op_kind)kind;
    return N_OP_KINDS;
}

int op_is_collective(enum op_kind kind)
{
    return (op_info(kind)->traits & TRAIT_COLLECTIVE) != 0;
}

int op_has_kernel(enum op_kind kind)
{
    return !(op_info(kind)->traits & (TRAIT_COLLECTIVE | TRAIT_COPY));
}

const char *space_name(enum space space)
{
    static const char *const names[N_SPACES] = { "device", "host", "file" };

    return names[space];
}

const char *axis_name(enum mesh_axis axis)
{
    static const char *const names[] = {
        [AXIS_DP] = "dp",           [AXIS_TP] = "tp",           [AXIS_PP] = "pp",
        [AXIS_CP] = "cp",           [AXIS_ULYSSES] = "ulysses", [AXIS_EP] = "ep",
        [AXIS_REPLICA] = "replica", [AXIS_DATA] = "data",       [AXIS_EXPERTS] = "experts",
    };

    _Static_assert(sizeof names / sizeof *names == N_GROUP_AXES, "each axis has a name");
    return names[axis];
}
