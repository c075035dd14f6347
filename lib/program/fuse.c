/*
 * fuse.c - a residual add and the norm that follows it become one op; so do a norm's gradient and the
 * cast of it that the block before reads
 */
#include <string.h>

#include "program/passes.h"

static int reads(const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] == value)
            return 1;
    return 0;
}

/* The norm that is the first reader of ops[i]'s sum, or -1. */
static int norm_after(const struct function *f, int i)
{
    for (int j = i + 1; j < f->n_ops; j++) {
        if (!reads(&f->ops[j], f->ops[i].out[0]))
            continue;
        int norm = f->ops[j].kind == OP_RMSNORM || f->ops[j].kind == OP_LAYERNORM;

        return norm && f->ops[j].in[0] == f->ops[i].out[0] ? j : -1;
    }
    return -1;
}

static struct op fused(const struct op *add, const struct op *norm)
{
    struct op op = *norm;
    int layer = norm->kind == OP_LAYERNORM;

    op.kind = layer ? OP_ADD_LAYERNORM : OP_ADD_RMSNORM;
    memset(op.in, 0, sizeof op.in);
    op.in[0] = add->in[0];
    op.in[1] = add->in[1];
    op.in[2] = norm->in[1];
    op.in[3] = layer ? norm->in[2] : 0;
    op.out[layer ? 3 : 2] = add->out[0];
    return op;
}

int fuse(struct program *program, int function)
{
    struct function *f = &program->functions[function];
    int n_fused = 0;

    for (int i = 0; i < f->n_ops; i++) {
        int j = f->ops[i].kind == OP_ADD ? norm_after(f, i) : -1;

        /* The fused op's delta and output are of one dtype. */
        if (j < 0 ||
            program->values[f->ops[i].in[1]].dtype != program->values[f->ops[j].out[0]].dtype)
            continue;
        f->ops[j] = fused(&f->ops[i], &f->ops[j]);
        memmove(f->ops + i, f->ops + i + 1, sizeof *f->ops * (size_t)(f->n_ops - i - 1));
        f->n_ops--;
        i--;
        n_fused++;
    }
    return n_fused;
}

/* The output `copy` of a norm's gradient; NULL of other ops. */
static int *copy_of(struct op *op)
{
    return op->kind == OP_RMSNORM_GRAD     ? &op->out[2]
           : op->kind == OP_LAYERNORM_GRAD ? &op->out[3]
                                           : NULL;
}

/* Of the norm's gradient among the first n ops that has made what this casts; NULL if there is none, or
 * its copy is another. */
static int *copy_for(const struct program *p, const struct function *f, int n,
                     const struct op *cast)
{
    for (int i = n - 1; i >= 0; i--) {
        int *copy = copy_of(&f->ops[i]);
        int dy = f->ops[i].in[0];

        if (copy && f->ops[i].out[0] == cast->in[0])
            return *copy || p->values[dy].dtype != p->values[cast->out[0]].dtype ? NULL : copy;
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
            *copy = op.out[0];
        else
            f->ops[n_left++] = op;
    }
    f->n_ops = n_left;
    return n_ops - n_left;
}
