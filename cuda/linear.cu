/*
 * linear.cu - linear, linear_dx, linear_dw: products by cuBLASLt; db by column_sums.cuh
 *
 * Bound by the tensor cores for a few hundred tokens and more, by reading w below. dw's product is
 * whole before its one add to the accumulator, in the product's own epilogue.
 */
#include "cuda/column_sums.cuh"
#include "cuda/gemm.cuh"

/* Of the product behind an op: a and b are its inputs in order, c its output. */
static struct cuda_gemm_shape product_shape(const struct op_shape *given)
{
    const struct op_shape in_rows = op_in_rows(given), *op = &in_rows;
    const struct tensor *a = &op->in[LINEAR_X], *b = &op->in[LINEAR_W], *c = &op->out[LINEAR_Y];
    int is_dw = op->kind == OP_LINEAR_DW;
    struct cuda_gemm_shape shape = {};

    shape.m = c->rows;
    shape.n = c->cols;
    shape.k = is_dw ? a->rows : a->cols;
    shape.in = a->dtype;
    shape.out = c->dtype;
    shape.a_transposed = is_dw;
    shape.b_transposed = op->kind == OP_LINEAR;
    shape.lda = a->stride;
    shape.ldb = b->stride;
    shape.ldc = c->stride;
    shape.biased = op->kind == OP_LINEAR && tensor_given(&op->in[LINEAR_B]);
    if (given->attributes.run_rows && given->out[LINEAR_Y].rows > 1) {
        shape.m = given->attributes.run_rows;
        shape.n_runs = given->out[LINEAR_Y].rows;
        shape.run_lda = given->in[LINEAR_X].stride;
        shape.run_ldc = given->out[LINEAR_Y].stride;
    }
    return shape;
}

static struct cuda_gemm_operands product_operands(const struct kernel_call *call, int add)
{
    const struct op_shape *op = &call->op;
    struct cuda_gemm_operands operands = {};

    operands.a = op->in[LINEAR_X].data;
    operands.b = op->in[LINEAR_W].data;
    operands.c = op->out[LINEAR_Y].data;
    operands.add = add;
    operands.beside = call->beside;
    if (op->kind == OP_LINEAR)
        operands.bias = (const float *)op->in[LINEAR_B].data;
    return operands;
}

static int linear_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    struct cuda_gemm_shape shape = product_shape(&call->op);
    struct cuda_gemm_operands operands = product_operands(call, 0);
    const struct cuda_gemm *gemm;

    if (cuda_gemm_prepare(kernels, &shape, &operands, &gemm, err))
        return err_add(err, "%s", op_info(call->op.kind)->name);
    call->state = (void *)gemm; /* the instance's: nothing to release */
    return 0;
}

static void linear_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    struct cuda_gemm_operands operands = product_operands(call, 0);

    cuda_gemm_run(kernels, op_info(call->op.kind)->name, (const struct cuda_gemm *)call->state,
                  &operands, call->scratch);
}

static void linear_dw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct cuda_gemm_operands operands = product_operands(call, !(first & 1));

    cuda_gemm_run(kernels, op_info(call->op.kind)->name, (const struct cuda_gemm *)call->state,
                  &operands, call->scratch);
    if (tensor_given(&call->op.out[LINEAR_DW_DB]))
        cuda_column_sums(kernels, call, &call->op.in[LINEAR_DW_DY], &call->op.out[LINEAR_DW_DB],
                         call->scratch, first >> 1 & 1);
}

void cuda_register_linear(struct kernels_backend *table)
{
    struct kernel_entry entry = {};

    entry.run = linear_run;
    entry.prepare = linear_prepare;
    table->entries[OP_LINEAR] = entry;
    table->entries[OP_LINEAR_DX] = entry;
    entry.run = linear_dw_run;
    table->entries[OP_LINEAR_DW] = entry;
}
