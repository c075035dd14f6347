/*
 * fuse.c - a residual add and the norm that follows it become one op; so do a norm's gradient and
 * the cast of it that the block before reads
 *
 *     F  %35 = add %23, %34
 *     F  %36, %37 = rmsnorm %35, ffn_norm.weight
 *     ->
 *     F  %36, %37, %35 = add_rmsnorm %23, %34, ffn_norm.weight
 *
 * Both ops are bound by memory bandwidth, and the fused one reads the sum while it is in registers.
 * The contracts of the ops (ops/norm.c) promise equal bits. The add is not fused where another op
 * reads the sum before the norm does, since it would then have to be emitted earlier than the norm.
 */
#include <stdbool.h>
#include <string.h>

#include "program/passes.h"

/* Whether the op reads the value or a view of it. */
static bool reads(const struct program *p, const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (program_whole(p, op->in[k]) == value)
            return true;
    return false;
}

/* The norm that is the first reader of ops[i]'s sum and can be fused with it, or -1. */
static int norm_after(const struct program *p, const struct function *f, int i)
{
    int sum = f->ops[i].out[ADD_Y];

    for (int j = i + 1; j < f->n_ops; j++) {
        enum op_kind kind = f->ops[j].kind;
        const struct op_fusion *fusion = op_info(kind)->fusion;

        if (reads(p, &f->ops[j], sum))
            return fusion && fusion->norm == kind && f->ops[j].in[OPS_FIRST] == sum ? j : -1;
    }
    return -1;
}

static struct op fused(const struct op *add, const struct op *norm)
{
    const struct op_info *info = op_info(norm->kind);
    struct op op = *norm;

    op.kind = info->fusion->fused;
    memset(op.in, 0, sizeof op.in);
    op.in[ADD_A] = add->in[ADD_A];
    op.in[ADD_B] = add->in[ADD_B];
    for (int k = 1; k < info->n_inputs; k++)
        op.in[k + 1] = norm->in[k];
    op.out[op_plain_outputs(info)] = add->out[ADD_Y];
    return op;
}

int fuse(struct program *program, int function)
{
    struct function *f = &program->functions[function];
    int n_fused = 0;

    for (int i = 0; i < f->n_ops; i++) {
        int j = f->ops[i].kind == OP_ADD ? norm_after(program, f, i) : -1;

        /* The fused op's delta and output are of one dtype. */
        if (j < 0 || program->values[f->ops[i].in[ADD_B]].dtype !=
                         program->values[f->ops[j].out[OPS_FIRST]].dtype)
            continue;
        f->ops[j] = fused(&f->ops[i], &f->ops[j]);
        memmove(f->ops + i, f->ops + i + 1, sizeof *f->ops * (size_t)(f->n_ops - i - 1));
        f->n_ops--;
        i--;
        n_fused++;
    }
    return n_fused;
}

/* The output that is a cast of the first output; NULL if the kind has none. */
static int *cast_output(struct op *op)
{
    const struct op_info *info = op_info(op->kind);

    for (int k = 1; k < info->n_outputs; k++)
        if (info->outputs[k].flags & OPERAND_CAST)
            return &op->out[k];
    return NULL;
}

/*
 * The free cast output of the op, among the first n, that writes the input of `cast`; NULL if there
 * is none, or its dtype, that of the op's first input, is another.
 */
static int *copy_for(const struct program *p, const struct function *f, int n,
                     const struct op *cast)
{
    for (int i = n - 1; i >= 0; i--) {
        int *copy = cast_output(&f->ops[i]);
        int dy = f->ops[i].in[OPS_FIRST];

        if (copy && f->ops[i].out[OPS_FIRST] == cast->in[CAST_X])
            return *copy || p->values[dy].dtype != p->values[cast->out[CAST_Y]].dtype ? NULL : copy;
    }
    return NULL;
}

int fuse_casts(struct program *program, int function)
{
    struct function *f = &program->functions[function];
    int n_ops = f->n_ops, n_left = 0;

    for (int i = 0; i < n_ops; i++) {
        struct op op = f->ops[i];
        int *copy = op.kind == OP_CAST ? copy_for(program, f, n_left, &op) : NULL;

        if (copy)
            *copy = op.out[CAST_Y];
        else
            f->ops[n_left++] = op;
    }
    f->n_ops = n_left;
    return n_ops - n_left;
}
