/*
 * cost.c - operations and bytes of an op
 *
 * Kinds with products (linear, attention, head) count their products alone: what biases, softmax
 * and norms inside them add is under a hundredth. All others count their arithmetic by element,
 * exp, tanh, sqrt and division as one each; they are bound by bytes anyway.
 */
#include "base/num.h"
#include "ops/op_info.h"

static void expect_rows(struct tensor *operands, const struct op_operand *infos, int n,
                        enum dim rows, int64_t n_rows)
{
    for (int i = 0; i < n; i++)
        if (infos[i].rows == rows)
            operands[i].rows = min_i64(operands[i].rows, n_rows);
}

/* Of some of the experts: their rows of matrices, which as many of the routed rows meet. */
static void expect_some(struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);

    for (int i = 0; i < info->n_inputs; i++)
        if (info->inputs[i].cols == DIM_M && info->inputs[i].rows == DIM_ONE) {
            int64_t m = op->in[i].cols, n = op->attributes.experts;

            for (int k = 0; k < info->n_inputs; k++)
                if (info->inputs[k].rows == DIM_MN)
                    op->in[k].rows = op->in[k].rows / m * n;
            op->in[i].cols = n;
            return;
        }
}

struct op_shape op_expected(const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);
    struct op_shape expected = op_in_rows(op);
    int64_t n_rows = op->attributes.n_rows;

    if (n_rows) {
        expect_rows(expected.in, info->inputs, info->n_inputs, info->routed_rows, n_rows);
        expect_rows(expected.out, info->outputs, info->n_outputs, info->routed_rows, n_rows);
    }
    if (op->attributes.experts)
        expect_some(&expected);
    return expected;
}

double op_flops(const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);
    struct op_shape expected = op_expected(op);

    return info->flops ? info->flops(&expected)
                       : info->flops_per_element * (double)tensor_elements(&expected.in[OPS_FIRST]);
}

static double tensor_moved(const struct tensor *t, unsigned flags)
{
    double bytes = (double)tensor_elements(t) * (double)dtype_bytes(t->dtype);

    return flags & (OPERAND_ACCUMULATED | OPERAND_UPDATED) ? 2 * bytes : bytes;
}

double op_bytes(const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);
    struct op_shape moved = op_expected(op);
    double bytes = 0;

    if (info->moved)
        info->moved(&moved);
    for (int i = 0; i < info->n_inputs; i++)
        bytes += tensor_moved(&moved.in[i], info->inputs[i].flags);
    for (int i = 0; i < info->n_outputs; i++)
        bytes += tensor_moved(&moved.out[i], info->outputs[i].flags);
    return bytes;
}
