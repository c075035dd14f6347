/*
 * overlap.c - collectives of tensor and context parallelism are issued early, so that they overlap
 * with products
 *
 * The passes before emit each collective where it was derived: an all-reduce directly before its
 * reader, a gather directly before the product that reads it. Here each op of streams tp and cp
 * moves up to the op that writes its input, so that the products in between (weights' gradients)
 * run while it is in flight. A gather that repeats one of the forward (phase R) passes one product
 * at most, because its output takes memory from then on. The order of collectives among themselves
 * stays, and all ranks of a group have the same program, so they still meet in one order. No bit
 * changes: ops move, operands do not.
 *
 *     B  %91 = linear_dx %90, up.weight             B  %91 = linear_dx %90, up.weight
 *     W  up.weight.grad += linear_dw %90, %36       B  %92 = all_reduce %91  over tp
 *     B  %92 = all_reduce %91  over tp         ->   W  up.weight.grad += linear_dw %90, %36
 *     B  %93 = rmsnorm_grad %92, ...                B  %93 = rmsnorm_grad %92, ...
 */
#include <stdbool.h>

#include "program/passes.h"

static bool is_product(enum op_kind kind)
{
    return (op_info(kind)->traits & TRAIT_PRODUCT) != 0;
}

/* Whether `op` must stay after `earlier`: it reads its output, or is on the same stream. */
static bool is_needed(const struct program *p, const struct op *earlier, const struct op *op)
{
    if (earlier->stream == op->stream)
        return true;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        for (int i = 0; i < OPS_MAX_INPUTS && earlier->out[k]; i++)
            if (op->in[i] && program_base(p, earlier->out[k]) == program_base(p, op->in[i]))
                return true;
    return false;
}

/* The first position to which ops[index] may move. */
static int earliest(const struct program *p, const struct function *f, int index)
{
    const struct op *op = &f->ops[index];
    int at = index, n_products = 0;

    while (at > 0 && !is_needed(p, &f->ops[at - 1], op)) {
        n_products += is_product(f->ops[at - 1].kind);
        if (op->phase == PHASE_R && n_products > 1)
            break;
        at--;
    }
    /* Moving past other ops than products gains nothing. */
    return n_products ? at : index;
}

void overlap_collectives(struct program *program, int function)
{
    struct function *f = &program->functions[function];

    for (int i = 1; i < f->n_ops; i++) {
        struct op op = f->ops[i];
        int at = op.stream == STREAM_TP || op.stream == STREAM_CP || op.stream == STREAM_EP
                     ? earliest(program, f, i)
                     : i;

        for (int k = i; k > at; k--)
            f->ops[k] = f->ops[k - 1];
        f->ops[at] = op;
    }
}
