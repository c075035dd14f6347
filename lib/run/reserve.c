/*
 * reserve.c - what vendors' libraries are asked for before a program's memory is allocated
 */
#include "run/run.h"

/* An address that is aligned as the operand's will be. */
static struct tensor foreseen(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    if (!id)
        return (struct tensor){ 0 };
    uintptr_t address = ((uintptr_t)v->segment + 1) << 40 | program_place(p, id, 0);
    return (struct tensor){ (void *)address, v->rows, v->cols, v->stride, v->dtype };
}

static int reserve_op(const struct program *p, const struct op *op, struct kernels *kernels,
                      struct err *err)
{
    struct op_shape shape = { .kind = op->kind, .attributes = op->attributes };

    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        shape.in[k] = foreseen(p, op->in[k]);
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        shape.out[k] = foreseen(p, op->out[k]);
    return op_has_kernel(op->kind) ? kernels_prepare_early(kernels, &shape, err) : 0;
}

int run_reserve(const struct program *program, struct kernels *kernels,
                struct progress_slot *progress, struct err *err)
{
    if (!kernels_are_gpu(kernels))
        return 0;
    for (int f = 0; f < program->n_functions; f++)
        for (int i = 0; i < program->functions[f].n_ops; i++) {
            progress_beat(progress);
            if (reserve_op(program, &program->functions[f].ops[i], kernels, err) < 0)
                return err_add(err, "%s", program->functions[f].name);
        }
    return 0;
}
