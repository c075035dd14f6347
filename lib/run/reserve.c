/*
 * reserve.c - what vendors' libraries are asked for before a program's memory is allocated
 */
#include "comm/comm.h"
#include "run/run_impl.h"

/* The multiprocessors that a given op takes while it is under way; copies are other engines'. */
static int blocks_of(const struct op *op)
{
    if (!op_is_collective(op->kind))
        return 0;
    return op_info(op->kind)->traits & TRAIT_TRANSFER ? COMM_BLOCKS_PAIR : COMM_BLOCKS_TOGETHER;
}

void run_find_beside(const struct program *program, int function, const int *completed_at,
                     int *beside)
{
    const struct function *f = &program->functions[function];

    for (int i = 0; i < f->n_ops; i++)
        beside[i] = 0;
    for (int i = 0; i < f->n_ops; i++)
        for (int k = i + 1; order_is_async(&f->ops[i]) && k < completed_at[i] && k < f->n_ops; k++)
            if (!order_is_async(&f->ops[k]))
                beside[k] += blocks_of(&f->ops[i]);
}

/* An address that is aligned as the operand's will be. */
static struct tensor foreseen(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    if (!id)
        return (struct tensor){ 0 };
    uintptr_t address = ((uintptr_t)v->segment + 1) << 40 | program_place(p, id, 0);
    return (struct tensor){ (void *)address, v->rows, v->cols, v->stride, v->dtype };
}

static int reserve_op(const struct program *p, const struct op *op, int beside,
                      struct kernels *kernels, struct err *err)
{
    struct op_shape shape = { .kind = op->kind, .attributes = op->attributes };

    if (program_is_host_op(p, op))
        return 0;
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        shape.in[k] = foreseen(p, op->in[k]);
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        shape.out[k] = foreseen(p, op->out[k]);
    return op_has_kernel(op->kind) ? kernels_prepare_early(kernels, &shape, beside, err) : 0;
}

/* Its ops that have collectives beside them, or those that have none. */
static int reserve_function(const struct program *p, int function, bool has_beside,
                            struct kernels *kernels, struct progress_slot *progress,
                            struct err *err)
{
    const struct function *f = &p->functions[function];
    struct arena arena = { 0 };
    int *completed_at = arena_array(&arena, int, f->n_ops),
        *beside = arena_array(&arena, int, f->n_ops);
    int status = 0;

    order_completion(p, function, completed_at);
    run_find_beside(p, function, completed_at, beside);
    for (int i = 0; i < f->n_ops && !status; i++) {
        progress_beat(progress);
        if ((beside[i] > 0) == has_beside)
            status = reserve_op(p, &f->ops[i], beside[i], kernels, err);
    }
    arena_release(&arena);
    return status;
}

int run_reserve(const struct program *program, struct kernels *kernels,
                struct progress_slot *progress, struct err *err)
{
    if (!kernels_are_gpu(kernels))
        return 0;
    /* Whether collectives will be enqueued is not known yet: they are where it matters. */
    for (int has_beside = true; has_beside >= 0; has_beside--)
        for (int f = 0; f < program->n_functions; f++)
            if (reserve_function(program, f, has_beside, kernels, progress, err) < 0)
                return err_add(err, "%s", program->functions[f].name);
    return 0;
}
