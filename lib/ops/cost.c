/*
 * cost.c - operations and bytes of an op
 *
 * Kinds with products (linear, attention, head) count their products alone: what biases, softmax
 * and norms inside them add is under a hundredth. All others count their arithmetic by element,
 * exp, tanh, sqrt and division as one each; they are bound by bytes anyway.
 */
#include "ops/op_info.h"

double op_flops(const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);

    return info->flops ? info->flops(op)
                       : info->flops_per_element * (double)tensor_elements(&op->in[OPS_FIRST]);
}

static double tensor_moved(const struct tensor *t, unsigned flags)
{
    double bytes = (double)tensor_elements(t) * (double)dtype_bytes(t->dtype);

    return flags & (OPERAND_ACCUMULATED | OPERAND_UPDATED) ? 2 * bytes : bytes;
}

double op_bytes(const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);
    struct op_shape moved = *op;
    double bytes = 0;

    if (info->moved)
        info->moved(&moved);
    for (int i = 0; i < info->n_inputs; i++)
        bytes += tensor_moved(&moved.in[i], info->inputs[i].flags);
    for (int i = 0; i < info->n_outputs; i++)
        bytes += tensor_moved(&moved.out[i], info->outputs[i].flags);
    return bytes;
}
